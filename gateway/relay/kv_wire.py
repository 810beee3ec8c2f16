"""What vLLM says of its cache, read from bytes: batches of blocks stored, removed and cleared. Pure.

Rules: events come as arrays or as objects, by vLLM's version, and both are read; fields and events that are not known
are passed over; token ids are read by whoever wants them, and block hashes are vLLM's own and compare with nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw

END: Final = (-1).to_bytes(8, "big", signed=True)  # after the last batch that is played again
SEQUENCE_BYTES: Final = 8
HERE: Final = frozenset({None, "GPU"})  # the media of which requests read; others hold copies

BlockHash = int | bytes
Hashes = list[BlockHash]


class Garbled(ValueError):
    """What came is no message of vLLM's."""


class Stored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """Blocks are there now, each after the one before it, the first after its parent."""

    block_hashes: Hashes
    parent_block_hash: BlockHash | None
    token_ids: Raw
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Raw | None = None
    group_idx: int | None = None

    def tokens(self) -> list[int]:
        """Return the token ids of all its blocks. Raises Garbled."""
        try:
            return _IDS.decode(self.token_ids)
        except msgspec.MsgspecError as error:
            raise Garbled(str(error)) from error


class Removed(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    """Blocks are there no longer."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """Nothing is there any more."""


class _StoredRow(Stored, frozen=True, array_like=True, tag="BlockStored"):
    pass


class _RemovedRow(Removed, frozen=True, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedRow(Cleared, frozen=True, array_like=True, tag="AllBlocksCleared"):
    pass


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step changed. `whole` unless an event was passed over."""

    events: list[Event]
    whole: bool


class _Batch(msgspec.Struct, frozen=True):
    ts: float
    events: list[Raw]
    data_parallel_rank: int | None = None


class _BatchRow(_Batch, frozen=True, array_like=True):
    pass


_IDS: Final = msgspec.msgpack.Decoder(list[int])
_BATCHES: Final = msgspec.msgpack.Decoder(_Batch), msgspec.msgpack.Decoder(_BatchRow)
_EVENTS: Final = (
    msgspec.msgpack.Decoder(Stored | Removed | Cleared),
    msgspec.msgpack.Decoder(_StoredRow | _RemovedRow | _ClearedRow),
)


def message_of(frames: list[bytes]) -> tuple[int, bytes]:
    """Return sequence number and payload of a published message: topic, number, payload. Raises Garbled."""
    if len(frames) < 3 or len(frames[-2]) != SEQUENCE_BYTES:  # noqa: PLR2004 - its three frames
        raise Garbled("a message is a topic, a sequence number of 8 bytes and a payload")
    return int.from_bytes(frames[-2], "big"), frames[-1]


def batch_of(payload: bytes) -> Batch:
    """Read a payload. Raises Garbled."""
    try:
        told = _BATCHES[_is_row(payload)].decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Garbled(str(error)) from error
    events: list[Event] = []
    for raw in told.events:
        data = bytes(raw)
        try:
            events.append(_EVENTS[_is_row(data)].decode(data))
        except (msgspec.MsgspecError, RecursionError):
            continue
    return Batch(events, whole=len(events) == len(told.events))


def _is_row(data: bytes) -> bool:
    """Tell whether msgpack begins with an array."""
    return bool(data) and (0x90 <= data[0] <= 0x9F or data[0] in {0xDC, 0xDD})  # noqa: PLR2004 - msgpack's own marks
