"""One try at one upstream, and the answer that it gives: its events one by one, or whole.

Owns the response. Rules: bytes go on as they came and no earlier than an event is whole; an answer that is cut ends in
an error, never in silence; nothing is read before the client has taken what came before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
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
            passed = b"".join(event.raw for event in events if self.tap.event(event))
            if self.first_token_at is None and self.tap.begun:
                self.first_token_at = self.computed()
            if passed:
                yield passed
            if self.tap.error is not None:
                return
            data = await _within(idle_s, self.response.content.readany(), "sent nothing more")
            if not data:
                break
            events = self.reader.feed(data)
        rest = b"".join(event.raw for event in self.reader.end() if self.tap.event(event) and self.tap.ended)
        if rest:
            yield rest
        if not self.tap.complete:
            raise UpstreamFailed("The upstream's answer broke off.")


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """Read an answer that is not streamed. Raises UpstreamFailed for one that is too long."""
    body = bytearray()
    while data := await response.content.readany():
        body += data
        if len(body) > ANSWER_BYTES:
            raise UpstreamFailed(f"The upstream's answer is larger than {ANSWER_BYTES} bytes.")
    return bytes(body)


async def _within(seconds: float, work: Awaitable[bytes], what: str) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise UpstreamSlow(f"The upstream {what} for {seconds:g} seconds.") from None
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamFailed("The upstream's answer broke off.") from error
