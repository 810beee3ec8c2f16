"""One sequence's blocks in token order, and the extents they form.

Owns the list and its run-length view; knows no pool and no tree. Rule: block i holds tokens [i·B, (i+1)·B), and the
extents always spell exactly the same blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from engine.block_pool import BlockId
from engine.operator_messages import EXTENTS


class BlockTable:
    """Blocks of one sequence. Appending is O(1) a block; `replace` rebuilds the extents."""

    __slots__ = ("_blocks", "_runs", "block_tokens")

    def __init__(self, block_tokens: int, blocks: Iterable[BlockId] = ()) -> None:
        self.block_tokens = block_tokens
        self._blocks: list[BlockId] = []
        self._runs: list[tuple[int, int]] = []  # (first block, blocks), in token order
        self.append(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: slice) -> list[BlockId]:
        return self._blocks[index]

    @property
    def last(self) -> BlockId | None:
        """The block that holds the newest tokens."""
        return self._blocks[-1] if self._blocks else None

    @property
    def tokens(self) -> int:
        """Tokens that fit."""
        return len(self._blocks) * self.block_tokens

    @property
    def pieces(self) -> int:
        """Extents that its blocks form."""
        return len(self._runs)

    def append(self, blocks: Iterable[BlockId]) -> None:
        """Add blocks at the end."""
        for block in blocks:
            self._blocks.append(block)
            if self._runs and sum(self._runs[-1]) == block:
                self._runs[-1] = (self._runs[-1][0], self._runs[-1][1] + 1)
            else:
                self._runs.append((block, 1))

    def replace(self, start: int, blocks: Sequence[BlockId]) -> None:
        """Put `blocks` in the place of those from index `start` on, as many as given."""
        if self._blocks[start : start + len(blocks)] == blocks:
            return
        self._blocks[start : start + len(blocks)] = blocks
        everything, self._blocks, self._runs = self._blocks, [], []
        self.append(everything)

    def extents(self, tokens: int) -> list[tuple[int, int]]:
        """Return (first slot, tokens) of each contiguous stretch that holds tokens [0, tokens), in order."""
        stretches: list[tuple[int, int]] = []
        for first, blocks in self._runs:
            if tokens <= 0:
                break
            count = min(tokens, blocks * self.block_tokens)
            stretches.append((first * self.block_tokens, count))
            tokens -= count
        return stretches

    def slots(self, start: int, count: int) -> list[tuple[int, int]]:
        """Return (first slot, tokens) of each contiguous stretch that holds tokens [start, start + count)."""
        stretches: list[tuple[int, int]] = []
        for slot, length in self.extents(start + count):
            skip = min(start, length)
            start -= skip
            if length > skip:
                stretches.append((slot + skip, length - skip))
        return stretches

    def check(self) -> None:
        """Raise if the extents spell other blocks than the list, or a block stands twice."""
        spelt = [block for first, n in self._runs for block in range(first, first + n)]
        assert spelt == self._blocks, "extents disagree with the table"
        assert len(set(self._blocks)) == len(self._blocks), "a block stands twice in one table"


class Scatter:
    """In how many extents tables lay at their end: an exact histogram over `EXTENTS`. Only the cache writes it."""

    def __init__(self) -> None:
        self.counts = [0] * (len(EXTENTS) + 1)  # the last one counts all that had more
        self.total = 0  # extents of all tables together

    def add(self, table: BlockTable) -> None:
        """Count one table; one without blocks says nothing."""
        if table.pieces:
            self.counts[bisect_left(EXTENTS, table.pieces)] += 1
            self.total += table.pieces
