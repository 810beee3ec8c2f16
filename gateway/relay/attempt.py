"""One try at one upstream, and the answer that it gives: its events one by one, or whole.

Owns the response. Rules: bytes go on as they came and no earlier than an event is whole; an answer that is cut ends in
an error, never in silence; nothing is read before the client has taken what came before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Final

import aiohttp

from gateway.errors import UpstreamFailed, UpstreamSlow
from gateway.relay import headers
from gateway.relay.call import Call
from gateway.relay.fleet import Replica
from gateway.relay.sse import EventReader, SentEvent
from gateway.relay.tap import Tap
from gateway.routing.router import Choice

ANSWER_BYTES: Final = 64 << 20  # of an answer that is not streamed
ERROR_BYTES: Final = 1 << 16
LINGER_S: Final = 0.25  # that a connection may take to end after its answer has
LINGER_BYTES: Final = 1 << 16


class Attempt:
    """One try at one upstream; once it has an answer, that answer."""

    def __init__(self, call: Call, replica: Replica, choice: Choice, on_token: Callable[[Choice], float]) -> None:
        self.replica, self.choice, self.call = replica, choice, call
        self.first_token_at: float | None = None
        self._on_token = on_token
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

    async def first_event(self) -> None:
        """Read until an event is whole. One that is an error is a failure of which the client need not hear."""
        assert self.response is not None, "a stream has begun"
        while not self.first:
            data = await self.response.content.readany()
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
                self.first_token_at = self._on_token(self.choice)
            if passed:
                yield passed
            if self.tap.error is not None:
                return
            if self.tap.ended:
                await self._lingered()
                return
            data = await _within(idle_s, self.response.content.readany(), "sent nothing more")
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
        data = await _within(idle_s, response.content.readany(), "sent nothing more")
    return bytes(body)


async def beginning(response: aiohttp.ClientResponse) -> bytes:
    """Read an error as far as it comes: what is cut off may still be understood."""
    body = bytearray()
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        while len(body) < ERROR_BYTES and (data := await response.content.readany()):
            body += data
    return bytes(body)


async def _within(seconds: float, work: Awaitable[bytes], what: str) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise UpstreamSlow(f"The upstream {what} for {seconds:g} seconds.") from None
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamFailed("The upstream's answer broke off.") from error
