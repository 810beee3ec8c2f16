"""Which idle leaf goes next: by deadline, and by pressure.

Owns two lazy heaps. Knows no tree shape and no clock. Rule: a node has at most one entry a queue; its true key only
grows (renewal, use, promotion), so an entry that is older than its node is put back with the true key when it surfaces,
and one whose node is no longer an idle leaf is dropped. Both are O(log n) amortised.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

from prefix_store.node import Node
from prefix_store.retention import Kept

P = TypeVar("P")
Key = tuple[float, ...]
SLACK = 64  # dead entries that are not worth a rebuild


def by_deadline(node: Node[Any]) -> Key:
    """First to expire first."""
    return (node.deadline,)


def by_pressure(node: Node[Any]) -> Key:
    """Held before promised; held by least recent use, promised by priority, then least recent use."""
    priority = node.retention.priority if node.kept is Kept.PROMISED and node.retention is not None else 0
    return (node.kept, priority, node.used)


class IdleLeaves(Generic[P]):
    """A lazy heap of idle leaves, ordered by `key`."""

    def __init__(self, key: Callable[[Node[P]], Key], bit: int) -> None:
        self._key = key
        self._bit = bit  # this queue's bit in `Node.queued`
        self._heap: list[tuple[Key, int, Node[P]]] = []
        self._order = count()  # ties go in the order of arrival; nodes are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: Node[P]) -> None:
        """Enter an idle leaf; one that is entered already stays where it is."""
        if not node.queued & self._bit:
            node.queued |= self._bit
            heappush(self._heap, (self._key(node), next(self._order), node))

    def first(self) -> Node[P] | None:
        """Return the idle leaf with the smallest true key, still entered; None when there is none."""
        while self._heap:
            entered, _, node = self._heap[0]
            if node.idle_leaf:
                true = self._key(node)
                if true == entered:
                    return node
                heappop(self._heap)
                heappush(self._heap, (true, next(self._order), node))
            else:
                heappop(self._heap)
                node.queued &= ~self._bit
        return None

    def trim(self, live: int) -> None:
        """Rebuild when most entries speak of nodes that are gone. `live` bounds how many can be true."""
        if len(self._heap) <= 2 * live + SLACK:
            return
        kept = []
        for entry in self._heap:
            if entry[2].idle_leaf:
                kept.append(entry)
            else:
                entry[2].queued &= ~self._bit
        self._heap = kept
        heapify(self._heap)
