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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import aiohttp
import structlog

from gateway.errors import (
    CLIENT_LEFT,
    GatewayError,
    NoUpstream,
    Stopping,
    UpstreamError,
    problem_of,
)
from gateway.exchange import Governs
from gateway.record import Outcome, Witness
from gateway.relay import headers
from gateway.relay.attempt import Attempt, beginning, some_of, whole
from gateway.relay.call import Call
from gateway.relay.fleet import Fleet
from gateway.relay.here import Here
from gateway.relay.tap import Tap
from gateway.relay.told import told_of
from gateway.relay.told_record import NOBODY, record_of
from gateway.relay.upstream import BUNDLED, Upstream
from gateway.relay.verdict import at_fault, goes_on, is_dead, meant_by, seconds_of
from gateway.routing.wanted import Wanted

ATTEMPTS: Final = 3
IDLE_S: Final = 4.0  # that a connection is kept; widespread servers close theirs after 5, and a race is lost
HASHED_INLINE_BYTES: Final = 1 << 20  # of a prompt that is hashed at once: some milliseconds
WHOLE_BYTES: Final = 1 << 18  # of a body that is handed to the socket in one piece

Exact = Callable[[Call, bytes], Awaitable[tuple[bytes, list[int]] | None]]

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
        exact: Exact | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Send by way of `fleet`; `policies` say how long a prefix is promised and what is a hit.

        `exact` may give a prompt's chain over its tokens, and the tokens up to each piece's end, for routing.
        """
        self._exact = exact
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
        connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, keepalive_timeout=IDLE_S)
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
        wanted, size = await self._wanted(call)
        tried: list[str] = []
        attempt: Attempt | None = None
        outcome: Outcome = "failed"
        status = 500
        fault: bool | None = None  # whether the upstream failed; None: nobody can say
        self._open += 1
        self._idle.clear()
        try:
            attempt = await self._first(call, wanted, tried)
            self._attempts.add(attempt)
            yield attempt
            outcome, status = _end(attempt.tap)
            fault = outcome == "failed"
        except (asyncio.CancelledError, GeneratorExit, ConnectionError):  # ConnectionError: writing to the client
            outcome, status = "cancelled", CLIENT_LEFT
            if attempt is not None and attempt.tap.ended and attempt.tap.error is None:
                outcome, status, fault = "finished", 200, False  # it left with all of its answer
            raise
        except GatewayError as error:
            status = problem_of(error).status
            outcome = "refused" if status < 500 else "failed"  # noqa: PLR2004 - the border between theirs and ours
            fault = at_fault(error)
            raise
        finally:
            now = self._clock()
            if attempt is not None:
                self._attempts.discard(attempt)
                self._close(attempt, wanted, now, outcome, fault=fault)
                self.fleet.learn_size(call.model, size, attempt.tap.reported.prompt or 0, len(wanted.ends))
            if not isinstance(attempt, Here):  # whose exchange is told by those who answered it
                upstream = tried[-1] if tried else NOBODY
                self._tell(call, attempt, upstream, outcome, status, at, began, now)
            self._open -= 1
            if not self._open:
                self._idle.set()

    def _tell(
        self,
        call: Call,
        attempt: Attempt | None,
        upstream: str,
        outcome: Outcome,
        status: int,
        at: float,
        began: float,
        now: float,
    ) -> None:
        first = attempt.first_token_at if attempt is not None else None
        first_token_s = None if first is None else first - began
        record = record_of(call, attempt, outcome, status, at=at, seconds=now - began, first_token_s=first_token_s)
        least = self._policies.known.govern(model=call.model, tenant=call.tenant).min_tokens
        record = replace(record, min_tokens=least, upstream=upstream)
        for witness in self._witnesses:
            witness.ended(record, b"")

    async def drained(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def _wanted(self, call: Call) -> tuple[Wanted, int]:
        """Return the request as routing sees it, and its prompt's bytes where tokens are estimated by them, else 0."""
        ttl_s = self._policies.known.govern(model=call.model, tenant=call.tenant).default_s or 0.0
        exact = None if self._exact is None else await self._exact(call, self._secret)
        if exact is not None:
            path, ends = exact
            tokens = ends[-1] if ends else 0
            return Wanted(path=path, ends=ends, tokens=tokens, ttl_s=ttl_s, session=call.session), 0
        if len(call.body) <= HASHED_INLINE_BYTES:
            path, ends = call.prefix(self._secret)
        else:
            path, ends = await asyncio.to_thread(call.prefix, self._secret)
        size = ends[-1] if ends else 0
        tokens = self.fleet.tokens(call.model, size)
        scale = tokens / size if size else 0.0
        ends = [round(end * scale) for end in ends]
        return Wanted(path=path, ends=ends, tokens=tokens, ttl_s=ttl_s, session=call.session), size

    # ---- before the first byte ----

    async def _first(self, call: Call, wanted: Wanted, tried: list[str]) -> Attempt:
        """Return the first attempt that has something to give; note in `tried` who was asked."""
        last: UpstreamError | None = None
        attempt: Attempt | None = None
        for _ in range(ATTEMPTS):
            try:
                replica, choice = self.fleet.choose(call.model, call.endpoint, wanted, self._clock(), tried=tried)
            except NoUpstream:
                if last is not None:
                    raise last from None
                raise
            if attempt is not None:
                self.retries += 1
                attempt.replica.retries += 1
            tried.append(replica.name)
            router = self.fleet.router(call.model)
            told = partial(self.fleet.computed, router, call.model, choice, wanted)
            if replica.name == BUNDLED:
                return Here(call, replica, choice, router, self._clock, told)
            attempt = Attempt(call, replica, choice, router, self._clock, told)
            try:
                await self._try(attempt)
            except BaseException as error:
                last = self._failed(attempt, wanted, error)
                if last is None:
                    raise
                problem = problem_of(last)
                log.info("upstream_failed", upstream=replica.name, status=problem.status, code=problem.code)
                if self.http.closed or not goes_on(call, last):
                    raise last from None
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
        async with asyncio.timeout(upstream.first_byte_timeout) as patience:
            attempt.response = response = await self.http.post(
                upstream.url(call.endpoint), data=_payload(body), headers=sent, timeout=timeout, allow_redirects=False
            )
            if response.status != 200:  # noqa: PLR2004 - an answer
                told = told_of(response.status, await beginning(response))
                told.retry_after_s = seconds_of(response.headers.get("Retry-After"))
                raise told
            if call.streamed and response.content_type == "text/event-stream":
                await attempt.first_event()
            else:
                first = await some_of(response, upstream.first_byte_timeout)
                patience.reschedule(None)
                attempt.body = await whole(response, first, upstream.idle_timeout)
                attempt.tap.whole(attempt.body)
                if attempt.tap.error is not None and not attempt.tap.told:
                    raise attempt.tap.error

    def _failed(self, attempt: Attempt, wanted: Wanted, error: BaseException) -> UpstreamError | None:
        """End an attempt that gave nothing. Return what went wrong, None where the client left."""
        told = meant_by(error, attempt.replica.name)
        fault = None if told is None else at_fault(told)
        attempt.replica.outcomes["cancelled" if fault is None else "failed" if fault else "refused"] += 1
        self._judge(attempt, fault=fault)
        self._release(attempt, wanted, read=None, computed=False)
        if is_dead(error):
            self.fleet.lost(attempt.replica.name)
        return told

    @staticmethod
    def _judge(attempt: Attempt, *, fault: bool | None) -> None:
        """Tell an upstream's health of an answer."""
        if fault is None:
            attempt.replica.health.gave_up()
        else:
            attempt.replica.health.answered(well=not fault)
            attempt.replica.failures += fault

    # ---- after it ----

    def _close(self, attempt: Attempt, wanted: Wanted, now: float, outcome: Outcome, *, fault: bool | None) -> None:
        tap, replica = attempt.tap, attempt.replica
        if not isinstance(attempt, Here):  # whose engine says itself whether it is well
            self._judge(attempt, fault=fault)
        replica.outcomes[outcome] += 1
        read = tap.reported.read
        if read is not None:
            replica.prompt_tokens += tap.reported.prompt or 0
            replica.read_tokens += read
            replica.available_tokens += attempt.choice.available
            replica.captured_tokens += attempt.choice.captured
        computed = (tap.begun or tap.finished or tap.ended) and not attempt.call.counts_only
        self._release(attempt, wanted, read=read, computed=computed, now=now)

    def _release(
        self, attempt: Attempt, wanted: Wanted, *, read: int | None, computed: bool, now: float | None = None
    ) -> None:
        now = self._clock() if now is None else now
        router, choice = attempt.router, attempt.choice
        if attempt.life == attempt.replica.life:
            self.fleet.over(router, attempt.call.model, choice, wanted, now, read=read, computed=computed)
        else:  # it restarted or was removed meanwhile: nothing that it computed is there any more
            router.loads.take(choice.ticket)
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
