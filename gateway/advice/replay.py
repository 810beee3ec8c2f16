"""The slow truth: one trace replayed under one policy, block by block. Pure.

Decides as the tree does: a prompt reads its longest run of leading blocks that are there and alive, and renews them;
under pressure what is expired goes first, then by the order, leaves first, never what the prompt itself uses. A prompt
that has more blocks than there is room for keeps its beginning.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Literal

from prefix_store.reuse import Use

Order = Literal["lru", "lfu"]
Key = tuple[int, ...]


class _Entry:
    __slots__ = ("deadline", "key", "uses")

    def __init__(self, deadline: float, uses: int, key: Key) -> None:
        self.deadline, self.uses, self.key = deadline, uses, key


class Replay:
    """A cache of `capacity` blocks under one order, with one TTL or each prompt's own."""

    def __init__(self, *, ttl: float | None = None, capacity: float = math.inf, order: Order = "lru") -> None:
        """Begin with nothing. `ttl` is milliseconds."""
        self._ttl, self._capacity, self._order = ttl, capacity, order
        self._entries: dict[int, _Entry] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._victims: list[tuple[Key, int]] = []
        self._turn = 0
        self.read = 0  # tokens
        self.tokens = 0  # of all prompts
        self.evicted = 0  # blocks

    @property
    def blocks(self) -> int:
        """How many blocks are there, those that expired unseen included."""
        return len(self._entries)

    def feed(self, use: Use) -> int:
        """Play one prompt; return how many of its blocks were read."""
        ttl = use.ttl if self._ttl is None else self._ttl
        self._turn += 1
        found = 0
        for block in use.blocks:
            entry = self._entries.get(block)
            if entry is None or use.at >= entry.deadline:
                break
            found += 1
        for depth, block in enumerate(use.blocks[:found]):
            self._touch(block, depth, use.at + ttl)
        fresh = use.blocks[found:]
        for block in fresh:
            self._entries.pop(block, None)  # expired
        room = self._make_room(len(fresh), use.at)
        for depth, block in enumerate(fresh[:room], found):
            self._touch(block, depth, use.at + ttl)
        read = found * use.block_tokens
        if found == len(use.blocks) and found and use.blocks[-1] == use.short:
            read -= use.block_tokens - use.covered % use.block_tokens
        self.read += read
        self.tokens += use.tokens
        return found

    def _touch(self, block: int, depth: int, deadline: float) -> None:
        entry = self._entries.get(block)
        uses = 1 if entry is None else entry.uses + 1
        last = (self._turn, -depth)
        key = last if self._order == "lru" else (uses, *last)
        if entry is None:
            entry = self._entries[block] = _Entry(deadline, uses, key)
        entry.deadline, entry.uses, entry.key = max(entry.deadline, deadline), uses, key
        if self._capacity < math.inf:
            heappush(self._deadlines, (entry.deadline, block))
            heappush(self._victims, (key, block))

    def _make_room(self, wanted: int, now: int) -> int:
        """Give up what must go; return how many blocks there is room for."""
        if self._capacity == math.inf:
            return wanted
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, block = heappop(self._deadlines)
            if block in self._entries and self._entries[block].deadline == deadline:
                del self._entries[block]
        pinned: list[tuple[Key, int]] = []
        while self._victims and len(self._entries) + wanted > self._capacity:
            key, block = heappop(self._victims)
            entry = self._entries.get(block)
            if entry is None or entry.key != key:
                continue
            if key[-2] == self._turn:  # of this very prompt
                pinned.append((key, block))
                continue
            del self._entries[block]
            self.evicted += 1
        for one in pinned:
            heappush(self._victims, one)
        return max(0, min(wanted, math.floor(self._capacity) - len(self._entries)))
