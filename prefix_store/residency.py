"""Which replica is believed to hold which prefix, until when: a radix tree of hashes, bounded for each replica.

Owns the nodes and what is believed of each replica. Knows no tokens, no text, no network and no clock: a prefix is a
packed chain of 8-byte links, each committing to all before it. Rules:
- what a replica holds is closed under prefixes: whoever has a block has every block before it;
- a belief lives while `now < deadline`, and no longer than its replica: removing or restarting one ends all of them in
  one step;
- a replica's beliefs never exceed its capacity: the least recently used go first, ends before beginnings;
- looking renews nothing. Every number here is a belief: only an answer says what was really read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from prefix_store.residency_node import LINK_BYTES, NOTHING, Belief, Held, Holder, Node, agreeing

CAPACITY = 1 << 20  # blocks that a replica is believed to hold where nobody says


class Residency:
    """Beliefs about replicas. Replicas are named by whoever asks."""

    def __init__(self) -> None:
        self._top = Node(None, b"")
        self._replicas: dict[str, Holder] = {}
        self.nodes = 0

    def blocks(self, replica: str) -> int:
        """Return how many blocks a replica is believed to hold, expired ones included until they are swept."""
        known = self._replicas.get(replica)
        return 0 if known is None else known.blocks

    def bound(self, replica: str, capacity: int) -> None:
        """Say how many blocks a replica can hold. What is too much goes at once."""
        known = self._known(replica)
        known.capacity = capacity
        self._fit(known)

    def match(self, path: bytes, now: float, among: Sequence[str] | None = None) -> dict[str, Held]:
        """Return how much of `path`'s beginning each replica holds; those that hold none are left out.

        O(nodes on the path × replicas that hold them).
        """
        held: dict[str, Held] = {}
        replicas = self._replicas
        running: Collection[str] = replicas if among is None else dict.fromkeys(among)
        for node, shared in self._walk(path):
            onward: dict[str, None] = {}
            holders = node.held_by()
            for name in running if len(running) < len(holders) else [holder.name for holder in holders]:
                belief = replicas[name].order.get(node) if name in replicas else None
                if belief is None or name not in running or belief.deadline <= now:
                    continue
                blocks, pending = held.get(name, NOTHING)
                more = min(belief.blocks, shared)
                held[name] = Held(blocks + more, pending if belief.sure else pending + more)
                if belief.blocks >= shared == node.blocks:
                    onward[name] = None
            if not onward:
                break
            running = onward
        return held

    def note(self, replica: str, path: bytes, deadline: float, now: float, *, sure: bool = True) -> None:
        """Believe that a replica holds `path`, until `deadline` or longer if it was believed so. O(path).

        Not `sure`: the request that will make it so has only been sent.
        """
        known = self._known(replica)
        if len(path) > known.capacity * LINK_BYTES:
            path = path[: known.capacity * LINK_BYTES]
        trail: list[Node] = []
        end, at = self._top, 0
        for node, shared in list(self._walk(path)):
            at += shared * LINK_BYTES
            other = known.order.get(node)
            cut = at < len(path) or (other is not None and other.blocks > shared)  # what follows keeps its own times
            end = self._split(node, shared) if shared < node.blocks and cut else node
            self._believe(known, end, Belief(shared, deadline, now, sure))
            trail.append(end)
        if at < len(path):
            fresh = Node(end, path[at:])
            end.attach(fresh)
            self.nodes += 1
            self._believe(known, fresh, Belief(fresh.blocks, deadline, now, sure))
            trail.append(fresh)
        for node in reversed(trail):
            known.order.move_to_end(node)
        self._fit(known)

    def last_use(self, replica: str, path: bytes, blocks: int) -> float | None:
        """Return when the block before `blocks` of `path` was last used on a replica; None: nobody is sure of it.

        Asked before a request is sent, so that its answer can be held against what was believed then. O(nodes).
        """
        known, at = self._replicas.get(replica), 0
        for node, shared in self._walk(path):
            belief = None if known is None else known.order.get(node)
            if belief is None:
                return None
            at += min(belief.blocks, shared)
            if at >= blocks:
                return belief.used if belief.sure else None
        return None

    def cut(self, replica: str, path: bytes, blocks: int) -> None:
        """Believe that of `path` a replica holds no more than the first `blocks` blocks. O(nodes below)."""
        known, at = self._replicas.get(replica), 0
        for node, shared in list(self._walk(path)):
            belief = None if known is None else known.order.get(node)
            if known is None or belief is None:
                return
            if at + shared > blocks and belief.blocks > blocks - at:
                self._shrink(known, node, max(0, blocks - at))
                return
            at += shared

    def contradict(self, replica: str, used: float) -> int:
        """Hear that a block last used at `used` was not there any more. Return how many blocks are believed no longer.

        Whoever evicts by least recent use and has lost a block has lost every one that was used no later, so those
        beliefs go: a replica that was wiped is forgotten by its first answers. O(nodes of the replica).
        """
        known = self._replicas.get(replica)
        if known is None:
            return 0
        before = known.blocks
        for node in [one for one, belief in known.order.items() if belief.used <= used]:
            if node in known.order:
                self._shrink(known, node, 0)
        return before - known.blocks

    def forget(self, replica: str) -> int:
        """Drop all that is believed of a replica: it restarted, was reset or is gone. Return the blocks."""
        known = self._replicas.pop(replica, None)
        if known is None:
            return 0
        for node in known.order:
            node.let_go(known)
        for node in known.order:
            self._prune(node)
        return known.blocks

    def sweep(self, now: float, budget: int) -> int:
        """Drop expired beliefs among the `budget` least recently used of each replica. Return the blocks."""
        gone = 0
        for known in self._replicas.values():
            before = known.blocks
            for node in list(islice(known.order, budget)):
                belief = known.order.get(node)
                if belief is not None and belief.deadline <= now:
                    self._shrink(known, node, 0)
            gone += before - known.blocks
        return gone

    def check(self) -> None:
        """Assert every rule of the module. O(everything)."""
        counted: dict[Holder, int] = dict.fromkeys(self._replicas.values(), 0)
        stack, nodes = [self._top], 0
        while stack:
            node = stack.pop()
            nodes += node is not self._top
            for child in node.below():
                assert child.parent is node and node.child(child.links[:LINK_BYTES]) is child, "found by its first link"
                assert child.below() or child.held_by(), "a leaf that nobody is believed to hold is pruned"
                stack.append(child)
            for holder in node.held_by():
                belief = holder.order[node]
                assert 0 < belief.blocks <= node.blocks, "a belief covers part of the run"
                counted[holder] += belief.blocks
                parent = node.parent
                if parent is not None and parent is not self._top:
                    above = holder.order.get(parent)
                    assert above is not None and above.blocks == parent.blocks, "beliefs are closed under prefixes"
                    assert above.deadline >= belief.deadline, "a beginning lives as long as what follows it"
        assert nodes == self.nodes, "nodes are counted as they come and go"
        for name, known in self._replicas.items():
            assert known.name == name, "a replica has its own name"
            assert counted[known] == known.blocks <= known.capacity, "a replica's blocks are counted and bounded"
            assert all(known in node.held_by() for node in known.order), "the order holds believed nodes only"

    # ---- inside ----

    def _known(self, replica: str) -> Holder:
        known = self._replicas.get(replica)
        if known is None:
            known = self._replicas[replica] = Holder(replica, CAPACITY, 0, OrderedDict())
        return known

    def _walk(self, path: bytes) -> Iterator[tuple[Node, int]]:
        """Yield each node on the way of `path`, and how many of its blocks they share."""
        node, at = self._top, 0
        while at < len(path):
            child = node.child(path[at : at + LINK_BYTES])
            if child is None:
                return
            shared = agreeing(child.links, path, at)
            yield child, shared
            if shared < child.blocks:
                return
            node, at = child, at + shared * LINK_BYTES

    def _believe(self, known: Holder, node: Node, new: Belief) -> None:
        belief = known.order.get(node)
        if belief is None:
            known.order[node] = new
            node.hold(known)
            known.blocks += new.blocks
            return
        known.blocks += max(0, new.blocks - belief.blocks)
        belief.sure = new.sure or (belief.sure and belief.blocks >= new.blocks)
        belief.blocks = max(belief.blocks, new.blocks)
        belief.deadline = max(belief.deadline, new.deadline)
        belief.used = new.used

    def _split(self, node: Node, blocks: int) -> Node:
        """Cut a run after `blocks`. Return the upper part, which is new."""
        cut, parent = blocks * LINK_BYTES, node.parent
        assert parent is not None, "the top has no run"
        upper = Node(parent, node.links[:cut])
        parent.attach(upper)
        node.parent, node.links = upper, node.links[cut:]
        upper.attach(node)
        self.nodes += 1
        for known in list(node.held_by()):
            belief = known.order[node]
            known.order[upper] = Belief(min(blocks, belief.blocks), belief.deadline, belief.used, belief.sure)
            upper.hold(known)
            if belief.blocks > blocks:
                belief.blocks -= blocks
            else:
                del known.order[node]
                node.let_go(known)
        if not node.held_by() and not node.below():  # nobody was believed to hold what lies behind the cut
            upper.detach(node)
            self.nodes -= 1
        return upper

    def _fit(self, known: Holder) -> None:
        """Give up what is too much: the end that was used longest ago."""
        while known.blocks > known.capacity:
            node, belief = next(iter(known.order.items()))
            if any(child in known.order for child in node.below()):
                known.order.move_to_end(node)
                continue
            self._shrink(known, node, max(0, belief.blocks - (known.blocks - known.capacity)))

    def _shrink(self, known: Holder, node: Node, blocks: int) -> None:
        """Believe in no more than the first `blocks` of a node's run, and in nothing below it."""
        stack = [child for child in node.below() if child in known.order]
        while stack:
            child = stack.pop()
            stack += [one for one in child.below() if one in known.order]
            self._drop(known, child)
        belief = known.order[node]
        if blocks >= belief.blocks:
            return
        if blocks:
            known.blocks -= belief.blocks - blocks
            belief.blocks = blocks
        else:
            self._drop(known, node)
        self._prune(node)

    def _drop(self, known: Holder, node: Node) -> None:
        known.blocks -= known.order.pop(node).blocks
        node.let_go(known)
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Take out a leaf that nobody is believed to hold, and what that leaves bare above it."""
        while node.parent is not None and not node.below() and not node.held_by():
            parent = node.parent
            if not parent.detach(node):
                return
            self.nodes -= 1
            node = parent
