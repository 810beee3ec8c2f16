"""The tree and time: deadlines, classes, and what is renewed by what."""

from __future__ import annotations

from prefix_store.retention import Kept
from tests.prefix_store.twins import retention


def test_ancestors_live_on_a_childs_hit(shelf):
    """A hit on A-B keeps A; A-C, which nobody read, is gone at its own time."""
    shelf.put("aaaa bbbb")
    shelf.put("aaaa cccc")
    assert shelf.hit("aaaa bbbb", 250.0) == "aaaa bbbb"
    assert shelf.look("aaaa cccc", 320.0) == "aaaa"
    assert shelf.sweep(320.0, 9) == ["cccc"]
    assert shelf.hit("aaaa bbbb", 540.0) == "aaaa bbbb"


def test_sliding_time_counts_from_the_last_read(shelf):
    """Inserted at 0 and read at 200 and 450, five minutes are over at 750."""
    shelf.put("abcd")
    assert shelf.hit("abcd", 200.0) == "abcd"
    assert shelf.hit("abcd", 450.0) == "abcd"
    assert shelf.look("abcd", 749.9) == "abcd"
    assert shelf.look("abcd", 750.0) == shelf.look("abcd", 751.0) == ""


def test_reads_never_move_a_fixed_deadline(shelf):
    """In fixed mode the first deadline stands."""
    shelf.put("abcd", terms=retention(sliding=False))
    assert shelf.hit("abcd", 200.0) == "abcd"
    assert shelf.look("abcd", 299.0) == "abcd"
    assert shelf.hit("abcd", 300.0) == ""


def test_a_sliding_child_ends_with_its_fixed_parent(shelf):
    """Neither writing nor reading carries a child beyond the fixed block above it."""
    shelf.put("aaaa", terms=retention(100.0, sliding=False))
    shelf.put("aaaa bbbb", 10.0, retention(300.0, since=10.0))
    assert shelf.hit("aaaa bbbb", 50.0) == "aaaa bbbb"
    assert shelf.look("aaaa bbbb", 99.0) == "aaaa bbbb"
    assert shelf.look("aaaa bbbb", 100.0) == ""
    assert sorted(shelf.sweep(100.0, 9)) == ["aaaa", "bbbb"]


def test_what_stands_above_a_fixed_block_is_not_lifted_beyond_it(shelf):
    """A write below a fixed block is capped by it, so blocks above need not live longer than that."""
    shelf.put("aaaa", terms=retention(100.0))
    shelf.put("aaaa bbbb", terms=retention(100.0, sliding=False))
    lease = shelf.take("aaaa bbbb", 0.0)
    shelf.write(lease, "cccc", 0.0, retention(900.0))
    shelf.release(lease, 0.0)
    assert {node.deadline for node in shelf.nodes()} == {100.0}


def test_a_long_write_after_a_twin_lifts_the_whole_path(shelf):
    """Blocks that a twin wrote in between do not stop the lift: no parent ends before what was just written."""
    shelf.put("aaaa", terms=retention(10.0))
    one, other = shelf.take("aaaa bbbb cccc", 0.0), shelf.take("aaaa bbbb cccc", 0.0)
    shelf.write(one, "bbbb", 0.0, retention(10.0))
    shelf.write(other, "bbbb cccc", 0.0, retention(300.0))
    shelf.check()
    assert shelf.look("aaaa bbbb cccc", 299.0) == "aaaa bbbb cccc"
    shelf.release(one, 0.0)
    shelf.release(other, 0.0)


def test_what_a_request_writes_later_keeps_its_own_time(shelf):
    """A reader renews what is there; blocks that the writer adds afterwards still count from its admission."""
    writer = shelf.take("aaaa bbbb", 0.0)
    terms = retention(300.0)
    shelf.write(writer, "aaaa", 0.0, terms)
    assert shelf.hit("aaaa", 200.0) == "aaaa"
    shelf.write(writer, "bbbb", 250.0, terms)
    shelf.release(writer, 250.0)
    assert shelf.look("aaaa bbbb", 400.0) == "aaaa"


def test_what_a_request_writes_later_is_not_promised_by_a_twin(shelf):
    """A twin may promise a block that another request wrote; what that one adds afterwards stays held."""
    writer, twin = shelf.take("aaaa bbbb", 0.0), shelf.take("aaaa", 0.0)
    terms = retention(300.0)
    shelf.write(writer, "aaaa", 0.0, terms)
    shelf.write(twin, "aaaa", 0.0, retention(300.0, kept=Kept.PROMISED))
    shelf.release(twin, 0.0)
    shelf.write(writer, "bbbb", 1.0, terms)
    shelf.release(writer, 1.0)
    assert [node.kept for node in shelf.nodes()] == [Kept.PROMISED, Kept.HELD]


def test_a_request_that_goes_on_writing_stays_one_run(shelf):
    """Block after block of one generation is one node, not a chain of nodes."""
    lease, terms = shelf.take("", 0.0), retention()
    for word in ("abcd", "efgh", "ijkl"):
        shelf.write(lease, word, 1.0, terms)
    shelf.release(lease, 2.0)
    assert (shelf.stats().nodes, shelf.look("abcd efgh ijkl", 3.0)) == (1, "abcd efgh ijkl")


def test_a_split_keeps_each_halfs_own_times(shelf):
    """After a match of the first half, the other half is as old as it was: it goes first, then Y, then the match."""
    shelf.put("abcd efgh", 0.0)
    shelf.put("yyyy", 5.0)
    assert shelf.hit("abcd", 10.0) == "abcd"
    assert shelf.evict(1, 11.0) == ["efgh"]
    assert shelf.evict(1, 11.0) == ["yyyy"]
    assert shelf.all() == ["abcd"]


def test_the_unmatched_half_keeps_its_deadline(shelf):
    """Only the matched half was renewed."""
    shelf.put("abcd efgh")
    assert shelf.hit("abcd", 200.0) == "abcd"
    assert shelf.look("abcd efgh", 300.0) == "abcd"


def test_a_peek_renews_nothing(shelf):
    """Looking leaves time, order, shape and holds as they were."""
    shelf.put("abcd efgh", 0.0)
    shelf.put("yyyy", 5.0)
    before = shelf.stats()
    assert shelf.look("abcd XXXX", 200.0) == "abcd"
    assert shelf.stats() == before
    assert shelf.evict(1, 201.0) == ["efgh"]
    assert shelf.look("abcd", 300.0) == ""


def test_a_sweep_frees_no_more_than_its_budget(shelf):
    """Expired nodes go a few at a time, and live ones never."""
    for name in range(10):
        shelf.put(f"n{name:03}", terms=retention(10.0))
    shelf.put("live")
    assert (len(shelf.sweep(9.0, 9)), len(shelf.sweep(10.0, 4)), len(shelf.sweep(10.0, 99))) == (0, 4, 6)
    assert shelf.all() == ["live"]


def test_a_longer_class_raises_and_a_shorter_never_shortens(shelf):
    """Two classes on one block: the longest live one holds, whichever came last."""
    leases = [shelf.take("abcd", 0.0) for _ in range(3)]
    for lease, ttl_s in zip(leases, (300.0, 3600.0, 60.0), strict=True):
        shelf.write(lease, "abcd", 0.0, retention(ttl_s))
    for lease in leases:
        shelf.release(lease, 0.0)
    assert shelf.hit("abcd", 3000.0) == "abcd"
    assert shelf.look("abcd", 3000.0 + 3599.0) == "abcd"
