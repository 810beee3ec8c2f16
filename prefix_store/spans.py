"""How long blocks live, lie idle and wait for their next reader: exact histograms, kept as things happen.

Owns the counts. Knows no clock and no tree shape. Rules: every block counts, none is sampled; a value falls under the
first edge that is not below it; what is read while somebody still uses it has waited for no time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from prefix_store.node import Births, Node

SPANS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)  # a second to a day


class Span:
    """One histogram over `SPANS_S`, in blocks; its last count is of all that is longer than a day."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SPANS_S) + 1)
        self.total_s = 0.0  # seconds of all blocks together

    def add(self, seconds: float, blocks: int) -> None:
        """Count blocks for which it was so long. O(log edges)."""
        self.counts[bisect_left(SPANS_S, seconds)] += blocks
        self.total_s += seconds * blocks

    @property
    def blocks(self) -> int:
        """Blocks that were counted."""
        return sum(self.counts)


class Spans:
    """What one tree has seen since it was made; only the tree writes it."""

    def __init__(self) -> None:
        self.lifetime = Span()  # from a block's writing to its going, whatever it went of
        self.idle_before_evict = Span()  # from the last use of a block to when pressure took it
        self.reuse_gap = Span()  # from the use before to a read
        self.age_at_read = Span()  # from a block's writing to a read
        self.written = 0  # blocks

    def come(self, blocks: int) -> None:
        """Count blocks that were written."""
        self.written += blocks

    def read(self, path: Iterable[Node[Any]], now: float) -> None:
        """Count the read of a path, before it is renewed and leased. O(1) a node and a stretch written at once."""
        for node in path:
            self.reuse_gap.add(0.0 if node.leases else now - node.used, len(node.payload))
            for born, blocks in node.births:
                self.age_at_read.add(now - born, blocks)

    def press(self, used: float, blocks: int, now: float) -> None:
        """Count blocks that pressure takes."""
        self.idle_before_evict.add(now - used, blocks)

    def go(self, births: Births, now: float) -> None:
        """Count blocks that leave the tree."""
        for born, blocks in births:
            self.lifetime.add(now - born, blocks)
