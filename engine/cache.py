"""Tree and pool together: which prefix a sequence may reuse, and the blocks it writes the rest into.

Owns the pool, the radix tree and every sequence's hold. Knows no torch and no clock. Rules:
- a block is free (pool), cached (tree) or private to one hold; nothing else may name it;
- a hold's first `published` blocks belong to the tree and are leased, the rest are its own;
- at least one token of a prompt is always left to compute, because logits come only from computed tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_pool import BlockId, BlockPool
from engine.block_table import BlockTable
from engine.request import TOKEN_BYTES
from prefix_store.chain import Namespace
from prefix_store.radix import Lease, RadixTree
from prefix_store.retention import Retention


@dataclass(frozen=True, slots=True)
class TailCopy:
    """Copy the first `tokens` tokens of block `source` into block `target` before the step writes anything."""

    source: BlockId
    target: BlockId
    tokens: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Blocks by state; the three add up to the pool."""

    free: int  # hold nothing
    cached: int  # hold a reusable prefix that nobody uses now
    held: int  # in use by some sequence
    nodes: int  # of the tree
    evicted_total: int  # blocks that went under pressure
    expired_total: int  # blocks whose time was up


class Hold:
    """What one running sequence holds: a lease on the tree and its own blocks after it."""

    __slots__ = ("copy", "lease", "namespace", "ready", "retention", "table")

    def __init__(
        self,
        namespace: Namespace,
        lease: Lease[BlockId],
        table: BlockTable,
        retention: Retention,
        copy: TailCopy | None,
    ) -> None:
        self.namespace = namespace
        self.lease = lease
        self.table = table
        self.retention = retention
        self.copy = copy  # to be done by the sequence's first step
        self.ready = lease.tokens + (copy.tokens if copy else 0)  # tokens reused

    @property
    def published(self) -> int:
        """Leading blocks that belong to the tree."""
        return self.lease.tokens // self.table.block_tokens


class PrefixCache:
    """The only object that moves blocks between pool, tree and sequences."""

    def __init__(self, *, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.pool = BlockPool(blocks)
        self.tree: RadixTree[BlockId] = RadixTree(block_tokens)
        self._holds: set[Hold] = set()
        self._evicted_total = 0
        self._expired_total = 0

    def admit(self, namespace: Namespace, tokens: bytes, retention: Retention, *, now: float) -> Hold:
        """Lease the longest live prefix of `tokens` (all but the last one) and renew it."""
        lease = self.tree.lease(namespace, tokens[:-TOKEN_BYTES], now)
        table = BlockTable(self.block_tokens, lease.payload)
        copy = None
        if lease.tail is not None:
            if target := self._take(1, table.last, now=now):
                copy = TailCopy(lease.tail.payload, target[0], lease.tail.tokens)
                table.append(target)
            else:
                self._forget(self.tree.release_tail(lease, now))
        hold = Hold(namespace, lease, table, retention, copy)
        self._holds.add(hold)
        return hold

    def copied(self, hold: Hold, *, now: float) -> None:
        """Take note that the tail copy is done: its source may go."""
        if hold.copy is not None:
            hold.copy = None
            self._forget(self.tree.release_tail(hold.lease, now))

    def room(self, hold: Hold, tokens: int, *, now: float) -> int:
        """Make room for tokens [0, tokens) as far as free and evictable blocks go. Return the tokens that fit."""
        missing = -(-(tokens - hold.table.tokens) // self.block_tokens)
        if missing > 0:
            hold.table.append(self._take(missing, hold.table.last, now=now))
        return min(tokens, hold.table.tokens)

    def publish(self, hold: Hold, tokens: bytearray, computed: int, *, now: float) -> None:
        """Put the finished whole blocks of tokens [0, computed) into the tree, for everyone to reuse."""
        start, end = hold.published, computed // self.block_tokens
        if end <= start:
            return
        stride = self.block_tokens * TOKEN_BYTES
        fresh = bytes(tokens[start * stride : end * stride])
        published = self.tree.publish(hold.lease, fresh, hold.table[start:end], now, hold.retention)
        hold.table.replace(start, list(published.payload))
        self.pool.give(published.spare)

    def release(self, hold: Hold, *, now: float) -> None:
        """Let go: private blocks are free at once, leased ones stay cached until their deadline."""
        private = hold.table[hold.published :]
        self._forget(self.tree.release(hold.lease, now))
        self.pool.give(private)
        self._holds.remove(hold)

    def sweep(self, *, now: float, nodes: int) -> int:
        """Free at most `nodes` expired nodes; return the blocks that went."""
        expired = self.tree.sweep(now, nodes)
        self._forget(expired)
        return len(expired)

    @property
    def obtainable(self) -> int:
        """Blocks that are free or would be after evicting everything that nobody uses."""
        return self.pool.free + self.tree.stats().idle

    def stats(self) -> CacheStats:
        """Return a snapshot; it renews nothing."""
        tree = self.tree.stats()
        return CacheStats(
            free=self.pool.free,
            cached=tree.idle,
            held=self.pool.size - self.pool.free - tree.idle,
            nodes=tree.nodes,
            evicted_total=self._evicted_total,
            expired_total=self._expired_total,
        )

    def check(self) -> None:
        """Raise unless every block is exactly one of free, in the tree, private to one hold. O(blocks)."""
        self.pool.check()
        self.tree.check()
        in_tree = list(self.tree.payloads())
        private = [block for hold in self._holds for block in hold.table[hold.published :]]
        for hold in self._holds:
            hold.table.check()
            shared = hold.table[: hold.published]
            assert set(shared) <= set(in_tree), "a hold's published block left the tree while leased"
        owned = [*in_tree, *private]
        assert len(owned) == len(set(owned)), "a block has two owners"
        assert len(owned) + self.pool.free == self.pool.size, "a block has no owner"

    def _forget(self, expired: list[BlockId]) -> None:
        self._expired_total += len(expired)
        self.pool.give(expired)

    def _take(self, count: int, after: BlockId | None, *, now: float) -> list[BlockId]:
        """Take up to `count` blocks, evicting cached ones when too few are free."""
        if count > self.pool.free:
            evicted = self.tree.evict(count - self.pool.free, now)
            self._evicted_total += len(evicted)
            self.pool.give(evicted)
        return self.pool.take(min(count, self.pool.free), after=after)
