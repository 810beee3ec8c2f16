"""The tree: what is found, what is copied from, and who holds what."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from prefix_store import chain as chain_module
from prefix_store.radix import RadixTree
from prefix_store.retention import Kept
from tests.prefix_store.shelf import HOME, B, Shelf, letters
from tests.prefix_store.test_radix_machine import walk
from tests.prefix_store.twins import pack, retention, space


def test_a_long_key_and_then_its_own_prefix(shelf):
    """Inserting a prefix of what is there loses nothing and stores nothing twice."""
    shelf.put("abcd efgh ijkl")
    shelf.put("abcd efgh", 1.0)
    assert shelf.look("abcd efgh ijkl", 2.0) == "abcd efgh ijkl"
    assert shelf.stats().blocks == 3


def test_an_empty_key(shelf):
    """No tokens match nothing, store nothing and leave nothing behind."""
    shelf.put("abcd")
    lease = shelf.take("", 1.0)
    published = shelf.publish(lease, b"", [], 1.0, retention(since=1.0))
    assert (lease.tokens, lease.payload, lease.tail) == (0, [], None)
    assert (published.payload, published.spare) == ([], [])
    assert shelf.release(lease, 1.0) == []
    assert shelf.all() == ["abcd"]


def test_an_empty_key_leaves_no_namespace_behind(shelf):
    """A namespace in which nothing was published is gone when its last lease is."""
    shelf.put("")
    assert not shelf._roots


def test_a_key_of_one_token(shelf):
    """Less than a block is never stored and never a whole match; it can still find a tail."""
    shelf.put("a")
    assert shelf.stats().blocks == 0
    shelf.put("abcd")
    match = shelf.peek(HOME, letters("a"), 1.0)
    assert (match.tokens, match.tail.payload, match.tail.tokens) == (0, "abcd", 1)


def test_blocks_of_one_token_have_no_tails():
    """Where a block is one token, a match is exact and nothing is ever partial."""
    tree = RadixTree(1)
    lease = tree.lease(HOME, letters("ab"), 0.0)
    tree.publish(lease, letters("ab"), ["a", "b"], 0.0, retention())
    tree.release(lease, 0.0)
    match = tree.peek(HOME, letters("ac"), 1.0)
    assert (match.tokens, match.payload, match.tail) == (1, ["a"], None)
    tree.check()


def test_the_same_key_twice(shelf):
    """The second time all of it is found and the tree does not grow."""
    shelf.put("abcd efgh")
    before = shelf.stats()
    shelf.put("abcd efgh", 1.0)
    assert shelf.stats() == before


def test_a_match_ends_at_whole_blocks_inside_a_run(shelf):
    """Two keys that part inside a block share the blocks before it."""
    shelf.put("abcd efgh ijkl")
    assert shelf.look("abcd efgX ijkl", 1.0) == "abcd"
    assert shelf.hit("abcd efgh iXkl", 1.0) == "abcd efgh"


def test_a_block_in_the_middle_is_not_found_from_there(shelf):
    """Equal tokens at another position, or after other tokens, are another block."""
    shelf.put("abcd efgh")
    assert shelf.look("efgh", 1.0) == shelf.look("XXXX efgh", 1.0) == ""


def test_a_namespace_that_was_never_seen(shelf):
    """Peeking at an unknown namespace finds nothing and creates nothing."""
    assert shelf.look("abcd", 0.0) == ""
    assert not shelf._roots


@pytest.mark.parametrize("part", ["adapter", "partition", "model", "tenant", "weights", "rendering", "kv_dtype"])
def test_namespaces_never_share(shelf, part):
    """The name "blue" as adapter, partition, model or tenant is four namespaces; a repeat inside one hits."""
    shelf.put("abcd efgh", namespace=space(**{part: "blue"}))
    for other in ("adapter", "partition", "model", "tenant", "weights", "rendering", "kv_dtype"):
        expected = "abcd efgh" if other == part else ""
        assert shelf.look("abcd efgh", 1.0, space(**{other: "blue"})) == expected
    assert shelf.look("abcd efgh", 1.0) == ""


def test_the_tail_is_the_sibling_that_shares_most(shelf):
    """Among siblings on either side the one with the longest common beginning is copied from."""
    for text in ("abXX", "abcX", "aXXX", "zzzz", "AAAA"):
        shelf.put(f"root {text}")
    tail = shelf.peek(HOME, letters("root abcd"), 1.0).tail
    assert (tail.payload, tail.tokens) == ("abcX", 3)


@pytest.mark.parametrize("first", ["abcA", "abcz"])
def test_a_tail_that_expired_is_passed_over(shelf, first):
    """A dead sibling is no tail, however near; the next live one on the same or the other side is."""
    shelf.put("root")
    shelf.put("root " + first, terms=retention(5.0))
    shelf.put("root abXX")
    tail = shelf.peek(HOME, letters("root abcd"), 6.0).tail
    assert (tail.payload, tail.tokens) == ("abXX", 2)


def test_the_tail_inside_a_run(shelf):
    """Where the match ends inside a run, the run's next block is the tail."""
    shelf.put("abcd efgh ijkl")
    tail = shelf.peek(HOME, letters("abcd efXX"), 1.0).tail
    assert (tail.payload, tail.tokens) == ("efgh", 2)


def test_a_run_that_shares_no_token_is_no_tail(shelf):
    """Where the next block begins otherwise there is nothing to copy."""
    shelf.put("abcd efgh")
    assert shelf.peek(HOME, letters("abcd Xfgh"), 1.0).tail is None


def test_a_tail_of_a_whole_block_still_leaves_a_token(shelf):
    """A key that ends inside a block takes a tail as long as the key goes on, never a whole block."""
    shelf.put("abcd efgh")
    match = shelf.peek(HOME, letters("abcd efg"), 1.0)
    assert (match.tokens, match.tail.tokens) == (4, 3)


def test_many_siblings_are_not_searched(shelf):
    """Looking for a tail stops where siblings begin to differ: a thousand strangers are not compared."""
    for name in range(1000):
        lease = shelf.take("", 0.0)
        shelf.publish(lease, pack([name * 7, 1, 2, 3]), [str(name)], 0.0, retention())
        shelf.release(lease, 0.0)
    lookups = []
    top = shelf._roots[HOME]
    top.keys = CountedKeys(top.keys, lookups)
    assert shelf.look("Xbcd", 1.0) == ""
    assert len(lookups) < 30


class CountedKeys(list[bytes]):
    """A list that notes which elements were read."""

    def __init__(self, keys: list[bytes], lookups: list[bytes]) -> None:
        super().__init__(keys)
        self.lookups = lookups

    def __getitem__(self, index):
        self.lookups.append(super().__getitem__(index))
        return self.lookups[-1]


def test_a_tail_is_locked_until_it_was_copied(shelf):
    """The block that is copied from cannot be evicted before the copy is done."""
    shelf.put("abcd efgh")
    lease = shelf.take("abcd efgX", 1.0)
    assert (lease.payload, lease.tail.payload) == (["abcd"], "efgh")
    assert shelf.evict(9, 1.0) == []
    assert shelf.release_tail(lease, 2.0) == []
    assert lease.tail is None
    assert shelf.release_tail(lease, 2.0) == []
    assert shelf.evict(9, 2.0) == ["efgh"]
    shelf.release(lease, 3.0)


def test_a_tail_that_expires_meanwhile_goes_when_it_was_copied(shelf):
    """The tail's time may end during the copy; its block comes back then."""
    shelf.put("abcd efgh", terms=retention(10.0))
    lease = shelf.take("abcd efgX", 5.0)
    assert shelf.look("abcd efgh", 11.0) == "abcd"
    assert shelf.release_tail(lease, 11.0) == ["efgh"]
    shelf.release(lease, 11.0)
    assert shelf.all() == ["abcd"]


def test_leased_blocks_are_never_evicted_and_outlive_their_deadline(shelf):
    """What is being read stays until the lease ends, is not matched after its deadline, and goes at the release."""
    shelf.put("abcd efgh", terms=retention(10.0))
    lease = shelf.take("abcd", 5.0)
    assert shelf.evict(9, 6.0) == ["efgh"]
    assert shelf.look("abcd", 15.0) == ""
    assert shelf.sweep(20.0, 9) == shelf.evict(9, 20.0) == []
    assert shelf.release(lease, 20.0) == ["abcd"]
    assert shelf.stats().blocks == 0


def test_a_release_frees_the_whole_expired_path(shelf):
    """Every block that only this lease kept comes back, and not those that another lease still holds."""
    shelf.put("abcd", terms=retention(10.0))
    shelf.put("abcd efgh", terms=retention(10.0))
    short, long = shelf.take("abcd", 0.0), shelf.take("abcd efgh", 0.0)
    assert shelf.release(long, 20.0) == ["efgh"]
    assert shelf.release(short, 20.0) == ["abcd"]


def test_a_write_over_an_expired_lease_renews_it(shelf):
    """Blocks that expired while leased are taken up again when they are computed again, with the new retention."""
    shelf.put("abcd", terms=retention(10.0, kept=Kept.PROMISED))
    reader = shelf.take("abcd", 5.0)
    writer = shelf.take("abcd", 50.0)
    assert writer.payload == []
    published = shelf.write(writer, "abcd", 50.0, retention(300.0, since=50.0), mark="'")
    assert (published.payload, published.spare) == (["abcd"], ["abcd'"])
    assert shelf.release(reader, 51.0) == shelf.release(writer, 52.0) == []
    assert shelf.look("abcd", 349.0) == "abcd"
    assert next(shelf.nodes()).kept is Kept.HELD


def test_only_what_was_written_again_is_renewed(shelf):
    """A write over the beginning of an expired run leaves its end expired."""
    shelf.put("abcd efgh", terms=retention(10.0))
    reader = shelf.take("abcd efgh", 5.0)
    shelf.put("abcd", 50.0)
    assert shelf.look("abcd efgh", 51.0) == "abcd"
    assert shelf.release(reader, 52.0) == ["efgh"]


def test_duplicates_come_back_as_spare(shelf):
    """Two that compute the same prompt at once: the first one's blocks stay, the second one's come back."""
    one, other = shelf.take("abcd efgh", 0.0), shelf.take("abcd efgh", 0.0)
    first = shelf.write(one, "abcd", 1.0, mark="1")
    second = shelf.write(other, "abcd efgh", 2.0, mark="2")
    assert (first.payload, first.spare) == (["abcd1"], [])
    assert (second.payload, second.spare) == (["abcd1", "efgh2"], ["abcd2"])
    third = shelf.write(one, "efgh", 3.0, mark="1")
    assert (third.payload, third.spare) == (["efgh2"], ["efgh1"])
    shelf.release(one, 4.0)
    shelf.release(other, 4.0)
    assert (shelf.all(), shelf.stats().idle) == (["abcd1", "efgh2"], 2)


def test_a_detached_path_takes_nothing_more_and_goes_at_the_release(shelf):
    """Blocks that were purged while leased: their writer keeps what it computes, and they are free when it ends."""
    lease = shelf.take("abcd efgh", 0.0)
    shelf.write(lease, "abcd", 0.0)
    assert shelf.detach(lease.node, 0.5) == []
    published = shelf.write(lease, "efgh", 1.0)
    assert (published.payload, published.spare, lease.tokens) == (["efgh"], [], B)
    assert shelf.release(lease, 1.0) == ["abcd"]


def test_a_digest_that_says_nothing_mixes_nothing_up(monkeypatch):
    """With one digest for everything the tree still returns every prompt its own blocks, because tokens decide."""
    same = SimpleNamespace(update=lambda data: None, digest=lambda: bytes(16))
    monkeypatch.setattr(
        chain_module, "xxhash", SimpleNamespace(xxh3_128=lambda: same, xxh3_128_digest=lambda data: bytes(16))
    )
    walk(random.Random(5), 1_500)


def test_writing_block_by_block_hashes_each_block_once(monkeypatch):
    """During a generation each finished block costs one digest of one block, however long the prompt is."""
    hashed = []
    digest = chain_module.xxhash.xxh3_128_digest

    def counted(data: bytes) -> bytes:
        hashed.append(len(data))
        return bytes(digest(data))

    monkeypatch.setattr(chain_module.xxhash, "xxh3_128_digest", counted)
    shelf, terms = Shelf(), retention()
    lease = shelf.take("", 0.0)
    for number in range(500):
        shelf.write(lease, f"{number:04}", 0.0, terms)
    assert hashed == [16 + 4 * B] * 500
