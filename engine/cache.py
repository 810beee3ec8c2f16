"""Tree and pool together: which prefix a sequence may reuse, and the blocks it writes the rest into.

Owns the pool, the radix tree and every sequence's hold. Knows no torch and no clock. Rules:
- a block is free (pool), cached (tree) or private to one hold; nothing else may name it;
- a hold's first `published` blocks belong to the tree and are leased, the rest are its own;
- the last block of a sequence, computed in part, stays too: the next one writes on in it, or copies it;
- at least one token of a prompt is always left to compute, because logits come only from computed tokens;
- a mark is promised whole or not at all, and only as far as the promise budget goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import compaction
from engine.block_pool import BlockId, BlockPool
from engine.block_table import BlockTable, Scatter
from engine.facts import kept_marks
from engine.hold import Copy, Granted, Hold, KeepPlan
from engine.messages import KeptMark, Order
from engine.request import TOKEN_BYTES, Request
from engine.terms import Terms
from prefix_store.leases import Lease
from prefix_store.radix import RadixTree
from prefix_store.retention import Kept, Retention


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Blocks by state; the first three add up to the pool."""

    free: int  # hold nothing
    cached: int  # hold a reusable prefix that nobody uses now
    held: int  # in use by some sequence
    promised: int  # of those cached or held
    nodes: int  # of the tree


class PrefixCache:
    """The only object that moves blocks between pool, tree and sequences."""

    def __init__(self, *, blocks: int, block_tokens: int, model: str = "") -> None:
        self.block_tokens = block_tokens
        self.pool = BlockPool(blocks)
        self.tree: RadixTree[BlockId] = RadixTree(block_tokens, remember=4 * blocks)
        self.terms = Terms(model=model, blocks=blocks)
        self.scatter = Scatter()
        self.threshold = compaction.Threshold()
        self.compacted = 0  # blocks that were copied together
        self._holds: set[Hold] = set()

    def admit(
        self, request: Request, readable: bytes, *, since: float, now: float, alone: bool = True, spoken_for: int = 0
    ) -> Hold:
        """Lease the longest live prefix of the tokens in `readable`, renew it, and settle what is promised.

        `since` is when the request was first admitted: its marks count from there. Unless `alone`, a partial block is
        copied even where it could be written on, because others want it too. `spoken_for` counts free blocks that
        others will need.
        """
        lease = self.tree.lease(request.namespace, readable, now, again=since != now)
        marks, reserved = self._grant(request, lease, since=since, now=now)
        hold = Hold(
            request.namespace,
            lease,
            BlockTable(self.block_tokens, lease.payload),
            KeepPlan(marks, self._held(request, since)),
        )
        hold.policy, hold.reserved = self.terms.govern(request.namespace.tenant).name, reserved
        if request.cached:
            hold.absences = self.tree.absences(lease, request.tokens)
        self._gather(hold, request, spoken_for=spoken_for)
        self._copy_tail(hold, alone=alone, now=now)
        self._holds.add(hold)
        return hold

    def copied(self, hold: Hold, *, now: float) -> None:
        """Take note that a hold's copies are done: their sources may go."""
        if hold.tail is not None:
            hold.tail = None
            self.pool.give(self.tree.release_tail(hold.lease, now))
        if hold.run:
            spare = self.tree.relocate(hold.lease, hold.run)
            if spare is not hold.run:
                hold.table.replace(0, hold.run)
                self.compacted += len(spare)
            self.pool.give(spare)
            hold.run, hold.copies = [], ()

    def room(self, hold: Hold, tokens: int, *, now: float) -> int:
        """Make room for tokens [0, tokens) as far as free and evictable blocks go. Return the tokens that fit."""
        missing = -(-(tokens - hold.table.tokens) // self.block_tokens)
        if missing > 0:
            hold.table.append(self._take(missing, hold.last, now=now))
        return min(tokens, hold.table.tokens)

    def publish(self, hold: Hold, tokens: bytearray, computed: int, *, now: float) -> None:
        """Put the finished whole blocks of tokens [0, computed) into the tree, for everyone to reuse."""
        size = self.block_tokens
        start, end = hold.published * size, computed - computed % size
        for stop, retention in hold.plan.stretches(start, end):
            fresh = bytes(tokens[start * TOKEN_BYTES : stop * TOKEN_BYTES])
            first, last = start // size, stop // size
            published = self.tree.publish(hold.lease, fresh, hold.table[first:last], now, retention)
            if not published.stored:  # purged meanwhile: the blocks stay this request's own
                return
            hold.table.replace(first, list(published.payload))
            self.pool.give(published.spare)
            if retention.kept is Kept.PROMISED:
                self._settle(hold, last - first)
            start = stop

    def marks(self, request: Request, hold: Hold, *, now: float) -> tuple[KeptMark, ...]:
        """Say what became of the request's marks, once its prompt is published."""
        granted = [
            (mark.tokens, mark.retention, self.tree.deadline(hold.lease, mark.tokens)) for mark in hold.plan.marks
        ]
        return kept_marks(request, granted, now=now)

    def release(self, hold: Hold, tokens: bytearray, computed: int, *, now: float) -> None:
        """Let go: leased blocks stay cached until their deadline, as does the last one that is computed in part.

        The other private blocks are free at once.
        """
        self.scatter.add(hold.table)
        private = hold.table[hold.published :]
        size, held = self.block_tokens, hold.plan.held
        start = hold.published * size
        if held is not None and held.deadline > now and hold.tail is None and 0 < computed - start < size:
            partial = bytes(tokens[start * TOKEN_BYTES : computed * TOKEN_BYTES])
            self.pool.give(self.tree.keep_partial(hold.lease, partial, private.pop(0), now, held))
        self._settle(hold, hold.reserved)
        self.pool.give(self.tree.release(hold.lease, now))
        self.pool.give([*private, *hold.run])
        self._holds.remove(hold)

    def sweep(self, *, now: float, nodes: int) -> int:
        """Free at most `nodes` expired nodes; return the blocks that went."""
        expired = self.tree.sweep(now, nodes)
        self.pool.give(expired)
        return len(expired)

    @property
    def obtainable(self) -> int:
        """Blocks that are free or would be after evicting everything that nobody uses."""
        return self.pool.free + self.tree.census.idle

    def stats(self) -> CacheStats:
        """Return a snapshot; it renews nothing."""
        census = self.tree.census
        return CacheStats(
            free=self.pool.free,
            cached=census.idle,
            held=self.pool.size - self.pool.free - census.idle,
            promised=sum(census.promised.values()),
            nodes=census.nodes,
        )

    def check(self) -> None:
        """Raise unless every block is exactly one of free, in the tree, private to one hold. O(blocks)."""
        self.pool.check()
        self.tree.check()
        in_tree = list(self.tree.payloads())
        private = [block for hold in self._holds for block in [*hold.table[hold.published :], *hold.run]]
        for hold in self._holds:
            hold.table.check()
            shared = hold.table[: hold.published]
            assert set(shared) <= set(in_tree), "a hold's published block left the tree while leased"
        owned = [*in_tree, *private]
        assert len(owned) == len(set(owned)), "a block has two owners"
        assert len(owned) + self.pool.free == self.pool.size, "a block has no owner"
        assert sum(hold.reserved for hold in self._holds) == self.terms.reserved, "a reservation was lost"

    def purged(self, blocks: list[BlockId]) -> None:
        """Take back blocks that a purge has freed."""
        self.pool.give(blocks)

    def _grant(
        self, request: Request, lease: Lease[BlockId], *, since: float, now: float
    ) -> tuple[tuple[Granted, ...], int]:
        """Decide each mark: promised if the budget has room for all of its unique blocks, else held for as long."""
        tenant, granted, reserved = request.namespace.tenant, [], 0
        policy = self.terms.govern(tenant).name
        for order in request.keep.marks if request.cached else ():
            wanted = self.tree.unpromised(lease, request.tokens[: order.tokens * TOKEN_BYTES], now) - reserved
            kept = Kept.PROMISED if wanted <= self.terms.room(tenant, self.tree.census.promised) else Kept.HELD
            retention = self._retention(request, order, kept, since)
            before = self.tree.census.promised[tenant]
            self.tree.promise(lease, min(order.tokens, lease.tokens), retention, now)
            if kept is Kept.PROMISED:
                aside = wanted - (self.tree.census.promised[tenant] - before)
                self.terms.reserve(policy, aside)
                reserved += aside
            granted.append(Granted(order.tokens, retention))
        return tuple(granted), reserved

    def _retention(self, request: Request, order: Order, kept: Kept, since: float) -> Retention:
        keep, most_s = request.keep, self.terms.govern(request.namespace.tenant).max_ttl_s
        return Retention(  # the ceiling may have been lowered while the request waited
            klass=order.klass,
            ttl_s=min(order.ttl_s, most_s),
            since=since,
            kept=kept,
            sliding=keep.sliding,
            priority=keep.priority,
        )

    def _held(self, request: Request, since: float) -> Retention | None:
        keep = request.keep
        if not request.cached or keep.held_ttl_s is None:
            return None
        ttl_s = min(keep.held_ttl_s, self.terms.govern(request.namespace.tenant).max_ttl_s)
        return Retention(klass=keep.held_klass, ttl_s=ttl_s, since=since, sliding=keep.sliding)

    def _gather(self, hold: Hold, request: Request, *, spoken_for: int) -> None:
        """Plan to bring the leased blocks together, where they lie in so many places that it pays."""
        work = request.prompt - hold.ready + request.max_tokens
        room = min(self.pool.longest_run, self.pool.free - spoken_for)
        if compaction.worth(hold.table, self.threshold, work=work, room=room) and self.tree.movable(hold.lease):
            hold.run = self.pool.take(len(hold.table))
            hold.copies = compaction.copies(hold.table, hold.run)

    def _copy_tail(self, hold: Hold, *, alone: bool, now: float) -> None:
        """Go on with the best partial block, or plan its copy if a block is to be had for it."""
        tail, held = hold.lease.tail, hold.plan.held
        if tail is None:
            return
        if alone and held is not None and (block := self.tree.adopt(hold.lease, held, now)) is not None:
            hold.table.append([block])
            hold.ready += tail.tokens
        elif target := self._take(1, hold.last, now=now):
            hold.tail = Copy(tail.payload, target[0], tail.tokens)
            hold.table.append(target)
            hold.ready += tail.tokens
        else:
            self.pool.give(self.tree.release_tail(hold.lease, now))

    def _settle(self, hold: Hold, blocks: int) -> None:
        """Give up a part of a hold's reservation: its blocks are published, or will never be."""
        blocks = min(blocks, hold.reserved)
        hold.reserved -= blocks
        self.terms.reserve(hold.policy, -blocks)

    def _take(self, count: int, after: BlockId | None, *, now: float) -> list[BlockId]:
        """Take up to `count` blocks, evicting cached ones when too few are free."""
        if count > self.pool.free:
            evicted = self.tree.evict(count - self.pool.free, now)
            self.pool.give(evicted)
        return self.pool.take(min(count, self.pool.free), after=after)
