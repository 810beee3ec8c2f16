"""Which idle leaf goes next: by deadline, and by pressure.

Owns two lazy heaps. Knows no tree shape and no clock. Rule: a node has at most one entry a queue, never later than its
true key. That key grows (renewal, use, promotion), so an entry that is older than its node is put back with the true
key when it surfaces, and one whose node is no longer an idle leaf is dropped. Both are O(log n) amortised. Where a key
falls, the owner discards the entry.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any, Generic, TypeVar

from prefix_store.node import Node
from prefix_store.retention import Kept

P = TypeVar("P")
Key = tuple[float, ...]
Entry = tuple[Any, ...]  # the key's parts, a serial number that breaks ties, the node: flat, so that it compares fast
CROWDED = 1.33  # entries for each node of the tree, beyond which those of nodes that are gone are cleared out
SLACK = 32  # entries that are not worth it
MOVED = 6  # entries looked at for each node that goes; with CROWDED it keeps a queue below 2 · nodes + 64


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
        self._heap: list[Entry] = []
        self._aged: list[Entry] = []  # another heap, moved over into the first one without nodes that are gone
        self._order = count()  # ties go in the order of arrival; nodes are never compared

    def __len__(self) -> int:
        return len(self._heap) + len(self._aged)

    def push(self, node: Node[P]) -> None:
        """Enter an idle leaf; one that is entered already stays where it is."""
        if not node.queued & self._bit:
            node.queued |= self._bit
            heappush(self._heap, (*self._key(node), next(self._order), node))

    def discard(self, node: Node[P]) -> None:
        """Forget a node whose key fell, which only a write over another class can do. O(entries)."""
        if node.queued & self._bit:
            node.queued &= ~self._bit
            for heap in (self._heap, self._aged):
                heap[:] = [entry for entry in heap if entry[-1] is not node]
                heapify(heap)

    def first(self) -> Node[P] | None:
        """Return the idle leaf with the smallest true key, still entered; None when there is none."""
        top = self._top(self._heap)
        if self._aged and (other := self._top(self._aged)) is not None:
            top = other if top is None else min(top, other)
        node: Node[P] | None = None if top is None else top[-1]
        return node

    def trim(self, live: int) -> None:
        """Clear out nodes that are gone when there are too many for `live` ones; called for each that goes. O(log n).

        Any heap stays one without its last entry, so an aged heap is moved over from its end, a few entries at a time:
        no removal ever waits for a rebuild of everything.
        """
        if not self._aged and len(self._heap) > CROWDED * live + SLACK:
            self._heap, self._aged = [], self._heap
        aged = self._aged
        for _ in range(min(MOVED, len(aged))):
            entry = aged.pop()
            if entry[-1].parent is not None:
                heappush(self._heap, entry)

    def _top(self, heap: list[Entry]) -> Entry | None:
        """Return the smallest entry of one heap that is true, putting back or dropping those that are not."""
        while heap:
            top = heap[0]
            node: Node[P] = top[-1]
            if not node.idle_leaf:
                heappop(heap)
                node.queued &= ~self._bit
            elif (true := self._key(node)) != top[:-2]:
                heapreplace(heap, (*true, next(self._order), node))
            else:
                return top
        return None
