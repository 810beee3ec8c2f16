"""What happens, told at once to everyone who listens.

Owns the listeners and their queues. Knows no HTTP; events are bytes of a `text/event-stream`. Rules: telling never
waits; an event is made once however many listen, and not at all where nobody does; a listener that is too slow loses
its oldest events and is told how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec

from gateway.record import Record

MOST_WAITING = 500  # events for one listener
STATE_S = 2.0
COMMENT = b": keepwarm is still here\n\n"


def event(kind: str, data: object) -> bytes:
    """Write one event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(data))


class Listener:
    """One queue of events."""

    def __init__(self, most: int) -> None:
        """Hold up to `most` events that were not taken yet."""
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._ended = False
        self._wake = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Take an event; only the hub calls it."""
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(data)
        self._wake.set()

    def end(self) -> None:
        """End; what waits is not told any more. Only the hub calls it."""
        self._ended = True
        self._wake.set()

    async def events(self, quiet_s: float = 0.0) -> AsyncIterator[bytes]:
        """Go over the events until the hub closes, with a comment whenever none came for `quiet_s`; 0 for none."""
        while not self._ended:
            if self._lost:
                lost, self._lost = self._lost, 0
                yield event("lost", {"events": lost})
            elif self._waiting:
                yield self._waiting.popleft()
            else:
                self._wake.clear()
                try:
                    async with asyncio.timeout(quiet_s or None):
                        await self._wake.wait()
                except TimeoutError:
                    yield COMMENT


class Hub:
    """Everyone who listens. A witness of every exchange."""

    def __init__(self, view: Callable[[Record], object], *, most_waiting: int = MOST_WAITING) -> None:
        """Tell of exchanges as `view` shows them."""
        self._view, self._most = view, most_waiting
        self._listeners: set[Listener] = set()
        self._closed = False

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Give a queue that fills from now on; of a hub that is closed, one that has ended."""
        listener = Listener(self._most)
        self._listeners.add(listener)
        if self._closed:
            listener.end()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def publish(self, kind: str, make: Callable[[], object]) -> None:
        """Tell everyone; `make` is called only where somebody listens."""
        if not self._listeners:
            return
        data = event(kind, make())
        for listener in self._listeners:
            listener.put(data)

    def ended(self, record: Record, tokens: bytes) -> None:  # noqa: ARG002 - a witness
        """Tell of an exchange."""
        self.publish("request", lambda: self._view(record))

    @asynccontextmanager
    async def pulsing(self, state: Callable[[], Awaitable[object]], every_s: float = STATE_S) -> AsyncIterator[None]:
        """Tell the state now and then while the block runs and somebody listens."""
        task = asyncio.create_task(self._pulse(state, every_s))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def close(self) -> None:
        """End every listener, those to come too."""
        self._closed = True
        for listener in self._listeners:
            listener.end()

    async def _pulse(self, state: Callable[[], Awaitable[object]], every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            if self._listeners:
                told = await state()
                self.publish("state", lambda told=told: told)  # type: ignore[misc]
