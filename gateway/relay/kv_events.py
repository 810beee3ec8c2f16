"""What vLLM publishes of its cache, followed: a ZeroMQ subscription to each upstream that names one, its gaps filled.

Owns the sockets and each replica's account. Rules:
- messages are numbered; one that is missing is asked for where the upstream plays them again, else the account
  knows that it missed something;
- a number that does not grow, or an old message that is another one now, is a restart: the replica holds nothing;
- a replica that was cleared or restarted is forgotten at once, what it is seen to hold at most bounds what is believed;
- nothing that comes can end the listening, hold the event loop or grow without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import structlog
import xxhash
import zmq
import zmq.asyncio

from gateway.relay.fleet import Fleet
from gateway.relay.kv_account import Account
from gateway.relay.kv_wire import END, Cleared, Garbled, Removed, Stored, batch_of, message_of

MESSAGE_BYTES: Final = 16 << 20
QUEUE: Final = 1000  # messages that wait in a socket; what is more is dropped there, and seen as a gap
RECONNECT_MS, RECONNECT_MOST_MS = 100, 1000
REPLAY_S: Final = 5.0  # for one gap
REST_S: Final = 30.0  # after a replay that did not come
LOOK_S: Final = 1.0  # between two looks at which upstreams there are

log = structlog.get_logger("gateway.relay")


class Listener(Protocol):
    """Who wants the blocks themselves, such as a room that joins their token ids with prompts."""

    def stored(self, replica: str, event: Stored) -> None:
        """Hear of blocks that came."""

    def removed(self, replica: str, event: Removed) -> None:
        """Hear of blocks that went."""

    def cleared(self, replica: str) -> None:
        """Hear that nothing is there any more."""


class KvEvents:
    """Listens to every upstream that has `kv_events`."""

    def __init__(self, fleet: Fleet, listeners: Sequence[Listener] = ()) -> None:
        """Tell `fleet` what is lost and what fits, and `listeners` the rest."""
        self.ears: dict[str, Ear] = {}
        self._fleet, self._listeners = fleet, tuple(listeners)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Listen while the block runs."""
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look(self) -> None:
        context: zmq.asyncio.Context | None = None
        try:
            while True:
                wanted = {
                    name: (one.upstream.kv_events, one.upstream.kv_events_replay)
                    for name, one in self._fleet.replicas.items()
                    if one.upstream.kv_events
                }
                for name in [name for name, ear in self.ears.items() if wanted.get(name) != ear.places]:
                    self._tasks.pop(name).cancel()
                    del self.ears[name]
                for name, (events, replay) in wanted.items():
                    if name not in self.ears and events is not None:
                        context = context or zmq.asyncio.Context()
                        ear = self.ears[name] = Ear(name, events, replay, self._fleet, self._listeners)
                        self._tasks[name] = asyncio.create_task(ear.listen(context))
                await asyncio.sleep(LOOK_S)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if context is not None:
                context.destroy(linger=0)


class Ear:
    """One upstream's messages, in order."""

    def __init__(self, name: str, events: str, replay: str | None, fleet: Fleet, listeners: Sequence[Listener]) -> None:
        self.account = Account()
        self.turns = self.garbled = self.gaps = self.restarts = 0
        self.places = (events, replay)
        self.last: int | None = None  # the number of the latest message that was taken in
        self._name, self._fleet, self._listeners = name, fleet, listeners
        self._mark = 0  # a hash of that message, by which a restarted publisher is told from a slow one
        self._bounded: int | None = None
        self._rest_until = float("-inf")

    async def listen(self, context: zmq.asyncio.Context) -> None:
        """Take in what comes, for ever. Ends only where the address cannot be one."""
        try:
            with context.socket(zmq.SUB) as socket:
                _furnish(socket)
                socket.setsockopt(zmq.SUBSCRIBE, b"")
                socket.connect(self.places[0])
                while True:
                    frames = await socket.recv_multipart()
                    self.turns += 1
                    try:
                        number, payload = message_of(frames)
                    except Garbled:
                        self.garbled += 1
                    else:
                        await self._live(context, number, payload)
                    await asyncio.sleep(0)  # a receipt that need not wait does not let others go first
        except zmq.ZMQError as error:
            log.warning("kv_events_unusable", upstream=self._name, where=self.places[0], why=str(error))

    async def _live(self, context: zmq.asyncio.Context, number: int, payload: bytes) -> None:
        """Take in a message as it is published, after what is missing before it."""
        if self.last is not None and number <= self.last:
            self._restarted()
        first = self.last is None and not self.restarts
        if self.last is None:
            self.account.begun()
        if number > (0 if self.last is None else self.last + 1):
            self.gaps += 1
            if not await self._fill(context, number, quietly=first):
                self.account.missed()
        self._take(number, payload, quietly=False)

    async def _fill(self, context: zmq.asyncio.Context, until: int, *, quietly: bool) -> bool:
        """Ask for what was missed before message `until`. Return whether all of it came."""
        now = asyncio.get_running_loop().time()
        if self.places[1] is None or now < self._rest_until:
            return False
        try:
            async with asyncio.timeout(REPLAY_S):
                if await self._replayed(context, self.places[1], until, quietly=quietly):
                    self._restarted()
                    self.account.begun()
                    await self._replayed(context, self.places[1], until, quietly=False)
        except TimeoutError:
            self._rest_until = asyncio.get_running_loop().time() + REST_S
            log.info("kv_events_replay_failed", upstream=self._name)
        return self.last == until - 1

    async def _replayed(self, context: zmq.asyncio.Context, where: str, until: int, *, quietly: bool) -> bool:
        """Take in what is played again. Return True where the message that was heard last is another one now."""
        with context.socket(zmq.DEALER) as socket:
            _furnish(socket)
            socket.connect(where)
            await socket.send_multipart([b"", (self.last or 0).to_bytes(8, "big")])
            while True:
                frames = await socket.recv_multipart()
                await asyncio.sleep(0)
                if len(frames) >= 2 and frames[-2] == END:  # noqa: PLR2004 - number and payload
                    return False
                try:
                    number, payload = message_of(frames)
                except Garbled:
                    self.garbled += 1
                    continue
                if number == self.last and xxhash.xxh3_64_intdigest(payload) != self._mark:
                    return True
                if number < until and (self.last is None or number > self.last):
                    if number != (0 if self.last is None else self.last + 1):
                        self.account.missed()
                    self._take(number, payload, quietly=quietly)

    def _take(self, number: int, payload: bytes, *, quietly: bool) -> None:
        """Take in one message. `quietly`: what was cleared before anyone listened is no news."""
        self.last, self._mark = number, xxhash.xxh3_64_intdigest(payload)
        try:
            batch = batch_of(payload)
        except Garbled:
            self.garbled += 1
            self.account.missed()
            return
        for event in batch.events:
            self.account.take(event)
            if isinstance(event, Cleared):
                self._forgotten(tell=not quietly)
            for listener in self._listeners:
                if isinstance(event, Stored):
                    listener.stored(self._name, event)
                elif isinstance(event, Removed):
                    listener.removed(self._name, event)
        if not batch.whole:
            self.garbled += 1
            self.account.missed()
        capacity = self.account.capacity
        if capacity is not None and capacity != self._bounded:
            self._bounded = capacity
            self._fleet.bound(self._name, capacity)

    def _restarted(self) -> None:
        self.restarts += 1
        self.last = None
        log.info("kv_events_restarted", upstream=self._name)
        self._forgotten(tell=True)

    def _forgotten(self, *, tell: bool) -> None:
        if tell and self._name in self._fleet.replicas:
            self._fleet.lost(self._name)
        for listener in self._listeners:
            listener.cleared(self._name)


def _furnish(socket: zmq.asyncio.Socket) -> None:
    """Bound what a socket takes, and let it come back by itself."""
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RCVHWM, QUEUE),
        (zmq.MAXMSGSIZE, MESSAGE_BYTES),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS),
    ):
        socket.setsockopt(option, value)
