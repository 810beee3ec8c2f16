"""How many things were used after a given one: a stack of recency with ranks in O(log n). Pure.

Owns slots on a line, the newest last, counted by a binary indexed tree (Fenwick, 1994). Rule: a slot is a place in
time, never reused; when the line is full, `compact` closes its gaps.
"""

from __future__ import annotations

from collections.abc import Iterable


class Recency:
    """Slots in the order of their use."""

    def __init__(self, room: int) -> None:
        """Make a line of `room` slots."""
        self._room = room
        self._counts = [0] * (room + 1)
        self._next = 1
        self.live = 0

    @property
    def left(self) -> int:
        """How many slots can still be taken before the line must be compacted."""
        return self._room + 1 - self._next

    def take(self) -> int:
        """Take the newest slot."""
        slot = self._next
        assert slot <= self._room, "compact in time"
        self._next += 1
        self._add(slot, 1)
        self.live += 1
        return slot

    def drop(self, slot: int) -> None:
        """Empty a taken slot."""
        self._add(slot, -1)
        self.live -= 1

    def above(self, slot: int) -> int:
        """Count the taken slots newer than `slot`."""
        counts, older = self._counts, 0
        while slot:
            older += counts[slot]
            slot &= slot - 1
        return self.live - older

    def compact(self, taken: Iterable[int]) -> dict[int, int]:
        """Close the gaps between all `taken` slots; return where each one is now."""
        moved = {slot: place for place, slot in enumerate(sorted(taken), 1)}
        self._counts = [0] * (self._room + 1)
        self._next, self.live = 1, 0
        for _ in moved:
            self.take()
        return moved

    def _add(self, slot: int, change: int) -> None:
        counts, room = self._counts, self._room
        while slot <= room:
            counts[slot] += change
            slot += slot & -slot
