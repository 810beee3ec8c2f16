"""What traffic would read at every time to live and every capacity at once, from a sample of its blocks. Pure.

Where a read renews every ancestor, a block is readable exactly when it was last used less than a TTL ago and fewer
blocks than there is room for were used since: its ancestors were used no earlier and lie above it. So two numbers for
each use decide everything: the gap in time and the distance in blocks.

Blocks are sampled by their hash (SHARDS, Waldspurger et al., FAST 2015): all uses of a block are seen or none, and
distances are scaled by 1/rate. The rate begins at 1, which is exact, and is halved whenever more than `most` blocks are
known; what was counted for blocks that fall out is taken back, so the rest is what the lower rate would have counted
from the start. What is *missed* is scaled up and the rest is read: the whole is known, and blocks that everyone uses
are missed seldom. The error comes from `PARTS` independent parts of the hash space, two-sided 95 %.

Rules: no clock; times are whole milliseconds in the order of use; a gap of exactly the TTL is too long. A TTL or
capacity on an edge is counted exactly, between edges evenly.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from prefix_store.chain import HASH_BYTES
from prefix_store.recency import Recency

HASH_BITS = 64
WHOLE = 1 << HASH_BITS
PARTS = 16  # of the sampled hash space, by the hash's last bits
SPREAD = 2.131  # Student's t with PARTS − 1 degrees of freedom, 95 % two-sided
MOST = 1 << 18  # blocks known at a time
MANY = 1 << 19  # sampled uses after which an eighth of `most` will do: little is counted exactly, much quickly
ENDLESS = math.inf


def sift(packed: bytes, limit: int) -> array[int]:
    """Return the first 8 bytes of each hash of a packed chain that is sampled below `limit`, root first."""
    numbers = array("Q", packed)[:: HASH_BYTES // 8]
    return numbers if limit >= WHOLE else array("Q", [number for number in numbers if number < limit])


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt. `blocks` are 64-bit hashes of its blocks, root first; those that are not sampled may be left out."""

    at: int  # milliseconds
    group: Hashable
    ttl: float  # milliseconds that its blocks are kept now
    tokens: int
    covered: int  # of these, in blocks: the part that can be read
    blocks: Sequence[int]
    block_tokens: int
    short: int = -1  # the block that is not whole, the last one, where such blocks can be read


class Estimate(NamedTuple):
    """A number of tokens, and by how much it may be wrong."""

    tokens: float
    error: float


class Whole(NamedTuple):
    """What came, counted and not sampled."""

    requests: int
    tokens: int
    covered: int


class _Known:
    """A block's last use."""

    __slots__ = ("at", "group", "slot", "weight")

    def __init__(self, at: int, slot: int, group: Hashable, weight: int) -> None:
        self.at, self.slot, self.group, self.weight = at, slot, group, weight


class _Cells:
    """Counts of one group's sampled uses, of blocks that fall out of the sample together."""

    __slots__ = ("distances", "gaps", "idle", "kept")

    def __init__(self, gaps: int, distances: int) -> None:
        self.gaps = array("d", bytes(8 * gaps * PARTS))  # tokens by gap and part, the last bucket: not read at all
        self.distances = array("d", bytes(8 * distances * PARTS))  # the same by distance
        self.kept = array("d", bytes(8 * gaps))  # tokens by gap, whatever the capacity
        self.idle = array("d", bytes(8 * gaps))  # token-milliseconds of those gaps


class Reuse:
    """Gaps and distances of one stream of prompts."""

    def __init__(
        self, *, ttls: Iterable[float], capacities: Iterable[float], capacity: float = ENDLESS, most: int = MOST
    ) -> None:
        """Count up to the edges `ttls` (milliseconds) and `capacities` (blocks), for a cache of `capacity` blocks."""
        self._ttls, self._capacities = sorted(set(ttls)), sorted(set(capacities))
        self._capacity, self._most = capacity, most
        self._never, self._far = len(self._ttls) + 1, len(self._capacities) + 1
        self._ranked = bool(self._capacities) or capacity < ENDLESS  # else no distance is asked for
        self._uses = 0  # sampled
        self._level = 0  # a hash is sampled when it begins with so many zero bits
        self._known: dict[int, _Known] = {}
        self._recency = Recency(4 * most + 4)
        self._cells: dict[Hashable, dict[int, _Cells]] = {}
        self._whole: dict[Hashable, list[int]] = {}
        self.first: int | None = None
        self.last: int | None = None

    # ---- counting ----

    @property
    def limit(self) -> int:
        """Hashes below this are sampled."""
        return WHOLE >> self._level

    @property
    def rate(self) -> float:
        """The share of blocks that are sampled."""
        return 1.0 / (1 << self._level)

    def thin(self, limit: int) -> None:
        """Sample no block from `limit` on: what comes was thinned before."""
        while self.limit > limit:
            self._halve()

    def total(self, group: Hashable, requests: int, tokens: int, covered: int) -> None:
        """Count prompts of which no block is sampled."""
        whole = self._whole.setdefault(group, [0, 0, 0])
        whole[0] += requests
        whole[1] += tokens
        whole[2] += covered

    def observe(self, use: Use) -> None:
        """Count one prompt, which came no earlier than the ones before."""
        self.total(use.group, 1, use.tokens, use.covered)
        if self.first is None:
            self.first = use.at
        self.last = use.at
        limit = self.limit
        blocks = [block for block in use.blocks if block < limit]
        while len(blocks) > self._most:  # a prompt larger than what may be known
            self._halve()
            limit = self.limit
            blocks = [block for block in blocks if block < limit]
        if not blocks:
            return
        if self._uses < MANY <= self._uses + len(blocks):
            self._most = max(1, self._most // 8)
        self._uses += len(blocks)
        for block in blocks:
            self._count(block, use)
        if self._recency.left < len(blocks):
            self._compact()
        for block in reversed(blocks):  # the root is the newest
            self._touch(block, use)
        while len(self._known) > self._most:
            self._halve()

    def _count(self, block: int, use: Use) -> None:
        weight = use.covered % use.block_tokens if block == use.short else use.block_tokens
        part = block % PARTS
        cells = self._of(use.group, block)
        known = self._known.get(block)
        if known is None:
            cells.gaps[self._never * PARTS + part] += weight
            cells.distances[self._far * PARTS + part] += weight
            return
        gap = use.at - known.at
        bucket = bisect_right(self._ttls, gap)
        distance = self._recency.above(known.slot) << self._level if self._ranked else 0
        in_room = distance < self._capacity
        cells.gaps[(bucket if in_room else self._never) * PARTS + part] += weight
        far = bisect_right(self._capacities, distance) if gap < use.ttl else self._far
        cells.distances[far * PARTS + part] += weight
        cells.kept[bucket] += known.weight
        cells.idle[bucket] += known.weight * gap

    def _touch(self, block: int, use: Use) -> None:
        weight = use.covered % use.block_tokens if block == use.short else use.block_tokens
        known = self._known.get(block)
        if known is None:
            self._known[block] = _Known(use.at, self._recency.take(), use.group, weight)
            return
        self._recency.drop(known.slot)
        known.at, known.slot, known.group, known.weight = use.at, self._recency.take(), use.group, weight

    def _of(self, group: Hashable, block: int) -> _Cells:
        levels = self._cells.setdefault(group, {})
        level = HASH_BITS - block.bit_length()
        if level not in levels:
            levels[level] = _Cells(self._never + 1, self._far + 1)
        return levels[level]

    def _halve(self) -> None:
        self._level += 1
        limit = self.limit
        for levels in self._cells.values():
            levels.pop(self._level - 1, None)
        for block in [block for block in self._known if block >= limit]:
            self._recency.drop(self._known.pop(block).slot)

    def _compact(self) -> None:
        moved = self._recency.compact(known.slot for known in self._known.values())
        for known in self._known.values():
            known.slot = moved[known.slot]

    # ---- reading ----

    @property
    def groups(self) -> tuple[Hashable, ...]:
        """Whose traffic was seen."""
        return tuple(self._whole)

    def whole(self, groups: Iterable[Hashable]) -> Whole:
        """Sum up what came from `groups`."""
        sums = [self._whole.get(group, [0, 0, 0]) for group in groups]
        return Whole(*(sum(column) for column in zip([0, 0, 0], *sums, strict=True)))

    def read(self, groups: Iterable[Hashable], ttl: float) -> Estimate:
        """Estimate the tokens that `groups` would read at `ttl`, in the present room."""
        groups = tuple(groups)
        kept = self._below(groups, ttl, by_gap=True)
        return self._rest(groups, kept, by_gap=True)

    def read_within(self, groups: Iterable[Hashable], capacity: float) -> Estimate:
        """Estimate the tokens that `groups` would read at their present TTLs in a cache of `capacity` blocks."""
        groups = tuple(groups)
        kept = self._below(groups, capacity, by_gap=False)
        return self._rest(groups, kept, by_gap=False)

    def gained(self, groups: Iterable[Hashable], now: float, then: float) -> Estimate:
        """Estimate how many more tokens are read at the TTL `then` than at `now`, in the present room."""
        return self._difference(tuple(groups), now, then, by_gap=True)

    def gained_within(self, groups: Iterable[Hashable], now: float, then: float) -> Estimate:
        """Estimate how many more tokens are read with room for `then` blocks than for `now`, at the present TTLs."""
        return self._difference(tuple(groups), now, then, by_gap=False)

    def kept(self, groups: Iterable[Hashable], ttl: float, until: int) -> float:
        """Estimate the token-milliseconds that `groups` keep at `ttl` up to `until`, were there room for all."""
        groups, idle = frozenset(groups), 0.0
        edges = [0.0, *self._ttls, ENDLESS]
        for group in groups:
            for cells in self._cells.get(group, {}).values():
                for bucket, tokens in enumerate(cells.kept):
                    if tokens:
                        longest = edges[min(bucket + 1, len(edges) - 1)]
                        idle += cells.idle[bucket] if longest <= ttl else min(cells.idle[bucket], tokens * ttl)
        for known in self._known.values():
            if known.group in groups:
                idle += known.weight * min(ttl, max(0, until - known.at))
        return idle / self.rate

    def _difference(self, groups: Sequence[Hashable], now: float, then: float, *, by_gap: bool) -> Estimate:
        before = self._below(groups, now, by_gap=by_gap)
        after = self._below(groups, then, by_gap=by_gap)
        return scaled([late - early for early, late in zip(before, after, strict=True)], self.rate)

    def _rest(self, groups: Sequence[Hashable], kept: Sequence[float], *, by_gap: bool) -> Estimate:
        """Take what is missed from the whole."""
        seen = self._below(groups, None, by_gap=by_gap)
        missed = scaled([whole - read for whole, read in zip(seen, kept, strict=True)], self.rate)
        covered = self.whole(groups).covered
        return Estimate(min(max(covered - missed.tokens, 0.0), float(covered)), missed.error)

    def _below(self, groups: Iterable[Hashable], bound: float | None, *, by_gap: bool) -> list[float]:
        """Sum the sampled tokens below `bound` by part; all of them for None, all that ever came back for ENDLESS."""
        edges = self._ttls if by_gap else self._capacities
        size = len(edges) + 2
        shares = [1.0] * size if bound is None else [_share(edges, bucket, bound) for bucket in range(size)]
        sums = [0.0] * PARTS
        for group in groups:
            for cells in self._cells.get(group, {}).values():
                counts = cells.gaps if by_gap else cells.distances
                for bucket, share in enumerate(shares):
                    if share:
                        for part in range(PARTS):
                            sums[part] += share * counts[bucket * PARTS + part]
        return sums


def scaled(parts: Sequence[float], rate: float) -> Estimate:
    """Scale the sums of the sampled parts up to the whole. At rate 1 there is no error."""
    mean = sum(parts) / len(parts)
    variance = len(parts) / (len(parts) - 1) * sum((part - mean) ** 2 for part in parts)
    return Estimate(sum(parts) / rate, SPREAD * math.sqrt(variance * (1.0 - rate)) / rate)


def _share(edges: Sequence[float], bucket: int, bound: float) -> float:
    """Say how much of a bucket lies below `bound`. After the last edge all or nothing; the very last is never read."""
    if bucket > len(edges):
        return 0.0
    if bucket == len(edges):
        return float(bound == ENDLESS)
    low = edges[bucket - 1] if bucket else 0.0
    return min(max((bound - low) / (edges[bucket] - low), 0.0), 1.0)
