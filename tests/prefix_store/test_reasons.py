"""What is remembered of blocks that went, and in which order pressure takes tenants."""

from __future__ import annotations

import pytest

from prefix_store.chain import Namespace, chain, root
from prefix_store.radix import RadixTree
from prefix_store.reasons import Absence, Fate, Tombstones
from prefix_store.retention import Kept, Retention

B = 2


def space(tenant: str = "t", *, weights: str = "w", rendering: str = "", kv_dtype: str = "f") -> Namespace:
    """One tenant's namespace."""
    return Namespace(tenant=tenant, model="m", weights=weights, rendering=rendering, kv_dtype=kv_dtype, block_tokens=B)


def pack(*tokens: int) -> bytes:
    """Tokens as the tree reads them."""
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def hashes(*tokens: int) -> bytes:
    """The packed chain of some tokens."""
    return chain(root(space()), pack(*tokens), B)


def put(
    tree: RadixTree[str],
    tokens: bytes,
    now: float,
    *,
    tenant: str = "t",
    ttl_s: float = 300.0,
    kept: Kept = Kept.HELD,
    priority: int = 50,
) -> None:
    """Write a prompt and let go of it."""
    retention = Retention(klass="5m", ttl_s=ttl_s, since=now, kept=kept, priority=priority)
    lease = tree.lease(space(tenant), tokens, now)
    fresh = tokens[lease.tokens * 4 :]
    tree.publish(lease, fresh, [f"{tenant}{at}" for at in range(len(fresh) // 4 // B)], now, retention)
    tree.release(lease, now)
    tree.check()


def test_a_run_is_explained_as_far_as_it_agrees():
    """Two of three blocks went together; the third of another prompt was never written."""
    stones = Tombstones(10)
    stones.bury(hashes(1, 2, 3, 4, 5, 6), Fate.EXPIRED, 7.0)
    assert stones.explain(hashes(1, 2, 3, 4, 9, 9)) == [
        Absence(Fate.EXPIRED, 2, 7.0),
        Absence(Fate.NEVER_WRITTEN, 1),
    ]


def test_neighbours_of_one_fate_are_one_run():
    """Two tombstones of the same cause and time are told as one."""
    stones = Tombstones(10)
    whole = hashes(1, 2, 3, 4)
    stones.bury(whole[:16], Fate.EVICTED, 7.0)
    stones.bury(whole[16:], Fate.EVICTED, 7.0)
    assert stones.explain(whole) == [Absence(Fate.EVICTED, 2, 7.0)]


def test_the_memory_is_bounded_and_forgets_the_oldest():
    """Of three runs of two blocks a memory of four keeps the newest two; a longer run keeps its beginning."""
    stones = Tombstones(4)
    for first in (1, 2, 3):
        stones.bury(hashes(first, 0, first, 1), Fate.EXPIRED, float(first))
    assert (len(stones), stones.blocks) == (2, 4)
    assert stones.explain(hashes(1, 0)) == [Absence(Fate.NEVER_WRITTEN, 1)]
    stones.bury(hashes(*range(20)), Fate.PURGED, 9.0)
    assert (len(stones), stones.blocks) == (1, 4)


def test_what_is_written_again_is_no_longer_mourned():
    """A block that comes back has no tombstone, so its next end is told by its own cause."""
    tree: RadixTree[str] = RadixTree(B)
    put(tree, pack(1, 2), 0.0, ttl_s=5.0)
    assert tree.sweep(6.0, 9) == ["t0"]
    put(tree, pack(1, 2), 7.0)
    assert len(tree.tombstones) == 0
    assert tree.evict(1, 8.0) == ["t0"]
    lease = tree.lease(space(), pack(1, 2), 9.0)
    assert tree.absences(lease, pack(1, 2)) == [Absence(Fate.EVICTED, 1, 8.0)]


def test_pressure_takes_the_five_levels_in_order():
    """Expired, held over the share, held, promised over the share, promised by priority; leaves of each by last use."""
    tree: RadixTree[str] = RadixTree(B)
    put(tree, pack(1, 1), 1.0, tenant="modest")
    put(tree, pack(2, 2), 2.0, tenant="greedy", kept=Kept.PROMISED, priority=90)
    put(tree, pack(3, 3), 3.0, tenant="modest", kept=Kept.PROMISED, priority=10)
    put(tree, pack(4, 4), 4.0, tenant="modest", kept=Kept.PROMISED, priority=5)
    put(tree, pack(5, 5), 5.0, tenant="greedy")
    put(tree, pack(6, 6), 6.0, tenant="late", ttl_s=1.0)
    tree.census.set_shares(10, {"greedy": 1})
    order = [node for _ in range(6) for node in _next(tree, 8.0)]
    assert order == [("late", 6), ("greedy", 5), ("modest", 1), ("modest", 4), ("modest", 3), ("greedy", 2)]
    assert dict(tree.broken) == {("5m", "modest"): 2, ("5m", "greedy"): 1}


def test_promised_of_a_tenant_over_its_share_goes_before_other_promises():
    """With nothing held left, the greedy tenant's promise goes first, whatever its priority."""
    tree: RadixTree[str] = RadixTree(B)
    put(tree, pack(1, 1), 1.0, tenant="modest", kept=Kept.PROMISED, priority=1)
    put(tree, pack(2, 2), 2.0, tenant="greedy", kept=Kept.PROMISED, priority=99)
    tree.census.set_shares(None, {"greedy": 0})
    assert [node for _ in range(2) for node in _next(tree, 3.0)] == [("greedy", 2), ("modest", 1)]


def test_the_tournament_follows_use_across_tenants():
    """Held entries of three tenants go by last use, read or written, not by tenant."""
    tree: RadixTree[str] = RadixTree(B)
    for now, tenant in enumerate("abcabc"):
        put(tree, pack(now, now), float(now), tenant=tenant)
    tree.release(tree.lease(space("a"), pack(0, 0, 0), 9.0), 9.0)
    assert [first for _ in range(6) for _, first in _next(tree, 10.0)] == [1, 2, 3, 4, 5, 0]
    assert tree.stats().nodes == 0


@pytest.mark.parametrize("difference", [{"weights": "v2"}, {"rendering": "r"}, {"kv_dtype": "g"}])
def test_new_weights_under_an_old_name_share_nothing(difference):
    """The same tokens under other weights, another template or another KV dtype are never found."""
    tree: RadixTree[str] = RadixTree(B)
    put(tree, pack(1, 2, 3, 4), 0.0)
    assert tree.peek(space(), pack(1, 2, 3, 4), 1.0).tokens == 4
    assert tree.peek(space(**difference), pack(1, 2, 3, 4), 1.0).tokens == 0


def _next(tree: RadixTree[str], now: float) -> list[tuple[str, int]]:
    """Evict one block and say whose it was and with which token it began."""
    before = {(node.namespace.tenant, int.from_bytes(node.tokens[:4], "little")) for node in tree.nodes()}
    tree.evict(1, now)
    tree.check()
    return sorted(
        before - {(node.namespace.tenant, int.from_bytes(node.tokens[:4], "little")) for node in tree.nodes()}
    )
