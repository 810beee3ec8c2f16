"""Partial blocks: what they may be read for, who may write on in them, and when they go."""

from __future__ import annotations

import pytest

from prefix_store.chain import Namespace
from prefix_store.retention import Kept
from tests.prefix_store.shelf import HOME, B, Shelf, letters
from tests.prefix_store.twins import retention


@pytest.fixture
def shelf() -> Shelf:
    """A tree that holds "abcd" and, kept for 300 s, the partial block "ef" after it."""
    shelf = Shelf()
    lease = shelf.take("abcd", 0.0)
    shelf.write(lease, "abcd", 0.0)
    assert shelf.keep_partial(lease, letters("ef"), "ef", 0.0, retention(since=0.0)) == []
    shelf.release(lease, 0.0)
    shelf.check()
    return shelf


def test_a_partial_block_is_a_tail_and_never_a_whole_one(shelf):
    """What follows a partial block's tokens reads them as a tail; alone they match no whole block."""
    found = shelf.peek(*home("abcd efgh"), 1.0)
    assert (found.tokens, found.payload, found.readable) == (B, ["abcd"], B + 2)
    assert found.tail is not None and (found.tail.payload, found.tail.tokens) == ("ef", 2)


def test_the_only_reader_writes_on_in_it(shelf):
    """Adopted, the block leaves the tree, whose whole block that grew from it is no second copy."""
    lease = shelf.take("abcd efgh", 1.0)
    assert shelf.adopt(lease, retention(since=1.0), 1.0) == "ef"
    assert (shelf.all(), lease.tail, shelf.grown) == (["abcd"], None, 1)
    shelf.publish(lease, letters("efgh"), ["ef"], 1.0, retention(since=1.0))
    shelf.release(lease, 1.0)
    shelf.check()
    assert shelf.look("abcd efgh", 2.0) == "abcd ef"


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("abcd exyz", retention(since=1.0)),  # only a part of it agrees
        ("abcd efgh", retention(100.0, since=1.0)),  # what is written would end before it
    ],
)
def test_it_is_copied_where_it_must_stay(shelf, text, terms):
    """A block of which only a part agrees, or which is kept for longer than its reader writes, is not adopted."""
    lease = shelf.take(text, 1.0)
    assert lease.tail is not None and lease.tail.payload == "ef"
    assert shelf.adopt(lease, terms, 1.0) is None
    assert lease.tail is not None and shelf.all() == ["abcd", "ef"]


def test_two_readers_copy(shelf):
    """While another one reads it, nobody writes on in it."""
    one, other = shelf.take("abcd efgh", 1.0), shelf.take("abcd efxy", 1.0)
    assert shelf.adopt(one, retention(since=1.0), 1.0) is None
    shelf.release_tail(one, 1.0)
    assert shelf.adopt(other, retention(since=1.0), 1.0) == "ef"


def test_it_is_served_until_its_deadline_and_never_after(shelf):
    """At its deadline a partial block is no tail any more, even for who leased it before, and a sweep frees it."""
    early = shelf.take("abcd efgh", 299.0)
    assert shelf.adopt(early, retention(since=299.0), 300.0) is None
    assert shelf.release(early, 300.0) == ["ef"]
    assert shelf.peek(*home("abcd efgh"), 300.0).tail is None
    shelf.check()


def test_pressure_takes_it_before_what_it_hangs_on(shelf):
    """A partial block is a leaf: it goes first, then the block before it."""
    assert shelf.evict(1, 1.0) == ["ef"]
    assert shelf.evict(1, 1.0) == ["abcd"]


def test_a_purge_takes_it_and_nothing_is_kept_after(shelf):
    """A purge of the path frees a partial block, and who was under way keeps none."""
    lease = shelf.take("abcd", 1.0)
    node = shelf.locate(*home("abcd"), 1.0)
    assert node is not None and shelf.detach(node, 1.0) == ["ef"]
    assert shelf.keep_partial(lease, letters("ef"), "mine", 1.0, retention(since=1.0)) == ["mine"]
    assert shelf.release(lease, 1.0) == ["abcd"]


def test_a_known_beginning_is_not_kept_twice(shelf):
    """Tokens that some block begins with, and which it keeps for as long, are not stored again."""
    lease = shelf.take("abcd", 0.0)
    assert shelf.keep_partial(lease, letters("e"), "mine", 0.0, retention(since=0.0)) == ["mine"]
    assert shelf.all() == ["abcd", "ef"]


def test_the_same_partial_block_is_renewed(shelf):
    """Written again, a partial block lives as long as who wrote it asks."""
    lease = shelf.take("abcd", 200.0)
    assert shelf.keep_partial(lease, letters("ef"), "mine", 200.0, retention(since=200.0)) == ["mine"]
    shelf.release(lease, 200.0)
    assert shelf.peek(*home("abcd efgh"), 499.0).readable == B + 2


def test_what_was_not_written_again_does_not_live_longer(shelf):
    """A shorter beginning that is kept for longer stands beside the block that has it, which goes at its own time."""
    lease = shelf.take("abcd", 200.0)
    assert shelf.keep_partial(lease, letters("e"), "mine", 200.0, retention(since=200.0)) == []
    shelf.release(lease, 200.0)
    shelf.check()
    assert [shelf.peek(*home("abcd efgh"), now).readable for now in (299.0, 300.0, 499.0)] == [B + 2, B + 1, B + 1]


def test_a_longer_one_takes_its_place_unless_it_is_kept_for_longer(shelf):
    """A beginning that the new block goes beyond and outlives is freed; a promised one stays."""
    lease = shelf.take("abcd", 1.0)
    assert shelf.keep_partial(lease, letters("efg"), "efg", 1.0, retention(since=1.0)) == ["ef"]
    promised = retention(since=1.0, kept=Kept.PROMISED)
    assert shelf.keep_partial(lease, letters("x"), "x", 1.0, promised) == []
    assert shelf.keep_partial(lease, letters("xy"), "xy", 1.0, retention(since=1.0)) == []
    assert shelf.write(lease, "efgh", 1.0).spare == ["efg"]
    shelf.release(lease, 1.0)
    shelf.check()
    assert shelf.all() == ["abcd", "efgh", "x", "xy"]


def home(text: str) -> tuple[Namespace, bytes]:
    """Where and what to look for."""
    return HOME, letters(text)
