"""Remembered segments: found by their text alone, by their tenant alone, within their memory."""

from __future__ import annotations

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from prefix_store.text import ENTRY_BYTES, Segment, SegmentIndex


def ids(count: int) -> bytes:
    """Packed ids of so many tokens."""
    return bytes(4 * count)


def test_what_was_put_is_found() -> None:
    """A text is found with the ids that it was encoded to."""
    index = SegmentIndex(1 << 20)
    put = index.put("a", Segment("hello", ids(2)))
    found = index.get("a", "hello")
    assert found is put
    assert (found.tokens, index.get("a", "hell")) == (2, None)


def test_ways_of_encoding_are_told_apart() -> None:
    """The same text may be encoded in several ways, each under its own kind."""
    index = SegmentIndex(1 << 20)
    index.put("a", Segment("x", ids(1)), kind=1)
    assert index.get("a", "x") is None
    assert index.get("a", "x", kind=1) is not None


def test_tenants_never_find_each_other() -> None:
    """A segment of one tenant is not there for another."""
    index = SegmentIndex(1 << 20)
    index.put("a", Segment("secret", ids(1)))
    assert index.get("b", "secret") is None


def test_text_decides_where_hashes_collide(monkeypatch) -> None:
    """With a hash that is always the same, another text's ids are never returned."""
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda *_: 7)
    index = SegmentIndex(1 << 20)
    index.put("a", Segment("one", ids(1)))
    assert index.get("a", "two") is None
    index.put("a", Segment("two", ids(2)))
    assert index.get("a", "one") is None


def test_tenant_that_holds_most_gives_way() -> None:
    """When memory is short, the largest tenant's oldest segments go, and a small tenant keeps its own."""
    index = SegmentIndex(5 * (ENTRY_BYTES + 10))
    index.put("small", Segment("mine", ids(1)))
    for number in range(20):
        index.put("large", Segment(f"text {number}", ids(1)))
    assert index.get("small", "mine") is not None
    assert index.get("large", "text 0") is None
    assert index.get("large", "text 19") is not None


def test_text_larger_than_all_memory_is_not_kept() -> None:
    """It is encoded each time, and nothing else is pushed out for it."""
    index = SegmentIndex(2000)
    index.put("a", Segment("small", ids(1)))
    index.put("a", Segment("x" * 5000, ids(1)))
    assert index.get("a", "small") is not None
    assert index.get("a", "x" * 5000) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=40), st.integers(0, 3)), max_size=60))
def test_memory_is_bounded_and_counted(puts) -> None:
    """Whatever is put, what is held never exceeds the limit and is the sum of what can be found."""
    index = SegmentIndex(4000)
    for tenant, text, kind in puts:
        index.put(tenant, Segment(text, ids(len(text))), kind=kind)
        assert index.size <= 4000
    known = {(tenant, text, kind) for tenant, text, kind in puts if index.get(tenant, text, kind=kind) is not None}
    assert index.size == sum(Segment(text, ids(len(text))).size for _, text, _ in known)
