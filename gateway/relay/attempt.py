"""One try at one upstream, and the answer that it gives: its events one by one, or whole.

Owns the response. Rules: bytes go on as they came and no earlier than an event is whole; an answer that is cut ends in
an error, never in silence; nothing is read before the client has taken what came before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final

import aiohttp

from gateway.errors import UpstreamFailed, UpstreamSlow
from gateway.relay import headers
from gateway.relay.call import Call
from gateway.relay.replica import Replica
from gateway.relay.sse import EventReader, SentEvent
from gateway.relay.tap import Tap
from gateway.routing.router import Choice, Router

ANSWER_BYTES: Final = 64 << 20  # of an answer that is not streamed
ERROR_BYTES: Final = 1 << 16
LOOK_S: Final = 1.0  # between two looks whether a silent connection is still there
LINGER_S: Final = 0.25  # that a connection may take to end after its answer has
LINGER_BYTES: Final = 1 << 16


class Attempt:
    """One try at one upstream; once it has an answer, that answer."""

    def __init__(
        self,
        call: Call,
        replica: Replica,
        choice: Choice,
        router: Router,
        clock: Callable[[], float],
        computed: Callable[[float], float],
    ) -> None:
        """Begin a try at `replica`, which `router` chose; `computed` hears when its prompt is."""
        self.replica, self.choice, self.call, self.router = replica, choice, call, router
        self.life = replica.life  # what it computes is believed of this life alone
        self.first_token_at: float | None = None
        self._clock, self._computed = clock, computed
        self.response: aiohttp.ClientResponse | None = None
        self.tap = Tap(call.endpoint, hide_usage=call.usage_hidden)
        self.body: bytes | None = None  # of an answer that is not streamed
        self.first: list[SentEvent] = []  # the events that were read before anything went out
        self.reader = EventReader()

    @property
    def headers(self) -> dict[str, str]:
        """Return the answer's headers as the client gets them."""
        assert self.response is not None, "only an attempt that was answered has headers"
        return headers.downward(self.response.headers)

    def computed(self) -> float:
        """Tell the fleet that the prompt is computed; return when."""
        return self._computed(self._clock())

    async def first_event(self) -> None:
        """Read until an event is whole. One that is an error is a failure of which the client need not hear."""
        assert self.response is not None, "a stream has begun"
        while not self.first:
            data = await some_of(self.response, self.replica.upstream.first_byte_timeout)
            if not data:
                raise UpstreamFailed("The upstream's answer broke off before it began.")
            self.first = self.reader.feed(data)
        probe = Tap(self.call.endpoint)
        probe.event(self.first[0])
        if probe.error is not None:
            raise probe.error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield a stream's bytes as they come. Raises UpstreamError where it breaks off or says that it failed."""
        assert self.response is not None, "only an attempt that was answered has a stream"
        idle_s = self.replica.upstream.idle_timeout
        events = self.first
        while True:
            passed = b"".join(self._passed(events))
            if self.first_token_at is None and self.tap.begun:
                self.first_token_at = self.computed()
            if passed:
                yield passed
            if self.tap.error is not None:
                return
            if self.tap.ended:
                await self._lingered()
                return
            data = await some_of(self.response, idle_s)
            if not data:
                break
            events = self.reader.feed(data)
        if rest := self._last():
            yield rest
        if not self.tap.complete:
            raise UpstreamFailed("The upstream's answer broke off.")

    def _passed(self, events: Iterable[SentEvent]) -> Iterator[bytes]:
        """Yield what of these events goes on: an answer that has ended says no more."""
        for event in events:
            if self.tap.ended or self.tap.error is not None:
                return
            if self.tap.event(event):
                yield event.raw

    def _last(self) -> bytes:
        """Return what the stream's end leaves open, if it is the answer's end and lacks nothing but its blank line."""
        for event in self.reader.end():
            probe = Tap(self.call.endpoint)
            probe.event(event)
            if (probe.ended or probe.error is not None) and self.tap.event(event):
                return event.raw.rstrip(b"\r\n") + b"\n\n"
        return b""

    async def _lingered(self) -> None:
        """Let a connection whose answer has ended come to its own end, so that it can be used again."""
        assert self.response is not None, "a stream has begun"
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(LINGER_S):
                while left > 0 and (data := await self.response.content.readany()):
                    left -= len(data)


async def whole(response: aiohttp.ClientResponse, first: bytes, idle_s: float) -> bytes:
    """Read an answer that is not streamed and began with `first`. Raises UpstreamError."""
    body, data = bytearray(), first
    while data:
        body += data
        if len(body) > ANSWER_BYTES:
            raise UpstreamFailed(f"The upstream's answer is larger than {ANSWER_BYTES} bytes.")
        data = await some_of(response, idle_s)
    return bytes(body)


async def beginning(response: aiohttp.ClientResponse) -> bytes:
    """Read an error as far as it comes: what is cut off may still be understood."""
    body = bytearray()
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        while len(body) < ERROR_BYTES and (data := await response.content.readany()):
            body += data
    return bytes(body)


async def some_of(response: aiohttp.ClientResponse, patience_s: float) -> bytes:
    """Wait for more of an answer; b"": it has ended. Raises UpstreamFailed, UpstreamSlow."""
    left_s = patience_s
    while left_s > 0:
        step_s = min(left_s, LOOK_S)
        try:
            async with asyncio.timeout(step_s):
                return await response.content.readany()
        except TimeoutError:
            left_s -= step_s
            if _is_lost(response):
                raise UpstreamFailed("The upstream's answer broke off.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailed("The upstream's answer broke off.") from error
    raise UpstreamSlow(f"The upstream sent nothing more for {patience_s:g} seconds.")


def _is_lost(response: aiohttp.ClientResponse) -> bool:
    """Whether the connection is gone, of which aiohttp's reader does not hear where a chunk's framing was broken."""
    connection = response.connection
    return connection is not None and (connection.protocol is None or not connection.protocol.is_connected())
