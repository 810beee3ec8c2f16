"""What the tree counts of times and classes: exactly, block by block, with the causes of going."""

from __future__ import annotations

from prefix_store.node import part
from prefix_store.reasons import Fate
from prefix_store.retention import Kept
from prefix_store.spans import SPANS_S, Span
from tests.prefix_store.shelf import Shelf
from tests.prefix_store.twins import retention, space


def told(span: Span) -> dict[float, int]:
    """Blocks by the edge they fall under; infinity for what is longer than all."""
    return {edge: count for edge, count in zip((*SPANS_S, float("inf")), span.counts, strict=True) if count}


def test_a_value_falls_under_the_first_edge_that_is_not_below_it():
    """An edge counts what is as long as itself; zero falls under the first, what is longer than a day under none."""
    span = Span()
    for seconds, blocks in ((0.0, 1), (1.0, 2), (1.1, 4), (86_400.0, 8), (86_400.5, 16)):
        span.add(seconds, blocks)
    assert told(span) == {1: 3, 2: 4, 86_400: 8, float("inf"): 16}
    assert (span.blocks, span.total_s) == (31, 2.0 + 4.4 + 8 * 86_400.0 + 16 * 86_400.5)


def test_stretches_part_where_they_are_told_to():
    """Parted births keep their times, and a cut on a border makes no empty stretch."""
    births = [(1.0, 2), (5.0, 3)]
    assert part(births, 1) == ([(1.0, 1)], [(1.0, 1), (5.0, 3)])
    assert part(births, 2) == ([(1.0, 2)], [(5.0, 3)])
    assert part(births, 4) == ([(1.0, 2), (5.0, 2)], [(5.0, 1)])
    assert part(births, 5) == (births, [])


def test_blocks_of_one_run_have_their_own_ages(shelf: Shelf) -> None:
    """A run that grew for 50 s is read and expires with each block as old as it is."""
    lease, terms = shelf.take("", 0.0), retention(300.0)
    shelf.write(lease, "aaaa", 0.0, terms)
    shelf.write(lease, "bbbb cccc", 50.0, terms)
    shelf.release(lease, 50.0)
    shelf.hit("aaaa bbbb", 55.0)
    assert told(shelf.spans.age_at_read) == {5: 1, 60: 1}
    shelf.sweep(300.0, 9)
    assert told(shelf.spans.lifetime) == {300: 1}
    shelf.sweep(355.0, 9)
    assert told(shelf.spans.lifetime) == {300: 1, 600: 2}
    assert shelf.gone == {Fate.EXPIRED: 3}


def test_the_gap_is_from_the_use_before_and_none_while_in_use(shelf: Shelf) -> None:
    """Forty seconds after its writer let go a block has waited forty; a second reader beside the first waits not."""
    shelf.put("aaaa bbbb", 0.0)
    first = shelf.take("aaaa bbbb", 40.0)
    second = shelf.take("aaaa", 45.0)
    assert told(shelf.spans.reuse_gap) == {60: 2, 1: 1}
    shelf.release(first, 50.0)
    shelf.release(second, 50.0)
    shelf.hit("aaaa", 58.0)
    assert told(shelf.spans.reuse_gap) == {60: 2, 1: 1, 10: 1}


def test_a_request_that_comes_back_to_its_own_blocks_reads_nothing_anew(shelf: Shelf) -> None:
    """After a preemption the same request leases again, which is no reuse; a peek is none either."""
    shelf.put("aaaa", 0.0)
    shelf.look("aaaa", 5.0)
    lease = shelf.lease(space(), b"".join(ord("a").to_bytes(4, "little") for _ in range(4)), 9.0, again=True)
    shelf.release(lease, 9.0)
    assert (lease.tokens, shelf.spans.reuse_gap.blocks, shelf.spans.age_at_read.blocks) == (4, 0, 0)


def test_pressure_counts_how_long_each_block_lay_idle(shelf: Shelf) -> None:
    """One of three blocks is cut off after 20 s idle; it has a lifetime, and the other two do not yet."""
    shelf.put("aaaa bbbb cccc", 0.0)
    shelf.evict(1, 20.0)
    assert (told(shelf.spans.idle_before_evict), told(shelf.spans.lifetime)) == ({30: 1}, {30: 1})
    assert shelf.gone == {Fate.EVICTED: 1}


def test_what_expires_or_is_purged_was_not_evicted(shelf: Shelf) -> None:
    """Expired and purged blocks have a lifetime and no idle time before an eviction, also when pressure found them."""
    shelf.put("aaaa", 0.0, retention(10.0))
    shelf.put("bbbb", 0.0)
    shelf.evict(1, 11.0)
    shelf.detach(next(iter(shelf.nodes())), 12.0)
    assert shelf.gone == {Fate.EXPIRED: 1, Fate.PURGED: 1}
    assert (told(shelf.spans.lifetime), told(shelf.spans.idle_before_evict)) == ({30: 2}, {})


def test_a_purged_block_in_use_lives_until_its_lease_ends(shelf: Shelf) -> None:
    """It is counted as purged at once and as gone when its memory is free, once, and as nothing that expired."""
    shelf.put("aaaa", 0.0)
    lease = shelf.take("aaaa", 1.0)
    shelf.detach(lease.node, 2.0)
    assert (shelf.gone, shelf.spans.lifetime.blocks) == ({Fate.PURGED: 1}, 0)
    shelf.release(lease, 100.0)
    assert (shelf.gone, told(shelf.spans.lifetime)) == ({Fate.PURGED: 1}, {120: 1})


def test_a_lowered_policy_is_a_cause_of_its_own(shelf: Shelf) -> None:
    """What expires before its own time because of a policy is told apart from what lived its time."""
    shelf.put("aaaa", 0.0)
    shelf.shorten(lambda _: (10.0, 10.0), 5.0)
    shelf.sweep(10.0, 9)
    assert shelf.gone == {Fate.POLICY_CHANGED: 1}


def test_entries_and_blocks_are_counted_by_class_and_firmness(shelf: Shelf) -> None:
    """A split makes two entries of one, a longer promise moves one to its class, and a class that emptied is 0."""
    shelf.put("aaaa bbbb", 0.0, retention(10.0))
    shelf.hit("aaaa", 1.0)
    assert (shelf.census.entries, shelf.census.entry_blocks) == ({("10s", Kept.HELD): 2}, {("10s", Kept.HELD): 2})
    lease = shelf.take("aaaa", 2.0)
    shelf.promise(lease, 4, retention(60.0, since=2.0, kept=Kept.PROMISED), 2.0)
    shelf.release(lease, 2.0)
    assert shelf.census.entries == {("10s", Kept.HELD): 1, ("60s", Kept.PROMISED): 1}
    shelf.sweep(30.0, 9)
    assert shelf.census.entry_blocks == {("10s", Kept.HELD): 0, ("60s", Kept.PROMISED): 1}
