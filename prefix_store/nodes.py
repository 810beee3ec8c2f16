"""The nodes of a radix tree: how they come, are held and go, with everything that counts them kept in step.

Owns the nodes, their census and the queues from which they are taken. Knows no request. Rule: a node goes only as a
leaf that nobody holds, so a path never has a hole and whatever exists can be reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from prefix_store import lifetimes
from prefix_store.census import Census, kind
from prefix_store.chain import HASH_BYTES, TOKEN_BYTES, BlockHash, Namespace, chain
from prefix_store.leases import TreeStats
from prefix_store.node import Node, part
from prefix_store.queues import IdleLeaves, Pressure, by_deadline, by_pressure
from prefix_store.reasons import Fate, Tombstones
from prefix_store.retention import Kept, Retention
from prefix_store.spans import Spans

P = TypeVar("P")


class Nodes(Generic[P]):
    """What `RadixTree` is made of."""

    def __init__(self, block_tokens: int, *, remember: int = 65_536) -> None:
        """Make an empty tree; `remember` bounds the blocks of which it is known why they went."""
        self.block_tokens = block_tokens
        self.census = Census()
        self.spans = Spans()
        self.gone: Counter[Fate] = Counter()  # blocks by what became of them
        self.tombstones = Tombstones(remember)
        self.grown = 0  # partial blocks that became part of a longer one
        self.broken: Counter[tuple[str, str]] = Counter()  # promised blocks that went too early, by (class, tenant)
        self._stride = block_tokens * TOKEN_BYTES
        self._roots: dict[Namespace, Node[P]] = {}
        self._detached: set[Node[P]] = set()  # tops of purged subtrees that leases keep
        self._purges: dict[str, int] = {}  # tenant → purges so far, for leases that are older
        self._expiring: IdleLeaves[P] = IdleLeaves(by_deadline, bit=1)
        self._pressed: Pressure[P] = Pressure(bit=2)

    def stats(self) -> TreeStats:
        """Return the sizes."""
        return TreeStats(nodes=self.census.nodes, blocks=self.census.blocks, idle=self.census.idle)

    def payloads(self) -> Iterator[P]:
        """Yield every block's payload."""
        for node in self.nodes():
            yield from node.payload

    def nodes(self) -> Iterator[Node[P]]:
        """Yield every node with blocks, parents first, purged ones that leases keep last."""
        for top in [*self._roots.values(), *self._detached]:
            yield from (node for node in top.subtree() if node.retention is not None)

    @property
    def roots(self) -> Mapping[Namespace, Node[P]]:
        """The root of each namespace; only the tree writes them."""
        return self._roots

    def _split(self, node: Node[P], blocks: int) -> Node[P]:
        """Cut `node` after its first `blocks` blocks; return the new upper half."""
        upper = node.split(blocks, self._stride)
        self.census.come(upper)
        return upper

    def _append(self, node: Node[P], tokens: bytes, payload: list[P], retention: Retention, now: float) -> Node[P]:
        """Add fresh blocks below `node`, whose one lease is the writer's; return the new end, leased."""
        hashes = chain(BlockHash(node.last_hash), tokens, self.block_tokens)
        self.tombstones.forget(hashes[:HASH_BYTES])
        if node.leases == 1 and not node.children and _as_written(node, retention):  # the same request goes on
            node.tokens += tokens
            node.hashes += hashes
            node.payload += payload
            node.births.append((now, len(payload)))
            node.used = now
            self.spans.come(len(payload))
            self.census.add(node, len(payload))
            return node
        child = Node(node, tokens, hashes, payload, retention, now, node.namespace)
        child.renewed, child.leases = retention.since, 1
        self._enter(node, child)
        return child

    def _enter(self, above: Node[P], child: Node[P]) -> None:
        above.attach(child, child.tokens[: self._stride])
        self.spans.come(len(child.payload))
        self.census.come(child)
        self.census.add(child, len(child.payload))

    def _cover(self, above: Node[P], block: bytes, retention: Retention, now: float) -> list[P]:
        """Remove partial blocks that `block` goes beyond and outlives. Return what is free."""
        free = [
            child
            for child in above.partials(block)
            if not child.leases and child.kept is Kept.HELD and child.deadline <= retention.deadline
        ]
        return [payload for child in free for payload in self._absorb(child, now)]

    def _absorb(self, partial: Node[P], now: float) -> list[P]:
        """Take out a partial block that lives on in a longer one."""
        self.grown += 1
        return self._remove(partial, now)

    def _write(self, node: Node[P], retention: Retention, now: float) -> None:
        """Take note that an existing block was written again or asked for."""
        before, was = by_pressure(node), kind(node)
        lifetimes.write(node, retention, now)
        self.census.keep(node, was)
        if by_pressure(node) < before:
            self._pressed.discard(node)

    def _hold(self, node: Node[P]) -> None:
        """Count a lease on a node and everything above it."""
        at: Node[P] | None = node
        while at is not None:
            self._pin(at)
            at = at.parent

    def _pin(self, node: Node[P]) -> None:
        if not node.leases:
            self.census.idle -= len(node.payload)
        node.leases += 1

    def _let_go(self, node: Node[P], now: float) -> list[P]:
        """Count a lease off a path; free what nobody holds any more and may not stay."""
        at: Node[P] | None = node
        while at is not None:
            at.leases -= 1
            at.used = max(at.used, now)
            if not at.leases:
                self.census.idle += len(at.payload)
            at = at.parent
        freed: list[P] = []
        at = node
        while at is not None and at.idle_leaf and (at.detached or at.deadline <= now):
            parent = at.parent
            freed += self._remove(at, now) if at.detached else self._expire(at, now)
            at = parent
        if not freed:  # else each removal settled the node above it
            self._settle(node)
        return freed

    def _settle(self, node: Node[P]) -> None:
        """Queue a node that has become an idle leaf; drop a root that has become empty."""
        if node.idle_leaf:
            if not node.detached:
                self._expiring.push(node)
                self._pressed.push(node)
        elif node.retention is None and not node.children and not node.leases:
            del self._roots[node.namespace]

    def _expire(self, node: Node[P], now: float) -> list[P]:
        """Remove an idle leaf whose time is up, and remember when that was."""
        self._bury(node.hashes, Fate.POLICY_CHANGED if node.shortened else Fate.EXPIRED, node.deadline)
        return self._remove(node, now)

    def _press(self, node: Node[P], blocks: int, now: float) -> list[P]:
        """Remove an idle leaf before its time, or its last `blocks` blocks if it has more, and remember that."""
        keep = max(0, len(node.payload) - blocks)
        gone = len(node.payload) - keep
        fate = Fate.EVICTED
        if node.kept is Kept.PROMISED:
            fate = Fate.BROKEN_PROMISE
            self.broken[node.retention.klass if node.retention else "", node.namespace.tenant] += gone
        self._bury(node.hashes[keep * HASH_BYTES :], fate, now)
        self.spans.press(node.used, gone, now)
        if not keep:
            return self._remove(node, now)
        freed, node.payload = node.payload[keep:], node.payload[:keep]
        node.tokens, node.hashes = node.tokens[: keep * self._stride], node.hashes[: keep * HASH_BYTES]
        node.births, ended = part(node.births, keep)
        self.spans.go(ended, now)
        self.census.add(node, -gone)
        return freed

    def _bury(self, hashes: bytes, fate: Fate, at: float) -> None:
        """Count blocks that go, and remember why."""
        self.gone[fate] += len(hashes) // HASH_BYTES
        self.tombstones.bury(hashes, fate, at)

    def _remove(self, node: Node[P], now: float) -> list[P]:
        """Take an idle leaf out of the tree; return its payload."""
        parent = node.parent
        assert node.idle_leaf
        self.census.go(node)
        self.spans.go(node.births, now)
        if parent is None:
            self._detached.discard(node)
        else:
            parent.drop(node.tokens[: self._stride])
            node.parent = None
            self._settle(parent)
        node.detached = True  # no queue offers it any more
        tenant = node.namespace.tenant
        self._expiring.trim(self.census.nodes)
        self._pressed.trim(tenant, self.census.nodes_of[tenant])
        return node.payload


def _as_written(node: Node[P], retention: Retention) -> bool:
    """Whether what holds for `node` is no more than what its writer asked for: neither a read nor a twin raised it."""
    return node.retention is retention and node.deadline <= retention.deadline and node.kept is retention.kept
