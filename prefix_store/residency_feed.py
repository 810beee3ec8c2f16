"""What gateways tell each other of where prefixes live and how much work waits: news, what waits to be told, the feed.

Owns the form of a batch and the bound on what waits. Knows no server and no clock. Rules:
- a prefix is its packed links, hashes under a secret that the gateways share: nobody reads a prompt from them;
- times travel as seconds left or seconds ago, for no two machines share a monotonic clock;
- what waits is bounded by bytes: the oldest prefixes go first, what is lost is never left out;
- what cannot be read is nothing, and is told apart from what can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from prefix_store.residency_node import LINK_BYTES

BATCH_BYTES: Final = 64 << 10
WAITING_BYTES: Final = 1 << 20
PATH_BYTES: Final = 32 << 10  # of one prefix; the beginning of a longer one is told
OVERHEAD: Final = 64  # bytes of an item besides its links, at most
TAG_BYTES: Final = 16

Tag = Annotated[bytes, Meta(max_length=TAG_BYTES)]


class Kept(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """That a replica holds a prefix, for so many seconds more; it was used so long ago."""

    replica: Tag
    model: Tag
    path: bytes
    left_s: float
    ago_s: float

    def __post_init__(self) -> None:
        """Refuse what cannot be a chain or a time."""
        if (
            len(self.path) > PATH_BYTES
            or len(self.path) % LINK_BYTES
            or not _sound(self.left_s)
            or not _sound(self.ago_s)
        ):
            raise ValueError("not a prefix with a time")


class Refuted(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """That what a replica last used so long ago is not there any more."""

    replica: Tag
    model: Tag
    ago_s: float

    def __post_init__(self) -> None:
        """Refuse what cannot be a time."""
        if not _sound(self.ago_s):
            raise ValueError("not a time")


class Lost(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """That a replica holds nothing any more: it restarted, was reset or is gone."""

    replica: Tag


News = Kept | Refuted | Lost


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """What one gateway tells at one time, in the order in which it came about."""

    gateway: Tag
    news: list[News]


class Load(msgspec.Struct, frozen=True, array_like=True):
    """The work that one gateway has sent, in tokens: by model and by replica."""

    gateway: Tag
    work: list[tuple[Tag, Tag, float]]

    def __post_init__(self) -> None:
        """Refuse what cannot be an amount of work."""
        if not all(_sound(tokens) for _, _, tokens in self.work):
            raise ValueError("not an amount of work")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one call brought: batches with their ages in seconds, each other gateway's load, whether more waits."""

    batches: list[tuple[float, bytes]]
    loads: list[bytes] | None  # None: nobody asked
    more: bool


class Feed(Protocol):
    """Where batches and loads go, and whence those of others come."""

    async def exchange(self, batch: bytes | None, load: bytes | None, *, ask_loads: bool) -> Heard:
        """Tell and hear in one call. Raises StoreUnavailable; what was to be told may have been told."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


_ENCODER: Final = msgspec.msgpack.Encoder()
_BATCH: Final = msgspec.msgpack.Decoder(Batch)
_LOAD: Final = msgspec.msgpack.Decoder(Load)


def packed(told: Batch | Load) -> bytes:
    """Write a batch or a load as bytes."""
    return _ENCODER.encode(told)


def batch_of(data: bytes) -> Batch | None:
    """Read a batch; None where the bytes are none."""
    try:
        return _BATCH.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None


def load_of(data: bytes) -> Load | None:
    """Read a load; None where the bytes are none."""
    try:
        return _LOAD.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Waiting:
    """One thing that waits to be told. `at` is a deadline, `used` a last use, in the caller's monotonic seconds."""

    key: tuple[str, bytes, bytes, bytes]
    replica: bytes
    model: bytes
    path: bytes
    at: float
    used: float = 0.0

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.path) + OVERHEAD

    def news(self, now: float) -> News:
        """Say it as others can read it now."""
        match self.key[0]:
            case "kept":
                return Kept(self.replica, self.model, self.path, self.at - now, max(0.0, now - self.used))
            case "refuted":
                return Refuted(self.replica, self.model, max(0.0, now - self.used))
            case _:
                return Lost(self.replica)


class Outbox:
    """What waits to be told, in order. Told twice while it waits, it is told once, as it was said last."""

    def __init__(self, *, most_bytes: int = WAITING_BYTES) -> None:
        self._waiting: dict[tuple[str, bytes, bytes, bytes], Waiting] = {}
        self._most = most_bytes
        self.bytes = 0
        self.dropped = 0  # prefixes that nobody will hear of

    def __len__(self) -> int:
        """Count what waits."""
        return len(self._waiting)

    def kept(self, replica: bytes, model: bytes, path: bytes, deadline: float, used: float) -> None:
        """Say that a replica holds a prefix until `deadline`, and used it at `used`."""
        if path:
            path = path[:PATH_BYTES]
            key = ("kept", replica, model, path[-LINK_BYTES:])
            self._put(Waiting(key, replica, model, path, deadline, used))

    def refuted(self, replica: bytes, model: bytes, used: float) -> None:
        """Say that what a replica used no later than `used` is not there any more."""
        self._put(Waiting(("refuted", replica, model, b""), replica, model, b"", 0.0, used))

    def lost(self, replica: bytes) -> None:
        """Say that a replica holds nothing any more. What waits of it is not worth telling."""
        for key in [key for key in self._waiting if key[1] == replica]:
            self._drop(key)
        self._put(Waiting(("lost", replica, b"", b""), replica, b"", b"", 0.0))

    def peek(self, now: float, *, most_bytes: int = BATCH_BYTES) -> list[Waiting]:
        """Return what goes into the next batch; what is over by now is dropped."""
        chosen: list[Waiting] = []
        size = 0
        for key, one in list(self._waiting.items()):
            if key[0] == "kept" and one.at <= now:
                self._drop(key)
                continue
            size += one.size
            if size > most_bytes and chosen:
                break
            chosen.append(one)
        return chosen

    def told(self, chosen: Iterable[Waiting]) -> None:
        """Hear that these were told. What was said anew meanwhile goes on waiting."""
        for one in chosen:
            if self._waiting.get(one.key) is one:
                self._drop(one.key)

    def _put(self, one: Waiting) -> None:
        if one.key in self._waiting:
            self._drop(one.key)
        self._waiting[one.key] = one
        self.bytes += one.size
        while self.bytes > self._most:
            oldest = next((key for key in self._waiting if key[0] == "kept"), None)
            if oldest is None:
                return
            self._drop(oldest)
            self.dropped += 1

    def _drop(self, key: tuple[str, bytes, bytes, bytes]) -> None:
        self.bytes -= self._waiting.pop(key).size


def _sound(number: float) -> bool:
    return math.isfinite(number) and number >= 0
