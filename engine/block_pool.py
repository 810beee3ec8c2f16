"""Physical KV blocks: which are free, and where the free ones lie next to each other.

Owns the free map. Knows no tensors, no tokens and no tree. Rule: every block is either free here or taken by exactly
one holder outside; free blocks are kept as extents (contiguous runs), because attention reads an extent as a view
where scattered blocks would have to be gathered.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NewType

BlockId = NewType("BlockId", int)

GROWTH_ROOM = 4  # a new run starts in the middle of a free extent at least this many times its length


class OutOfBlocks(Exception):
    """Fewer blocks are free than were wanted; nothing was taken."""

    def __init__(self, *, wanted: int, free: int) -> None:
        super().__init__(f"wanted {wanted} blocks, {free} are free")
        self.wanted, self.free = wanted, free


class BlockPool:
    """All blocks of one device. `take` and `give` cost O(extents touched · log extents)."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one block, not {size}")
        self.size = size
        self._taken = bytearray(size)  # 1: somebody holds it
        self._length: dict[int, int] = {}  # start of a free extent → its length
        self._start: dict[int, int] = {}  # one past its end → its start
        self._sorted: list[tuple[int, int]] = []  # (length, start), shortest first
        self._free = 0
        self._insert(0, size)

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return self._free

    @property
    def extents(self) -> int:
        """Free extents; 1 when nothing is fragmented."""
        return len(self._sorted)

    @property
    def longest_run(self) -> int:
        """Blocks of the longest free extent."""
        return self._sorted[-1][0] if self._sorted else 0

    def take(self, count: int, *, after: BlockId | None = None) -> list[BlockId]:
        """Return `count` blocks, contiguous as far as the free map allows, growing on from `after` where that is free.

        Raises OutOfBlocks, and then nothing was taken.
        """
        if count > self._free:
            raise OutOfBlocks(wanted=count, free=self._free)
        taken: list[BlockId] = []
        if after is not None and after + 1 in self._length:
            taken += self._cut(after + 1, min(count, self._length[after + 1]))
        while len(taken) < count:
            missing = count - len(taken)
            length, start = self._sorted[-1]
            if not taken and length >= GROWTH_ROOM * missing:
                taken += self._cut(start, missing, skip=length // 2)  # leaves the run before it room to grow
                continue
            if length > missing:
                length, start = self._sorted[bisect_left(self._sorted, (missing, -1))]  # the tightest that fits
            taken += self._cut(start, min(missing, length))
        return taken

    def give(self, blocks: Iterable[BlockId]) -> None:
        """Take back blocks that their holder no longer uses. Neighbours melt into one extent."""
        ordered = sorted(blocks)
        at = 0
        while at < len(ordered):
            end = at + 1
            while end < len(ordered) and ordered[end] == ordered[end - 1] + 1:
                end += 1
            self._insert(ordered[at], end - at, returned=True)
            at = end

    def check(self) -> None:
        """Raise if a block is lost, doubled or in a broken extent. O(blocks)."""
        assert sorted((n, s) for s, n in self._length.items()) == self._sorted, "the sorted view disagrees with the map"
        assert {s + n: s for s, n in self._length.items()} == self._start, "ends disagree with starts"
        free = [block for start, n in self._length.items() for block in range(start, start + n)]
        assert len(free) == len(set(free)) == self._free, "a block is free twice or miscounted"
        assert not any(self._taken[block] for block in free), "a block is both free and taken"
        assert len(free) + sum(self._taken) == self.size, "a block was lost"
        assert not any(s + n in self._length for s, n in self._length.items()), "free neighbours were not melted"

    def _cut(self, extent: int, count: int, *, skip: int = 0) -> list[BlockId]:
        """Take `count` blocks out of the free extent that starts at `extent`, leaving its first `skip` free."""
        length = self._remove(extent)
        start = extent + skip
        if skip:
            self._add(extent, skip)
        if skip + count < length:
            self._add(start + count, length - skip - count)
        self._taken[start : start + count] = b"\1" * count
        self._free -= count
        return [BlockId(block) for block in range(start, start + count)]

    def _insert(self, start: int, count: int, *, returned: bool = False) -> None:
        if returned and self._taken[start : start + count] != b"\1" * count:
            raise AssertionError(f"blocks [{start}, {start + count}) were given back twice")
        self._taken[start : start + count] = bytes(count)
        self._free += count
        if (before := self._start.get(start)) is not None:
            count += self._remove(before)
            start = before
        if start + count in self._length:
            count += self._remove(start + count)
        self._add(start, count)

    def _add(self, start: int, length: int) -> None:
        self._length[start] = length
        self._start[start + length] = start
        insort(self._sorted, (length, start))

    def _remove(self, start: int) -> int:
        length = self._length.pop(start)
        del self._start[start + length]
        del self._sorted[bisect_left(self._sorted, (length, start))]
        return length
