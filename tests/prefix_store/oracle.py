"""The slow truth of the prefix store: a dictionary from token tuples to blocks, and every rule written out naively.

It has no runs, no splits, no queues and no hashes: one entry a block, found by all the tokens before it. Where several
blocks may rightly go first it does not choose, it judges what the tree chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from prefix_store.chain import Namespace
from prefix_store.retention import Kept, Retention
from prefix_store.spans import SPANS_S

Tokens = tuple[int, ...]
Key = tuple[Namespace, Tokens]  # all tokens from the start of the prompt to the block's end


@dataclass
class Block:
    """One block and what holds for it."""

    payload: int
    retention: Retention
    kept: Kept
    deadline: float
    used: float
    born: float
    holds: int = 0


@dataclass
class Tally:
    """How often each span came, block by block."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SPANS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one block."""
        self.counts[sum(edge < seconds for edge in SPANS_S)] += 1
        self.total_s += seconds


class Oracle:
    """What a tree of `block_tokens` a block must answer."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.blocks: dict[Key, Block] = {}
        self.lifetime, self.idle_before_evict, self.reuse_gap, self.age_at_read = (Tally() for _ in range(4))

    def match(self, namespace: Namespace, tokens: Tokens, now: float) -> Tokens:
        """Return the longest prefix of whole blocks that all live."""
        end: Tokens = ()
        for at in range(self.block_tokens, len(tokens) + 1, self.block_tokens):
            block = self.blocks.get((namespace, tokens[:at]))
            if block is None or now >= block.deadline:
                break
            end = tokens[:at]
        return end

    def payload(self, namespace: Namespace, end: Tokens) -> list[int]:
        """Return the payload of every block up to `end`."""
        return [block.payload for block in self._path(namespace, end)]

    def tails(self, namespace: Namespace, tokens: Tokens, now: float) -> dict[int, int]:
        """Return the live partial blocks after the match as payload → shared tokens, only the longest ones."""
        end = self.match(namespace, tokens, now)
        wanted = tokens[len(end) :]
        shared = {}
        for (other, path), block in self.blocks.items():
            if other == namespace and 0 < len(path) - len(end) <= self.block_tokens and path[: len(end)] == end:
                count = min(common(path[len(end) :], wanted), self.block_tokens - 1)
                if count and now < block.deadline:
                    shared[block.payload] = count
        return {payload: count for payload, count in shared.items() if count == max(shared.values())}

    def renew(self, namespace: Namespace, end: Tokens, now: float) -> None:
        """A read up to `end`: each sliding block asks for its own time again, then the path is made consistent."""
        path = self._path(namespace, end)
        for block in path:
            self.reuse_gap.add(0.0 if block.holds else now - block.used)
            self.age_at_read.add(now - block.born)
            block.used = now
            if block.retention.sliding:
                block.deadline = max(block.deadline, now + block.retention.ttl_s)
        self._agree(path)

    def hold(self, namespace: Namespace, end: Tokens) -> None:
        """Nothing up to `end` may go."""
        for block in self._path(namespace, end):
            block.holds += 1

    def let_go(self, namespace: Namespace, end: Tokens, now: float) -> list[int]:
        """Undo one `hold`; return what expired meanwhile and goes now, from the end up."""
        for block in self._path(namespace, end):
            block.holds -= 1
            block.used = max(block.used, now)
        freed = []
        while end and self._idle_leaf((namespace, end)) and self.blocks[namespace, end].deadline <= now:
            freed.append(self._go((namespace, end), now).payload)
            end = end[: -(len(end) % self.block_tokens or self.block_tokens)]
        return freed

    def keep_partial(
        self, namespace: Namespace, end: Tokens, tokens: Tokens, payload: int, now: float, retention: Retention
    ) -> list[int]:
        """Keep a block with fewer tokens than it has room for; return what is free."""
        path = end + tokens
        known = [
            longer
            for other, longer in self.blocks
            if other == namespace and longer[: len(path)] == path and len(longer) <= len(end) + self.block_tokens
        ]
        if path in known:
            self._write(self.blocks[namespace, path], retention, now)
            self._agree(self._path(namespace, path))
            return [payload]
        block = self.blocks[namespace, min(known)] if known else None
        if block and block.deadline >= retention.deadline and block.kept >= retention.kept:
            return [payload]
        free = self._cover(namespace, path, retention, now)
        self.blocks[namespace, path] = Block(payload, retention, retention.kept, retention.deadline, now, now)
        self._agree(self._path(namespace, path))
        return free

    def adopt(
        self, namespace: Namespace, tail_end: Tokens, shared: int, now: float, retention: Retention
    ) -> int | None:
        """Take a partial block out for its only reader, who has let go of it, if it may be written on."""
        block = self.blocks[namespace, tail_end]
        whole = len(tail_end) % self.block_tokens == shared
        if whole and block.holds == 1 and block.kept is Kept.HELD and now < block.deadline <= retention.deadline:
            self.let_go(namespace, tail_end, now)
            return self._go((namespace, tail_end), now).payload
        return None

    def publish(
        self,
        namespace: Namespace,
        end: Tokens,
        tokens: Tokens,
        payload: Sequence[int],
        now: float,
        retention: Retention,
    ) -> tuple[list[int], list[int]]:
        """Write the blocks after a held `end` and hold them too. Return what the store has for them, and the spare."""
        kept, spare, covered = [], [], []
        for index, mine in enumerate(payload):
            key = (namespace, end + tokens[: (index + 1) * self.block_tokens])
            block = self.blocks.get(key)
            if block is None:
                covered += self._cover(namespace, key[1], retention, now)
                block = self.blocks[key] = Block(mine, retention, retention.kept, retention.deadline, now, now)
            else:
                spare.append(mine)
                self._write(block, retention, now)
            block.holds += 1
            kept.append(block.payload)
        self._agree(self._path(namespace, end + tokens))
        return kept, spare + covered

    def judge_evicted(self, freed: Sequence[int], count: int, now: float) -> None:
        """Take out what a tree evicted, and raise unless exactly that had to go."""
        idle = sum(not block.holds for block in self.blocks.values())
        expired = self._take(freed, now)
        assert len(freed) >= min(count, idle), "too little went"
        assert len(freed) - expired <= max(0, count - expired), "more went than had to"

    def judge_swept(self, freed: Sequence[int], now: float) -> None:
        """Take out what a tree swept, and raise unless all of it was expired and nobody's."""
        assert self._take(freed, now) == len(freed), "a live block was swept"

    def sweepable(self, now: float) -> int:
        """Return how many blocks are expired and idle leaves."""
        return sum(self._idle_leaf(key) and block.deadline <= now for key, block in self.blocks.items())

    def _take(self, freed: Sequence[int], now: float) -> int:
        """Take blocks out one by one, each among the first at its moment. Return how many had expired."""
        left, expired = set(freed), 0
        while left:
            order = {key: self._rank(block, now) for key, block in self.blocks.items() if self._idle_leaf(key)}
            first = min(order.values())
            ready = {self.blocks[key].payload: key for key in order if order[key] == first}
            key = ready[next(payload for payload in freed if payload in left and payload in ready)]
            block = self._go(key, now)
            left.remove(block.payload)
            if block.deadline <= now:
                expired += 1
            else:
                self.idle_before_evict.add(now - block.used)
        return expired

    def _write(self, block: Block, retention: Retention, now: float) -> None:
        alive = now < block.deadline
        block.kept = max(block.kept, retention.kept) if alive else retention.kept
        if not alive or retention.deadline > block.deadline:
            block.retention = retention
        block.deadline = max(block.deadline, retention.deadline)
        block.used = now

    def _cover(self, namespace: Namespace, path: Tokens, retention: Retention, now: float) -> list[int]:
        """Take out the partial blocks that the one at the end of `path` goes beyond and outlives."""
        above = (len(path) - 1) // self.block_tokens * self.block_tokens
        free = []
        for cut in range(above + 1, len(path)):
            block = self.blocks.get((namespace, path[:cut]))
            if block and not block.holds and block.kept is Kept.HELD and block.deadline <= retention.deadline:
                free.append(self._go((namespace, path[:cut]), now).payload)
        return free

    def _go(self, key: Key, now: float) -> Block:
        block = self.blocks.pop(key)
        self.lifetime.add(now - block.born)
        return block

    def _rank(self, block: Block, now: float) -> tuple[float, ...]:
        """What goes first: expired, then held by least recent use, then promised by priority and least recent use."""
        if block.deadline <= now:
            return (0, block.deadline)
        if block.kept is Kept.HELD:
            return (1, block.used)
        return (2, block.retention.priority, block.used)

    def _agree(self, path: Sequence[Block]) -> None:
        """No block outlives a fixed one above it; a sliding one lives at least as long as whatever is below it."""
        cap = inf
        for block in path:
            block.deadline = min(block.deadline, cap)
            if not block.retention.sliding:
                cap = block.deadline
        below = -inf
        for block in reversed(path):
            if block.retention.sliding:
                block.deadline = max(block.deadline, below)
            below = max(below, block.deadline)

    def _path(self, namespace: Namespace, end: Tokens) -> list[Block]:
        stops = range(self.block_tokens, len(end) + self.block_tokens, self.block_tokens)
        return [self.blocks[namespace, end[:stop]] for stop in stops]

    def _idle_leaf(self, key: Key) -> bool:
        namespace, path = key
        if len(path) % self.block_tokens:
            return not self.blocks[key].holds
        below = (other for other, longer in self.blocks if other == namespace and longer[: len(path)] == path)
        return not self.blocks[key].holds and sum(1 for _ in below) == 1  # itself


def common(one: Tokens, other: Tokens) -> int:
    """Return how many leading tokens two tuples share."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
