"""How many things were used after a given one: a stack of recency whose ranks cost next to nothing. Pure.

Owns slots on a line, the newest last: taken ones are bits of large integers, with counts by chunk and by row of chunks.
Rule: a slot is a place in time, never reused; when the line is full, `compact` closes its gaps.
"""

from __future__ import annotations

from collections.abc import Iterable

CHUNK_BITS, ROW_BITS = 10, 15  # slots of a chunk, of a row of chunks
WITHIN = (1 << CHUNK_BITS) - 1
ROW_CHUNKS_BITS = ROW_BITS - CHUNK_BITS


class Recency:
    """Slots in the order of their use."""

    def __init__(self, room: int) -> None:
        """Make a line of `room` slots."""
        self._room = room
        self._next: int
        self.live: int
        self._clear()

    @property
    def left(self) -> int:
        """How many slots can still be taken before the line must be compacted."""
        return self._room - self._next

    def take(self) -> int:
        """Take the newest slot."""
        slot = self._next
        assert slot < self._room, "compact in time"
        self._next = slot + 1
        chunk = slot >> CHUNK_BITS
        self._bits[chunk] |= 1 << (slot & WITHIN)
        self._chunks[chunk] += 1
        self._rows[slot >> ROW_BITS] += 1
        self.live += 1
        return slot

    def drop(self, slot: int) -> None:
        """Empty a taken slot."""
        chunk = slot >> CHUNK_BITS
        self._bits[chunk] ^= 1 << (slot & WITHIN)
        self._chunks[chunk] -= 1
        self._rows[slot >> ROW_BITS] -= 1
        self.live -= 1

    def above(self, slot: int) -> int:
        """Count the taken slots newer than `slot`."""
        chunk, row = slot >> CHUNK_BITS, slot >> ROW_BITS
        newer = (self._bits[chunk] >> (slot & WITHIN) >> 1).bit_count()
        newer += sum(self._chunks[chunk + 1 : (row + 1) << ROW_CHUNKS_BITS])
        return newer + sum(self._rows[row + 1 :])

    def compact(self, taken: Iterable[int]) -> dict[int, int]:
        """Close the gaps between all `taken` slots; return where each one is now."""
        slots = sorted(taken)
        self._clear()
        return {slot: self.take() for slot in slots}

    def _clear(self) -> None:
        self._bits = [0] * ((self._room >> CHUNK_BITS) + 1)
        self._chunks = [0] * len(self._bits)
        self._rows = [0] * ((self._room >> ROW_BITS) + 1)
        self._next = 0
        self.live = 0
