"""Tree and slow truth side by side: every operation is done to both and their answers are compared at once."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import count
from math import isclose

from prefix_store.chain import Namespace
from prefix_store.leases import Lease
from prefix_store.node import Node
from prefix_store.radix import RadixTree
from prefix_store.retention import Kept, Retention
from tests.prefix_store.oracle import Oracle, Tokens

BLOCK = 2  # tokens a block: a tail is then a single token
FAR = 1e9

CLASSES = {  # name → how long, how firmly, renewed by reads or not, priority
    "short": (10.0, Kept.HELD, True, 50),
    "long": (40.0, Kept.HELD, True, 50),
    "fixed": (25.0, Kept.HELD, False, 50),
    "promised": (30.0, Kept.PROMISED, True, 50),
    "dear": (15.0, Kept.PROMISED, True, 90),
    "cheap": (50.0, Kept.PROMISED, True, 10),
}


def pack(tokens: Tokens | list[int]) -> bytes:
    """Write token ids as the store wants them."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpack(tokens: bytes) -> Tokens:
    """Read them back."""
    return struct.unpack(f"<{len(tokens) // 4}I", tokens)


def space(**parts: str) -> Namespace:
    """A namespace of the tests, changed in `parts`."""
    given = {"tenant": "t", "model": "m", "weights": "w", "kv_dtype": "float32"} | parts
    return Namespace(block_tokens=BLOCK, **given)


def retention(
    ttl_s: float = 300.0, since: float = 0.0, kept: Kept = Kept.HELD, sliding: bool = True, priority: int = 50
) -> Retention:
    """A retention of the tests."""
    return Retention(klass=f"{ttl_s:g}s", ttl_s=ttl_s, since=since, kept=kept, sliding=sliding, priority=priority)


def of_class(name: str, since: float) -> Retention:
    """One of the classes above, asked for by a request that was admitted at `since`."""
    ttl_s, kept, sliding, priority = CLASSES[name]
    return retention(ttl_s, since, kept, sliding, priority)


def place(node: Node[int]) -> tuple[Namespace, Tokens]:
    """Where a node ends: its namespace and all tokens up to there."""
    runs = []
    while node.parent is not None:
        runs.append(unpack(node.tokens))
        node = node.parent
    assert node.namespace is not None
    return node.namespace, sum(reversed(runs), ())


@dataclass
class Request:
    """One lease, and where it stands."""

    lease: Lease[int]
    namespace: Namespace
    end: Tokens
    tail_end: Tokens | None  # the end of the run that holds the tail: all of it is locked
    retention: Retention


@dataclass
class Twins:
    """A tree and its truth, with a hand clock."""

    block: int = BLOCK
    tree: RadixTree[int] = field(init=False)
    oracle: Oracle = field(init=False)
    now: float = 0.0
    requests: list[Request] = field(default_factory=list)
    names: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.tree, self.oracle = RadixTree(self.block), Oracle(self.block)

    def peek(self, namespace: Namespace, tokens: Tokens) -> None:
        """Look, and see that looking changed nothing."""
        before = self.tree.stats()
        found = self.tree.peek(namespace, pack(tokens), self.now)
        end = self.oracle.match(namespace, tokens, self.now)
        assert (found.tokens, found.payload) == (len(end), self.oracle.payload(namespace, end))
        tails = self.oracle.tails(namespace, tokens, self.now)
        assert (found.tail is None) == (not tails)
        assert found.tail is None or tails[found.tail.payload] == found.tail.tokens
        assert self.tree.stats() == before

    def lease(self, namespace: Namespace, tokens: Tokens, klass: str) -> None:
        """Take hold of the longest match."""
        self.peek(namespace, tokens)
        end = self.oracle.match(namespace, tokens, self.now)
        tails = self.oracle.tails(namespace, tokens, self.now)
        lease = self.tree.lease(namespace, pack(tokens), self.now)
        self.oracle.renew(namespace, end, self.now)
        self.oracle.hold(namespace, end)
        assert (lease.tokens, lease.payload) == (len(end), self.oracle.payload(namespace, end))
        assert (lease.tail is None) == (not tails)
        tail_end = None
        if lease.tail is not None:
            assert tails[lease.tail.payload] == lease.tail.tokens
            _, tail_end = place(lease.tail.node)
            self.oracle.hold(namespace, tail_end)
        self.requests.append(Request(lease, namespace, end, tail_end, of_class(klass, self.now)))

    def copied(self, request: Request) -> None:
        """Let go of the tail."""
        freed = self.tree.release_tail(request.lease, self.now)
        assert sorted(freed) == sorted(self._let_go_tail(request))

    def publish(self, request: Request, tokens: Tokens) -> None:
        """Write whole blocks after a lease."""
        mine = [next(self.names) for _ in range(len(tokens) // self.block)]
        got = self.tree.publish(request.lease, pack(tokens), mine, self.now, request.retention)
        kept, spare = self.oracle.publish(request.namespace, request.end, tokens, mine, self.now, request.retention)
        assert (got.payload, got.spare) == (kept, spare)
        request.end += tokens
        assert request.lease.tokens == len(request.end)

    def keep_partial(self, request: Request, tokens: Tokens) -> None:
        """Keep a block that is not full after a lease."""
        mine = next(self.names)
        got = self.tree.keep_partial(request.lease, pack(tokens), mine, self.now, request.retention)
        truth = self.oracle.keep_partial(request.namespace, request.end, tokens, mine, self.now, request.retention)
        assert sorted(got) == sorted(truth)

    def adopt(self, request: Request) -> None:
        """Go on in the partial block that a lease found."""
        tail = request.lease.tail
        got = self.tree.adopt(request.lease, request.retention, self.now)
        if tail is None or request.tail_end is None:
            assert got is None
            return
        truth = self.oracle.adopt(request.namespace, request.tail_end, tail.tokens, self.now, request.retention)
        assert got == truth
        if got is not None:
            request.tail_end = None

    def release(self, request: Request) -> None:
        """End a lease."""
        self.requests.remove(request)
        freed = self.tree.release(request.lease, self.now)
        truth = self._let_go_tail(request) + self.oracle.let_go(request.namespace, request.end, self.now)
        assert sorted(freed) == sorted(truth)

    def evict(self, blocks: int) -> None:
        """Make room."""
        self.oracle.judge_evicted(self.tree.evict(blocks, self.now), blocks, self.now)

    def sweep(self, budget: int) -> None:
        """Free some expired nodes."""
        before = self.tree.stats().nodes
        self.oracle.judge_swept(self.tree.sweep(self.now, budget), self.now)
        swept = before - self.tree.stats().nodes
        assert swept <= budget
        assert swept == budget or not self.oracle.sweepable(self.now)

    def end(self) -> None:
        """Release everything and evict it: nothing may be left."""
        while self.requests:
            self.release(self.requests[-1])
        self.evict(self.tree.stats().blocks)
        self.check()
        stats = self.tree.stats()
        assert (stats.nodes, stats.blocks, stats.idle, len(self.tree._roots)) == (0, 0, 0, 0)

    def check(self) -> None:
        """Compare everything that both know."""
        self.tree.check()
        stats, blocks = self.tree.stats(), self.oracle.blocks
        assert stats.blocks == len(blocks)
        assert stats.idle == sum(not block.holds for block in blocks.values())
        for name in ("lifetime", "idle_before_evict", "reuse_gap", "age_at_read"):
            told, slow = getattr(self.tree.spans, name), getattr(self.oracle, name)
            assert told.counts == slow.counts, name
            assert isclose(told.total_s, slow.total_s, abs_tol=1e-6), name
        for queue in (self.tree._expiring, self.tree._pressed):
            assert len(queue) <= 2 * stats.nodes + 64
        for node in self.tree.nodes():
            namespace, end = place(node)
            first = len(end) - node.length
            for index, payload in enumerate(node.payload):
                truth = blocks[namespace, end[: first + (index + 1) * self.block]]
                assert payload == truth.payload
                assert (node.deadline, node.kept, node.retention) == (truth.deadline, truth.kept, truth.retention)
                assert bool(node.leases) == bool(truth.holds)
                assert node.leases or node.used == truth.used

    def _let_go_tail(self, request: Request) -> list[int]:
        end, request.tail_end = request.tail_end, None
        return [] if end is None else self.oracle.let_go(request.namespace, end, self.now)
