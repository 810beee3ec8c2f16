"""Requests to upstreams: send, try the next one before the first byte, pass on what comes, account for it.

Owns the connections. Rules:
- once a byte has gone out nothing is sent again, and an answer that is cut ends in an error, never in silence;
- an upstream is tried again by another only where that is safe: it was not reached, it said that it will not, or it
  failed at what leaves nothing behind;
- a client that leaves closes the connection to the upstream, streamed or not;
- bytes are read as fast as the client takes them.
"""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import aiohttp
import structlog

from gateway.errors import (
    CLIENT_LEFT,
    GatewayError,
    NoUpstream,
    Stopping,
    UpstreamError,
    UpstreamFailed,
    UpstreamSlow,
    UpstreamTold,
    problem_of,
)
from gateway.exchange import Governs
from gateway.record import Outcome, Witness
from gateway.relay import headers
from gateway.relay.attempt import Attempt, whole
from gateway.relay.call import Call
from gateway.relay.fleet import Fleet
from gateway.relay.here import Here
from gateway.relay.tap import Tap
from gateway.relay.told import told_of
from gateway.relay.told_record import record_of
from gateway.relay.upstream import BUNDLED, Upstream
from gateway.routing.wanted import Wanted

ATTEMPTS: Final = 3
ANSWER_BYTES: Final = 64 << 20  # of an answer that is not streamed
ERROR_BYTES: Final = 1 << 16
WHOLE_BYTES: Final = 1 << 18  # of a body that is handed to the socket in one piece
RETRIED: Final = frozenset({429, 500, 502, 503, 504, 529})

log = structlog.get_logger("gateway.relay")


class Relay:
    """Answers requests by way of upstreams."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        secret: bytes,
        policies: Governs,
        witnesses: Sequence[Witness],
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Send by way of `fleet`; `policies` say how long a prefix is promised and what is a hit."""
        self.fleet = fleet
        self._secret, self._policies, self._environ = secret, policies, environ
        self._witnesses, self._clock, self._wall = tuple(witnesses), clock, wall
        self._session: aiohttp.ClientSession | None = None
        self.retries = 0
        self._attempts: set[Attempt] = set()  # that are giving their answer
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Open what connections are made with."""
        connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, keepalive_timeout=30)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
        )

    async def stop(self) -> None:
        """Close every connection. Whoever still reads an answer hears Stopping."""
        for attempt in self._attempts:
            if attempt.response is not None:
                attempt.response.content.set_exception(Stopping("This gateway has stopped."))
        if self._session is not None:
            await self._session.close()

    async def ask_health(self, upstream: Upstream) -> int:
        """Ask an upstream whether it is well; return the status. Raises OSError, TimeoutError."""
        sent = upstream.credentials(self._environ)
        try:
            async with self.http.get(upstream.health_url, headers=sent, allow_redirects=False) as response:
                return response.status
        except aiohttp.ClientError as error:
            raise ConnectionError(type(error).__name__) from error

    @property
    def http(self) -> aiohttp.ClientSession:
        """What connections are made with."""
        assert self._session is not None, "a relay is started before it is used"
        return self._session

    @asynccontextmanager
    async def answer(self, call: Call) -> AsyncIterator[Attempt]:
        """Give the answer of the first upstream that has one; leaving the block ends it. Raises UpstreamError."""
        began, at = self._clock(), self._wall()
        self._open += 1
        self._idle.clear()
        wanted, size = self._wanted(call)
        attempt: Attempt | None = None
        outcome: Outcome = "failed"
        status = 500
        try:
            attempt = await self._first(call, wanted)
            self._attempts.add(attempt)
            yield attempt
            outcome, status = _end(attempt.tap)
        except (asyncio.CancelledError, GeneratorExit):
            outcome, status = "cancelled", CLIENT_LEFT
            raise
        except GatewayError as error:
            status = problem_of(error).status
            outcome = "refused" if status < 500 else "failed"  # noqa: PLR2004 - the border between theirs and ours
            raise
        finally:
            now = self._clock()
            if attempt is not None:
                self._attempts.discard(attempt)
                self._close(attempt, wanted, outcome, now)
                self.fleet.learn_size(call.model, size, attempt.tap.reported.prompt or 0)
            if not isinstance(attempt, Here):  # whose exchange is told by those who answered it
                self._tell(call, attempt, outcome, status, at, began, now)
            self._open -= 1
            if not self._open:
                self._idle.set()

    def _tell(
        self, call: Call, attempt: Attempt | None, outcome: Outcome, status: int, at: float, began: float, now: float
    ) -> None:
        first = attempt.first_token_at if attempt is not None else None
        first_token_s = None if first is None else first - began
        record = record_of(call, attempt, outcome, status, at=at, seconds=now - began, first_token_s=first_token_s)
        least = self._policies.known.govern(model=call.model, tenant=call.tenant).min_tokens
        record = replace(record, min_tokens=least)
        for witness in self._witnesses:
            witness.ended(record, b"")

    async def drained(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def _wanted(self, call: Call) -> tuple[Wanted, int]:
        path, ends = call.prefix(self._secret)
        size = ends[-1] if ends else 0
        tokens = self.fleet.tokens(call.model, size)
        scale = tokens / size if size else 0.0
        return Wanted(
            path=path,
            ends=[round(end * scale) for end in ends],
            tokens=tokens,
            ttl_s=self._policies.known.govern(model=call.model, tenant=call.tenant).default_s or 0.0,
            session=call.session,
        ), size

    # ---- before the first byte ----

    async def _first(self, call: Call, wanted: Wanted) -> Attempt:
        """Return the first attempt that has something to give."""
        tried: list[str] = []
        last: UpstreamError | None = None
        for _ in range(ATTEMPTS):
            try:
                replica, choice = self.fleet.choose(call.model, call.endpoint, wanted, self._clock(), tried=tried)
            except NoUpstream:
                if last is not None:
                    raise last from None
                raise
            tried.append(replica.name)
            router = self.fleet.router(call.model)
            if replica.name == BUNDLED:
                return Here(call, replica, choice, router, self._clock)
            attempt = Attempt(call, replica, choice, router, self._clock)
            try:
                await self._try(attempt)
            except BaseException as error:
                last = self._failed(attempt, wanted, error)
                if last is None or self.http.closed or not _again(call, last):
                    raise (last or error) from error
                self.retries += 1
                log.info("upstream_failed", upstream=replica.name, why=str(last))
            else:
                return attempt
        assert last is not None, "there was an attempt"
        raise last

    async def _try(self, attempt: Attempt) -> None:
        """Send, and wait for the first thing that the client can be given."""
        call, upstream = attempt.call, attempt.replica.upstream
        sent = headers.upward(call.headers, request_id=call.id, credentials=upstream.credentials(self._environ))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=upstream.connect_timeout)
        body = call.body_for(upstream, self._secret)
        async with asyncio.timeout(upstream.first_byte_timeout):
            attempt.response = response = await self.http.post(
                upstream.url(call.endpoint), data=_payload(body), headers=sent, timeout=timeout, allow_redirects=False
            )
            if response.status != 200:  # noqa: PLR2004 - an answer
                told = told_of(response.status, await response.content.read(ERROR_BYTES))
                told.retry_after_s = _seconds(response.headers.get("Retry-After"))
                raise told
            if call.streamed and response.content_type == "text/event-stream":
                await attempt.first_event()
            else:
                attempt.body = await whole(response)
                attempt.tap.whole(attempt.body)
                if attempt.tap.error is not None:
                    raise attempt.tap.error

    def _failed(self, attempt: Attempt, wanted: Wanted, error: BaseException) -> UpstreamError | None:
        """End an attempt that gave nothing. Return what went wrong, None where the client left."""
        told = _told(error, attempt.replica.name)
        fault = told is not None and not (isinstance(told, UpstreamTold) and told.status < 500 and told.status != 429)  # noqa: PLR2004 - theirs
        self._release(attempt, wanted, read=None, computed=False)
        if told is None:
            attempt.replica.health.gave_up()
        else:
            attempt.replica.health.answered(well=not fault)
            attempt.replica.failures += fault
        return told

    # ---- after it ----

    def _close(self, attempt: Attempt, wanted: Wanted, outcome: Outcome, now: float) -> None:
        tap, replica = attempt.tap, attempt.replica
        replica.failures += outcome == "failed"
        if outcome == "cancelled":
            replica.health.gave_up()
        elif not isinstance(attempt, Here):  # whose engine says itself whether it is well
            replica.health.answered(well=outcome == "finished")
        read = tap.reported.read
        if read is not None:
            replica.prompt_tokens += tap.reported.prompt or 0
            replica.read_tokens += read
            replica.available_tokens += attempt.choice.available
            replica.captured_tokens += attempt.choice.captured
        self._release(attempt, wanted, read=read, computed=tap.begun, now=now)

    def _release(
        self, attempt: Attempt, wanted: Wanted, *, read: int | None, computed: bool, now: float | None = None
    ) -> None:
        if attempt.life == attempt.replica.life:
            now = self._clock() if now is None else now
            attempt.router.over(attempt.choice, wanted, now, read=read, computed=computed)
        else:  # it restarted or was removed meanwhile: nothing that it computed is there any more
            attempt.router.loads.take(attempt.choice.ticket)
        attempt.replica.open -= 1
        if attempt.response is not None:
            if attempt.response.content.at_eof():
                attempt.response.release()
            else:
                attempt.response.close()


def _end(tap: Tap) -> tuple[Outcome, int]:
    """Say how an answer ended. Raises its error where the client has not heard of it."""
    if tap.error is None:
        return "finished", 200
    if not tap.told:
        raise tap.error
    return "failed", tap.error.status


def _payload(body: bytes) -> bytes | io.BytesIO:
    """Return a body as it is sent: a long one piece by piece, so that no other stream waits for it."""
    return body if len(body) <= WHOLE_BYTES else io.BytesIO(body)


def _told(error: BaseException, name: str) -> UpstreamError | None:
    """Say what an exception means; None: the client left."""
    match error:
        case UpstreamError():
            return error
        case TimeoutError() if not isinstance(error, aiohttp.ConnectionTimeoutError):
            return UpstreamSlow("The upstream did not answer in time.")
        case aiohttp.ClientError() | OSError():
            log.warning("upstream_unreachable", upstream=name, why=type(error).__name__)
            return UpstreamFailed("The upstream could not be reached, or ended the connection.")
        case _:
            return None


def _again(call: Call, error: UpstreamError) -> bool:
    """Whether another upstream may be tried."""
    if isinstance(error, UpstreamTold):
        return error.status in RETRIED and call.repeatable
    return isinstance(error, UpstreamFailed) and call.repeatable


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(1.0, float(text))
    except ValueError:
        return None
