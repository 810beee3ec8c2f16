"""The radix tree: which prefixes exist, until when, and who is reading them.

Knows no torch, no clock and no blocks: the payload is whatever the owner stores per block. Rules:
- a hash never decides: every block is found and verified by its tokens, under a namespace compared in full;
- alive while `now < deadline`, and a parent's deadline is never before its child's;
- a lease outlives the deadline: what expired meanwhile is not matched any more and goes at the release.
How nodes come, are held and go, is `prefix_store.nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prefix_store import audit, lifetimes
from prefix_store.chain import TOKEN_BYTES, BlockHash, Namespace, chain, root
from prefix_store.leases import Lease, Match, Published
from prefix_store.match import best_tail, payload_to, walk
from prefix_store.node import Node, common_tokens
from prefix_store.nodes import Nodes, P
from prefix_store.reasons import Absence, Fate
from prefix_store.retention import Kept, Retention


class RadixTree(Nodes[P]):
    """Prefixes of many namespaces. All times are the caller's monotonic seconds."""

    def peek(self, namespace: Namespace, tokens: bytes, now: float) -> Match[P]:
        """Return the longest live prefix of `tokens`. Renews nothing and splits nothing. O(tokens + nodes)."""
        top = self._roots.get(namespace)
        if top is None:
            return Match(0, [], None, 0)
        place = walk(top, tokens, now, self.block_tokens)
        payload = payload_to(place.node.parent) if place.blocks else payload_to(place.node)
        payload += place.node.payload[: place.blocks]
        idle = place.blocks if not place.node.leases else 0
        above = place.node.parent if place.blocks else place.node
        while above is not None:
            idle += 0 if above.leases else len(above.payload)
            above = above.parent
        return Match(place.tokens, payload, best_tail(place, tokens, now, self.block_tokens), idle)

    def lease(self, namespace: Namespace, tokens: bytes, now: float, *, again: bool = False) -> Lease[P]:
        """Take hold of the longest live prefix, renew it and every ancestor by their own classes. O(tokens + nodes).

        With `again` a request comes back to what it had leased before, which is counted as no read.
        """
        top = self._roots.get(namespace)
        if top is None:
            top = self._roots[namespace] = Node(None, b"", root(namespace), [], None, now, namespace)
        place = walk(top, tokens, now, self.block_tokens)
        tail = best_tail(place, tokens, now, self.block_tokens)
        end = self._split(place.node, place.blocks) if place.blocks else place.node
        if not again:
            self.spans.read(lifetimes.path_up(end), now)
        lifetimes.renew(end, now)
        self._hold(end)
        if tail is not None:
            self._hold(tail.node)
        return Lease(end, place.tokens, payload_to(end), tail, self._purges.get(namespace.tenant, 0))

    def release_tail(self, lease: Lease[P], now: float) -> list[P]:
        """Let go of the block that was copied from. Return what is free now."""
        tail, lease.tail = lease.tail, None
        return [] if tail is None else self._let_go(tail.node, now)

    def promise(self, lease: Lease[P], tokens: int, retention: Retention, now: float) -> None:
        """Raise the whole blocks of the path's first `tokens` tokens, which must be on it, to `retention`. O(nodes).

        The path is cut where the mark ends, so that what follows keeps its own times.
        """
        assert tokens % self.block_tokens == 0 and tokens <= lease.tokens, "a promise covers whole blocks of the path"
        depth = lease.tokens
        for node in list(lifetimes.path_up(lease.node)):
            start = depth - len(node.payload) * self.block_tokens
            if start < tokens:
                upper = self._split(node, (tokens - start) // self.block_tokens) if depth > tokens else node
                self._write(upper, retention, now)
            depth = start
        lifetimes.cap(lease.node)

    def unpromised(self, lease: Lease[P], tokens: bytes, now: float) -> int:
        """Return how many whole blocks of `tokens`, a prompt's beginning, are not promised yet. O(nodes)."""
        wanted, depth, promised = len(tokens) // self._stride, lease.tokens // self.block_tokens, 0
        for node in lifetimes.path_up(lease.node):
            start = depth - len(node.payload)
            if node.kept is Kept.PROMISED:
                promised += max(0, min(depth, wanted) - start)
            depth = start
        node, at = lease.node, lease.tokens * TOKEN_BYTES
        while at < len(tokens) and (child := node.child(tokens[at : at + self._stride])) and child.deadline > now:
            shared = common_tokens(child.tokens, tokens[at : at + len(child.tokens)]) // self.block_tokens
            promised += shared if child.kept is Kept.PROMISED else 0
            if shared < len(child.payload):
                break
            node, at = child, at + len(child.tokens)
        return wanted - promised

    def deadline(self, lease: Lease[P], tokens: int) -> float:
        """Return when the leased block that ends at `tokens` expires; 0 where the path ends before. O(nodes)."""
        depth = lease.tokens
        for node in lifetimes.path_up(lease.node):
            start = depth - len(node.payload) * self.block_tokens
            if start < tokens <= depth:
                return node.deadline
            depth = start
        return 0.0

    def publish(
        self, lease: Lease[P], tokens: bytes, payload: Sequence[P], now: float, retention: Retention
    ) -> Published[P]:
        """Add the next whole blocks after the lease's end and move the lease down over them.

        Blocks that the tree has already are not stored twice; they are renewed, since they have been written again.
        After a purge of the path or its tenant nothing is stored: the caller keeps its payload. O(tokens + nodes).
        """
        if not self.storable(lease):
            return Published(list(payload), [], stored=False)
        assert len(tokens) == len(payload) * self._stride, "publish takes whole blocks"
        above, node, at, held, covered = lease.node, lease.node, 0, [], []
        while at < len(tokens) and (child := node.child(tokens[at : at + self._stride])) is not None:
            shared = common_tokens(child.tokens, tokens[at : at + len(child.tokens)]) // self.block_tokens
            if shared < len(child.payload):
                child = self._split(child, shared)
            self._write(child, retention, now)
            self._pin(child)
            held += child.payload
            node, at = child, at + len(child.tokens)
        fresh = list(payload[len(held) :])
        if fresh:
            covered = self._cover(node, tokens[at : at + self._stride], retention, now)
            node = self._append(node, tokens[at:], fresh, retention, now)
        lease.node, lease.tokens = node, lease.tokens + len(payload) * self.block_tokens
        if payload:
            lifetimes.lift(above, retention.deadline, node)
        return Published(held + fresh, [*payload[: len(held)], *covered])

    def keep_partial(self, lease: Lease[P], tokens: bytes, payload: P, now: float, retention: Retention) -> list[P]:
        """Keep a block of which only `tokens` are written, below the lease's end: the next reader goes on from it.

        Return what is free now: shorter beginnings of it, and `payload` itself if its tokens are known or were purged.
        """
        assert 0 < len(tokens) < self._stride, "a partial block has some tokens, not all"
        if not self.storable(lease):
            return [payload]
        known = lease.node.covering(tokens)
        if known is not None and known.tokens == tokens:
            self._write(known, retention, now)
            lifetimes.lift(lease.node, retention.deadline, known)
            self._settle(known)
            return [payload]
        if known is not None and known.deadline >= retention.deadline and known.kept >= retention.kept:
            return [payload]  # as long as is asked for; what goes beyond `tokens` was not written again
        covered = self._cover(lease.node, tokens, retention, now)
        hashes = chain(BlockHash(lease.node.last_hash), tokens, len(tokens) // TOKEN_BYTES)
        node = Node(lease.node, tokens, hashes, [payload], retention, now, lease.node.namespace)
        node.renewed = retention.since
        self._enter(lease.node, node)
        lifetimes.lift(lease.node, retention.deadline, node)
        self._settle(node)
        return covered

    def adopt(self, lease: Lease[P], retention: Retention, now: float) -> P | None:
        """Take the partial block that a lease's tail is out of the tree, for its new owner to write on.

        None where it is to be copied from: others read it, only a part of it agrees, or it is kept for longer than
        what is written now will be.
        """
        tail = lease.tail
        if tail is None or tail.tokens != tail.node.length or tail.node.leases != 1 or tail.node.detached:
            return None
        if tail.node.kept is not Kept.HELD or not now < tail.node.deadline <= retention.deadline:
            return None
        self.release_tail(lease, now)
        (payload,) = self._absorb(tail.node, now)
        return payload

    def movable(self, lease: Lease[P]) -> bool:
        """Whether nobody else reads any of a lease's path, so that its payload may lie elsewhere. O(nodes)."""
        own = 1 if lease.tail is None else 2  # a tail holds everything above it, too
        return not lease.node.detached and all(node.leases == own for node in lifetimes.path_up(lease.node))

    def relocate(self, lease: Lease[P], payload: list[P]) -> list[P]:
        """Let a lease's whole path lie in `payload`, one per block, in order. Return what is spare.

        That is what lay there before, or `payload` itself where the path is not `movable`.
        """
        if not self.movable(lease):
            return payload
        assert len(payload) * self.block_tokens == lease.tokens, "a path has one payload a block"
        before, end = payload_to(lease.node), len(payload)
        for node in lifetimes.path_up(lease.node):
            start = end - len(node.payload)
            node.payload, end = payload[start:end], start
        return before

    def storable(self, lease: Lease[P]) -> bool:
        """Whether what this lease publishes is stored: not after a purge of its path or its tenant."""
        return not lease.node.detached and lease.generation == self._purges.get(lease.node.namespace.tenant, 0)

    def release(self, lease: Lease[P], now: float) -> list[P]:
        """End a lease. Return the payload that expired or was purged meanwhile and is free now. O(nodes)."""
        freed = self.release_tail(lease, now)
        return freed + self._let_go(lease.node, now)

    def sweep(self, now: float, budget: int) -> list[P]:
        """Free at most `budget` expired nodes. O(budget · log n)."""
        freed: list[P] = []
        while budget > 0 and (node := self._expiring.first()) is not None and node.deadline <= now:
            freed += self._expire(node, now)
            budget -= 1
        return freed

    def evict(self, count: int, now: float) -> list[P]:
        """Free `count` blocks if that many are idle: expired ones first, then in the order of pressure, leaves first.

        A leaf's run is cut from its end, so that no more goes than must. O(log n) a node.
        """
        freed: list[P] = []
        while len(freed) < count:
            node = self._expiring.first()
            if node is not None and node.deadline <= now:
                freed += self._expire(node, now)
                continue
            node = self._pressed.first(self.census.over)
            if node is None:
                break
            freed += self._press(node, count - len(freed), now)
        return freed

    def absences(self, lease: Lease[P], tokens: bytes) -> list[Absence]:
        """Say what became of the whole blocks of `tokens` after the lease's end, which it did not find. O(tokens)."""
        missing = chain(BlockHash(lease.node.last_hash), tokens[lease.tokens * TOKEN_BYTES :], self.block_tokens)
        return self.tombstones.explain(missing)

    # ---- what operators do ----

    def locate(self, namespace: Namespace, tokens: bytes, now: float) -> Node[P] | None:
        """Return the highest node of which everything below continues `tokens` as far as it is known; None: nothing is.

        Cuts a run where `tokens` end inside it.
        """
        top = self._roots.get(namespace)
        if top is None:
            return None
        place = walk(top, tokens, now, self.block_tokens)
        node = self._split(place.node, place.blocks) if place.blocks else place.node
        while node.parent is not None and node.parent.retention is not None and len(node.parent.children) == 1:
            node = node.parent
        return node if node.retention is not None else None

    def detach(self, top: Node[P], now: float) -> list[P]:
        """Take a subtree out of the tree. Return what is free now; leased parts follow at their release. O(nodes)."""
        parent = top.parent
        assert parent is not None, "a root is never detached, its children are"
        parent.drop(top.tokens[: self._stride])
        top.parent = None
        for above in [*lifetimes.path_up(parent), self._roots[top.namespace]]:
            above.leases -= top.leases
            if not above.leases and top.leases:
                self.census.idle += len(above.payload)
        self._settle(parent)
        freed: list[P] = []
        for node in reversed(list(top.subtree())):
            self._bury(node.hashes, Fate.PURGED, now)
            node.detached = True
            if not node.leases:
                freed += self._remove(node, now)
        if top.leases:
            self._detached.add(top)
        return freed

    def forbid(self, tenants: Iterable[str]) -> None:
        """After a purge: requests of these tenants that are under way may not publish what was purged."""
        for tenant in tenants:
            self._purges[tenant] = self._purges.get(tenant, 0) + 1

    def shorten(self, terms: Callable[[Namespace], tuple[float | None, float]], now: float) -> None:
        """Apply lowered policies to every node: `terms` gives a namespace's (held, longest) TTL, in s. O(nodes)."""
        nodes = [node for node in self.nodes() if not node.detached]
        for node, deadline in lifetimes.shortened(nodes, terms, now).items():
            node.shortened = node.shortened or deadline < node.deadline
            node.retention = lifetimes.limited(node, *terms(node.namespace)) or node.retention
            node.deadline = min(node.deadline, deadline)
        self._expiring.renumber()

    def check(self) -> None:
        """Raise if any invariant is broken. O(tokens)."""
        audit.check(self)
