"""The radix tree: which prefixes exist, until when, and who is reading them.

Owns the nodes. Knows no torch, no clock and no blocks: the payload is whatever the owner stores per block. Rules:
- a hash never decides: every block is found and verified by its tokens, under a namespace compared in full;
- a node goes only as a leaf, so a path never has a hole and whatever exists can be reached;
- alive while `now < deadline`, and a parent's deadline is never before its child's;
- a lease outlives the deadline: what expired meanwhile is not matched any more and goes at the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prefix_store.chain import HASH_BYTES, TOKEN_BYTES, BlockHash, Namespace, chain, root
from prefix_store.node import Node, common_tokens
from prefix_store.queues import IdleLeaves, by_deadline, by_pressure
from prefix_store.retention import Retention

P = TypeVar("P")
EVERY_QUEUE = 3  # both bits of `Node.queued`


@dataclass(frozen=True, slots=True)
class Tail(Generic[P]):
    """A block that shares its first `tokens` tokens with what follows a match, to be copied from."""

    payload: P
    tokens: int  # 1 … block_tokens − 1
    node: Node[P]


@dataclass(frozen=True, slots=True)
class Match(Generic[P]):
    """What a peek found: whole blocks, and the best partial one after them."""

    tokens: int
    payload: list[P]
    tail: Tail[P] | None
    idle: int  # of the whole blocks, those on no leased path


class Lease(Generic[P]):
    """A hold on a path while a request works. Given by `lease`, ended by `release`; only the tree writes it."""

    __slots__ = ("node", "payload", "tail", "tokens")

    def __init__(self, node: Node[P], tokens: int, payload: list[P], tail: Tail[P] | None) -> None:
        self.node = node  # where the path ends
        self.tokens = tokens  # of the path, whole blocks
        self.payload = payload  # what the match found, one per block
        self.tail = tail


@dataclass(frozen=True, slots=True)
class Published(Generic[P]):
    """What became of published blocks."""

    payload: list[P]  # what the tree holds for them now: use this
    spare: list[P]  # the caller's own, for blocks that the tree had already


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Sizes; O(1) to take."""

    nodes: int
    blocks: int  # in the tree
    idle: int  # of these, not on any leased path


@dataclass(frozen=True, slots=True)
class _Place(Generic[P]):
    """Where a walk ended: `blocks` blocks into `node`, `tokens` tokens from the root."""

    node: Node[P]
    blocks: int
    tokens: int


class RadixTree(Generic[P]):
    """Prefixes of many namespaces. All times are the caller's monotonic seconds."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._stride = block_tokens * TOKEN_BYTES
        self._roots: dict[Namespace, Node[P]] = {}
        self._expiring: IdleLeaves[P] = IdleLeaves(by_deadline, bit=1)
        self._pressed: IdleLeaves[P] = IdleLeaves(by_pressure, bit=2)
        self._nodes = self._blocks = self._idle = 0

    def peek(self, namespace: Namespace, tokens: bytes, now: float) -> Match[P]:
        """Return the longest live prefix of `tokens`. Renews nothing and splits nothing. O(tokens + nodes)."""
        top = self._roots.get(namespace)
        if top is None:
            return Match(0, [], None, 0)
        place = self._walk(top, tokens, now)
        payload = self._payload_of(place.node.parent) if place.blocks else self._payload_of(place.node)
        payload += place.node.payload[: place.blocks]
        idle = place.blocks if not place.node.leases else 0
        above = place.node.parent if place.blocks else place.node
        while above is not None:
            idle += 0 if above.leases else len(above.payload)
            above = above.parent
        return Match(place.tokens, payload, self._tail(place, tokens, now), idle)

    def lease(self, namespace: Namespace, tokens: bytes, now: float) -> Lease[P]:
        """Take hold of the longest live prefix, renew it and every ancestor by their own classes. O(tokens + nodes)."""
        top = self._roots.get(namespace)
        if top is None:
            top = self._roots[namespace] = Node(None, b"", root(namespace), [], None, now)
            top.namespace = namespace
        place = self._walk(top, tokens, now)
        tail = self._tail(place, tokens, now)
        end = self._split(place.node, place.blocks) if place.blocks else place.node
        self._renew(end, now)
        self._hold(end)
        if tail is not None:
            self._hold(tail.node)
        return Lease(end, place.tokens, self._payload_of(end), tail)

    def release_tail(self, lease: Lease[P], now: float) -> list[P]:
        """Let go of the block that was copied from. Return what is free now."""
        tail, lease.tail = lease.tail, None
        return [] if tail is None else self._let_go(tail.node, now)

    def publish(
        self, lease: Lease[P], tokens: bytes, payload: Sequence[P], now: float, retention: Retention
    ) -> Published[P]:
        """Add the next whole blocks after the lease's end and move the lease down over them.

        Blocks that the tree has already are not stored twice; they are renewed, since they have been written again.
        After the path was detached nothing is stored: the caller keeps its payload. O(tokens + nodes).
        """
        if lease.node.detached:
            return Published(list(payload), [])
        assert len(tokens) == len(payload) * self._stride, "publish takes whole blocks"
        above, node, at, held = lease.node, lease.node, 0, []
        while at < len(tokens) and (child := node.child(tokens[at : at + self._stride])) is not None:
            shared = common_tokens(child.tokens, tokens[at : at + len(child.tokens)]) // self.block_tokens
            if shared < len(child.payload):
                child = self._split(child, shared)
            self._write_again(child, retention, now)
            self._pin(child)
            held += child.payload
            node, at = child, at + len(child.tokens)
        fresh = list(payload[len(held) :])
        if fresh:
            node = self._append(node, tokens[at:], fresh, retention, now)
        lease.node, lease.tokens = node, lease.tokens + len(payload) * self.block_tokens
        if payload:
            self._lift(above, retention.deadline, node)
        return Published(held + fresh, list(payload[: len(held)]))

    def release(self, lease: Lease[P], now: float) -> list[P]:
        """End a lease. Return the payload that expired or was detached meanwhile and is free now. O(nodes)."""
        freed = self.release_tail(lease, now)
        return freed + self._let_go(lease.node, now)

    def sweep(self, now: float, budget: int) -> list[P]:
        """Free at most `budget` expired nodes. O(budget · log n)."""
        freed: list[P] = []
        while budget > 0 and (node := self._expiring.first()) is not None and node.deadline <= now:
            freed += self._remove(node)
            budget -= 1
        return freed

    def evict(self, count: int, now: float) -> list[P]:
        """Free `count` blocks if that many are idle: expired ones first, then in the order of pressure, leaves first.

        A leaf's run is cut from its end, so that no more goes than must. O(log n) a node.
        """
        freed: list[P] = []
        while len(freed) < count:
            node = self._expiring.first()
            if node is None or node.deadline > now:
                node = self._pressed.first()
            if node is None:
                break
            missing = count - len(freed)
            freed += (
                self._remove(node) if missing >= len(node.payload) or node.deadline <= now else self._cut(node, missing)
            )
        return freed

    def stats(self) -> TreeStats:
        """Return the sizes."""
        return TreeStats(nodes=self._nodes, blocks=self._blocks, idle=self._idle)

    def payloads(self) -> Iterator[P]:
        """Yield every block's payload."""
        for node in self.nodes():
            yield from node.payload

    def nodes(self) -> Iterator[Node[P]]:
        """Yield every node with blocks, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack += node.children
            if node.parent is not None:
                yield node

    def check(self) -> None:
        """Raise if any invariant is broken. O(tokens)."""
        nodes = list(self.nodes())
        assert len(nodes) == self._nodes, "a node was lost"
        assert sum(len(node.payload) for node in nodes) == self._blocks, "a block was lost"
        assert sum(len(node.payload) for node in nodes if not node.leases) == self._idle, "idle blocks are miscounted"
        for namespace, top in self._roots.items():
            assert top.children or top.leases, "an empty root stays"
            assert top.hashes == root(namespace), "a root has another namespace's hash"
        for node in [*self._roots.values(), *nodes]:
            assert node.keys == [child.tokens[: self._stride] for child in node.children], (
                "a key is not the first block"
            )
            assert node.keys == sorted(set(node.keys)), "children are out of order or doubled"
            assert all(child.parent is node for child in node.children), "a child has another parent"
            assert node.leases >= sum(child.leases for child in node.children), "a lease is not counted above"
        for node in nodes:
            assert node.parent is not None and node.payload, "a node without parent or blocks"
            assert len(node.tokens) == len(node.payload) * self._stride, "tokens and payload disagree"
            assert node.hashes == chain(BlockHash(node.parent.last_hash), node.tokens, self.block_tokens), (
                "a broken chain"
            )
            assert node.deadline <= node.parent.deadline, "a parent would go before its child"
            assert not node.idle_leaf or node.queued == EVERY_QUEUE, "an idle leaf is in no queue"

    def _walk(self, top: Node[P], tokens: bytes, now: float) -> _Place[P]:
        """Follow `tokens` through live nodes as far as whole blocks agree."""
        node, at, stride = top, 0, self._stride
        end = len(tokens) - len(tokens) % stride
        while at < end:
            child = node.child(tokens[at : at + stride])
            if child is None or child.deadline <= now:
                break
            size = len(child.tokens)
            if size > stride and tokens[at : at + size] != child.tokens:
                blocks = common_tokens(child.tokens, tokens[at:end]) // self.block_tokens
                return _Place(child, blocks, (at + blocks * stride) // TOKEN_BYTES)
            node, at = child, at + size
        return _Place(node, 0, at // TOKEN_BYTES)

    def _tail(self, place: _Place[P], tokens: bytes, now: float) -> Tail[P] | None:
        """Return the live block that shares most leading tokens with what follows the match."""
        wanted = tokens[place.tokens * TOKEN_BYTES :][: self._stride]
        if len(wanted) < TOKEN_BYTES:
            return None
        if place.blocks:
            rest = place.node.tokens[place.blocks * self._stride :][: self._stride]
            shared = min(common_tokens(rest, wanted), self.block_tokens - 1)
            return Tail(place.node.payload[place.blocks], shared, place.node) if shared else None
        best: Tail[P] | None = None
        for side in place.node.near(wanted):
            for key, child in side:
                shared = min(common_tokens(key, wanted), self.block_tokens - 1)
                if shared <= (best.tokens if best else 0):
                    break  # those further out share no more
                if child.deadline > now:
                    best = Tail(child.payload[0], shared, child)
        return best

    def _payload_of(self, node: Node[P] | None) -> list[P]:
        """Payload from the root to the end of `node`."""
        path = []
        while node is not None:
            path.append(node.payload)
            node = node.parent
        return [payload for run in reversed(path) for payload in run]

    def _split(self, node: Node[P], blocks: int) -> Node[P]:
        """Cut `node` after its first `blocks` blocks; return the new upper half. Each half keeps the old times.

        The lower half stays the same object, so leases and queue entries that speak of it stay true.
        """
        parent, cut = node.parent, blocks * self._stride
        assert parent is not None and 0 < blocks < len(node.payload)
        upper = Node(
            parent,
            node.tokens[:cut],
            node.hashes[: blocks * HASH_BYTES],
            node.payload[:blocks],
            node.retention,
            node.used,
        )
        upper.deadline, upper.kept, upper.reads, upper.leases = node.deadline, node.kept, node.reads, node.leases
        key = node.tokens[: self._stride]
        parent.drop(key)
        parent.attach(upper, key)
        node.tokens, node.hashes, node.payload = (
            node.tokens[cut:],
            node.hashes[blocks * HASH_BYTES :],
            node.payload[blocks:],
        )
        upper.attach(node, node.tokens[: self._stride])
        self._nodes += 1
        return upper

    def _append(self, node: Node[P], tokens: bytes, payload: list[P], retention: Retention, now: float) -> Node[P]:
        """Add fresh blocks below `node`, whose one lease is the writer's; return the new end, leased."""
        hashes = chain(BlockHash(node.last_hash), tokens, self.block_tokens)
        self._blocks += len(payload)
        if node.leases == 1 and not node.children and _as_written(node, retention):  # the same request goes on
            node.tokens += tokens
            node.hashes += hashes
            node.payload += payload
            node.used = now
            return node
        child = Node(node, tokens, hashes, payload, retention, now)
        child.leases = 1
        node.attach(child, tokens[: self._stride])
        self._nodes += 1
        return child

    def _write_again(self, node: Node[P], retention: Retention, now: float) -> None:
        """Take note that an existing block was computed again: the longer class holds, a shorter one never shortens."""
        before = by_pressure(node)
        if node.deadline <= now or retention.deadline > node.deadline:
            node.retention = retention
        node.kept = max(node.kept, retention.kept) if node.deadline > now else retention.kept
        node.deadline = max(node.deadline, retention.deadline)
        node.used = now
        if by_pressure(node) < before:
            self._pressed.discard(node)

    def _renew(self, node: Node[P], now: float) -> None:
        """Renew a path from its end up, each node by its own class; a parent never ends before its child."""
        below = 0.0
        fixed = False
        at: Node[P] | None = node
        while at is not None and at.retention is not None:
            if at.retention.sliding:
                at.deadline = below = max(at.deadline, now + at.retention.ttl_s, below)
            else:
                fixed = fixed or at.deadline < below
                below = at.deadline
            at.used = now
            at.reads += 1
            at = at.parent
        if fixed:
            self._cap(node)

    def _lift(self, node: Node[P], deadline: float, end: Node[P]) -> None:
        """After a write down to `end`: what is above it lives as long, up to a fixed node, which caps it instead."""
        at: Node[P] | None = node
        while at is not None and at.retention is not None and at.deadline < deadline:
            if not at.retention.sliding:
                self._cap(end)
                return
            at.deadline = deadline
            at = at.parent

    def _cap(self, node: Node[P]) -> None:
        """No node of the path outlives its parent."""
        path = []
        at: Node[P] | None = node
        while at is not None:
            path.append(at)
            at = at.parent
        for parent, child in zip(path[::-1], path[-2::-1], strict=False):
            child.deadline = min(child.deadline, parent.deadline)

    def _hold(self, node: Node[P]) -> None:
        """Count a lease on a node and everything above it."""
        at: Node[P] | None = node
        while at is not None:
            self._pin(at)
            at = at.parent

    def _pin(self, node: Node[P]) -> None:
        if not node.leases:
            self._idle -= len(node.payload)
        node.leases += 1

    def _let_go(self, node: Node[P], now: float) -> list[P]:
        """Count a lease off a path; free what nobody holds any more and may not stay."""
        at: Node[P] | None = node
        while at is not None:
            at.leases -= 1
            at.used = max(at.used, now)
            if not at.leases:
                self._idle += len(at.payload)
            at = at.parent
        freed: list[P] = []
        at = node
        while at is not None and at.idle_leaf and (at.detached or at.deadline <= now):
            parent = at.parent
            freed += self._remove(at)
            at = parent
        if not freed:  # else each removal settled the node above it
            self._settle(node)
        return freed

    def _settle(self, node: Node[P]) -> None:
        """Queue a node that has become an idle leaf; drop a root that has become empty."""
        if node.idle_leaf:
            self._expiring.push(node)
            self._pressed.push(node)
        elif node.namespace is not None and not node.children and not node.leases:
            del self._roots[node.namespace]

    def _remove(self, node: Node[P]) -> list[P]:
        """Take an idle leaf out of the tree; return its payload."""
        parent = node.parent
        assert parent is not None and node.idle_leaf
        parent.drop(node.tokens[: self._stride])
        node.parent = None
        self._nodes -= 1
        self._blocks -= len(node.payload)
        self._idle -= len(node.payload)
        self._settle(parent)
        self._expiring.trim(self._nodes)
        self._pressed.trim(self._nodes)
        return node.payload

    def _cut(self, node: Node[P], blocks: int) -> list[P]:
        """Take the last `blocks` blocks off an idle leaf that has more."""
        keep = len(node.payload) - blocks
        freed = node.payload[keep:]
        node.tokens, node.hashes = node.tokens[: keep * self._stride], node.hashes[: keep * HASH_BYTES]
        node.payload = node.payload[:keep]
        self._blocks -= blocks
        self._idle -= blocks
        return freed


def _as_written(node: Node[P], retention: Retention) -> bool:
    """Whether what holds for `node` is no more than what its writer asked for: neither a read nor a twin raised it."""
    return node.retention is retention and node.deadline <= retention.deadline and node.kept is retention.kept
