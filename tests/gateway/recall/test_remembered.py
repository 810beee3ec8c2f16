"""What is remembered in this process: the nearest request is found, room is bounded and shared, nothing leaks."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.remembered import Memory, nearest
from gateway.shelf import HOLDERS, Shelf, largest
from prefix_store.fingerprints import Fingerprint, decode, encode
from tests.gateway.recall.recalled import NOON, TENANT, digest, hashes, request

HOUR = 3600.0
DAY = 24 * HOUR


def memory(**options) -> Memory:
    """Return an empty memory that remembers for a day."""
    return Memory(ttl_s=DAY, **options)


def put(kept: Memory, *requests: Fingerprint, tenant: str = TENANT) -> None:
    """Remember requests with all their hashes, each at its own time."""
    for fingerprint in requests:
        kept.put(tenant, fingerprint, hashes(fingerprint), fingerprint.at)
        kept.check()


def test_the_nearest_shares_most_tokens_and_not_most_parts():
    """One large part in common outweighs two small ones."""
    kept = memory()
    put(kept, request("large", "a:100", "x"), request("small", "b:5", "c:5", at=1.0))
    assert kept.nearest(TENANT, request("new", "a:100", "b:5", "c:5", at=2.0), NOON + 2).id == "large"


def test_of_equally_near_ones_the_latest_is_taken():
    """On a tie the request that came last counts, in whatever order they were remembered."""
    kept = memory()
    put(kept, request("one", "a", at=1.0), request("three", "a", at=3.0), request("two", "a", at=2.0))
    assert kept.nearest(TENANT, request("new", "a", at=4.0), NOON + 4).id == "three"


def test_of_equally_near_ones_the_one_whose_answer_came_back_is_taken():
    """A conversation goes on from the answer that it quotes, not from a later one to the same question."""
    kept = memory()
    put(kept, request("quoted", "q", answer="yes", at=1.0), request("later", "q", answer="no", at=2.0))
    assert kept.nearest(TENANT, request("new", "q", "yes", "q2", at=3.0), NOON + 3).id == "quoted"


def test_the_opening_of_the_answer_makes_nobody_near():
    """All requests end in the same opening, so it says nothing; nor does an answer without a common part."""
    kept = memory()
    put(kept, request("old", "a", answer="yes"))
    assert kept.nearest(TENANT, request("new", "b", "yes", at=1.0), NOON + 1) is None


def test_a_request_is_never_nearest_to_itself():
    """The request asked about is passed over, as nearest and as latest of its partition."""
    kept = memory()
    current = request("new", "a", partition="p", at=1.0)
    put(kept, current)
    assert kept.nearest(TENANT, current, NOON + 1) is None
    assert kept.latest(TENANT, current.partition, NOON + 1, but="new") is None
    put(kept, request("old", "a", partition="p"))
    assert kept.nearest(TENANT, current, NOON + 1).id == "old"
    assert kept.latest(TENANT, current.partition, NOON + 1, but="new").id == "old"


def test_a_partition_is_found_by_its_latest_request():
    """The latest of the same partition is found, whatever its parts; another partition is not."""
    kept = memory()
    put(kept, request("one", "a", partition="p"), request("two", "b", partition="p", at=1.0))
    put(kept, request("else", "a", partition="q", at=2.0), request("none", "a", at=3.0))
    assert kept.latest(TENANT, digest("p"), NOON + 4, but="new").id == "two"
    assert kept.latest(TENANT, digest("r"), NOON + 4, but="new") is None


def test_a_request_is_forgotten_a_day_later():
    """Alive until its time is over, then it is neither found nor kept."""
    kept = memory()
    put(kept, request("old", "a", partition="p"))
    probe = request("new", "a", at=DAY)
    assert kept.get(TENANT, "old", NOON + DAY - 0.5).id == "old"
    assert kept.get(TENANT, "old", NOON + DAY) is None
    assert kept.nearest(TENANT, probe, NOON + DAY) is None
    assert kept.latest(TENANT, digest("p"), NOON + DAY, but="new") is None
    put(kept, probe)
    assert kept.hashes(TENANT, hashes(request("old", "a"))) == hashes(probe)


def test_hashes_come_back_and_live_as_long_as_a_request_that_has_them():
    """Two requests share a part: it stays until both are gone."""
    shelf = Shelf()
    one, two = request("one", "a", "b", answer="x"), request("two", "a", "c", at=1.0)
    shelf.put(one, hashes(one))
    shelf.put(two, {digest("tokens", "c"): b"cc"})
    known = hashes(one) | {digest("tokens", "c"): b"cc"}
    assert shelf.hashes([*known, b"unknown"]) == known
    shelf.drop("one")
    shelf.check()
    gone = {digest("tokens", "b"), digest("tokens", "x")}
    assert shelf.hashes(known) == {key: data for key, data in known.items() if key not in gone}
    shelf.drop("two")
    assert (shelf.bytes, shelf.hashes(known)) == (0, {})


def test_a_request_remembered_again_takes_its_own_place():
    """The same id twice is one record; hashes known before need not be given again."""
    kept = memory()
    first = request("one", "a", "b", answer="x")
    put(kept, first)
    kept.put(TENANT, request("one", "a", "c", answer="x", at=1.0), {}, NOON + 1)
    kept.check()
    assert kept.get(TENANT, "one", NOON + 1) == request("one", "a", "c", answer="x", at=1.0)
    keys = [digest("tokens", word) for word in "abxc"]
    assert kept.hashes(TENANT, keys) == {key: hashes(first)[key] for key in (keys[0], keys[2])}


def test_no_tenant_finds_anything_of_another():
    """Even requests with equal digests are not found under another tenant's name."""
    kept = memory()
    mine = request("one", "a", partition="p")
    put(kept, mine)
    kept.learn("other", hashes(mine))
    assert kept.get("other", "one", NOON) is None
    assert kept.latest("other", digest("p"), NOON, but="") is None
    assert kept.nearest("other", request("new", "a"), NOON) is None
    assert kept.hashes("other", hashes(mine)) == {}


def test_a_greedy_tenant_pushes_out_only_its_own():
    """When room is short the largest tenant lets go, so a small one keeps all that it has."""
    kept = memory(most_bytes=200_000)
    for number in range(20):
        put(kept, request(f"m{number}", f"mine{number}"), tenant="modest")
    for number in range(500):
        put(kept, request(f"g{number}", f"their{number}", tokens=500, at=number), tenant="greedy")
    assert all(kept.get("modest", f"m{number}", NOON + 500) for number in range(20))
    assert kept.get("greedy", "g0", NOON + 500) is None
    assert kept.get("greedy", "g499", NOON + 500).id == "g499"
    assert 150_000 < kept.bytes <= 200_000


def test_the_least_recently_used_goes_first():
    """A request that was named stays while others that came later go."""
    kept = memory(most_bytes=10_000)
    put(kept, request("named", "a"), request("other", "b", at=1.0))
    for number in range(30):
        assert kept.get(TENANT, "named", NOON + 2).id == "named"
        put(kept, request(f"r{number}", f"w{number}", at=2.0 + number))
    assert kept.get(TENANT, "other", NOON + 40) is None
    assert kept.get(TENANT, "named", NOON + 40).id == "named"


def test_a_request_larger_than_all_room_is_not_kept_and_takes_nobody_along():
    """What cannot fit goes itself; other tenants stay."""
    kept = memory(most_bytes=50_000)
    put(kept, request("small", "a"), tenant="modest")
    put(kept, request("huge", "b:100000"))
    assert kept.get(TENANT, "huge", NOON) is None
    assert kept.get("modest", "small", NOON).id == "small"


def test_the_largest_parts_are_told_apart_by_content():
    """One of each content, the largest first, the opening never."""
    parts = request("one", "a:5", "b:50", "a:5", "c:20").parts
    assert [part.end - part.begin for part in largest(parts, 3)] == [50, 20, 5]
    assert [part.end - part.begin for part in largest(parts, 1)] == [50]
    assert largest((), 3) == []


def turn(number: int, *, parts: int, tokens: int) -> tuple[Fingerprint, dict[bytes, bytes]]:
    """Return one turn of a conversation as it comes in, sharing no object with the turn before."""
    words = [f"word {index}" for index in range(parts + 2 * number)]
    made = request(f"resp_{number}", *words, at=number, tokens=tokens, answer=f"answer {number}")
    return decode(encode(made)), hashes(made)


@pytest.mark.parametrize(("parts", "tokens"), [(1, 100_000), (20, 5_000), (200, 500)])
def test_a_long_request_costs_64_bytes_a_block_and_the_next_turns_only_what_is_new(parts, tokens):
    """Real memory: 100,000 tokens in blocks of 16 stay below 64 bytes each, as do the new blocks of ten more turns."""
    kept = memory()
    put(kept, request("before", "x"))
    tracemalloc.start()
    try:
        sizes = [measured(kept, turn(number, parts=parts, tokens=tokens)) for number in range(11)]
    finally:
        tracemalloc.stop()
    kept.check()
    assert sizes[0] <= 64 * parts * tokens / 16
    record = 2500 + 8 * (parts + 20)  # of one turn, and what dictionaries grow by when they double
    assert sizes[-1] - sizes[0] <= 64 * 20 * tokens / 16 + 10 * record
    assert 0.95 * sizes[-1] <= kept.bytes <= 1.2 * sizes[-1] + 4000


def measured(kept: Memory, one: tuple[Fingerprint, dict[bytes, bytes]]) -> int:
    """Remember one request and return how much memory is in use, without the request itself."""
    kept.put(TENANT, *one, now=NOON)
    del one
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=6), st.sampled_from(["", "a", "z"])), max_size=8),
    st.lists(st.sampled_from("abcdefgh"), max_size=6),
)
def test_the_nearest_is_that_of_a_search_through_all(earlier, current):
    """With no more requests than are known for one part, the index finds the one that looking at each does."""
    kept = memory()
    every = [request(f"r{number}", *words, at=number, answer=said) for number, (words, said) in enumerate(earlier)]
    put(kept, *every)
    probe = request("new", *current, at=100.0)
    assert len(every) <= HOLDERS
    found, truth = kept.nearest(TENANT, probe, NOON + 100), nearest(probe, every)
    assert found == truth


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["s", "t"]),
            st.integers(0, 9),
            st.lists(st.sampled_from("abcdef"), max_size=5),
            st.sampled_from(["", "p", "q"]),
            st.sampled_from(["", "x"]),
        ),
        max_size=40,
    ),
    st.integers(0, 20_000),
)
def test_whatever_is_remembered_the_counts_are_right(steps, room):
    """Any sequence of requests, repeated ids included, leaves every count and bound as it must be."""
    kept = memory(most_bytes=room)
    for number, (tenant, name, words, partition, said) in enumerate(steps):
        put(kept, request(f"r{name}", *words, at=number * HOUR, partition=partition, answer=said), tenant=tenant)


def test_many_conversations_over_one_system_prompt_do_not_hide_the_own_one():
    """The own conversation is found though a hundred later ones begin with the same large part."""
    kept = memory()
    put(kept, request("own", "system:5000", "hello"))
    put(kept, *(request(f"r{number}", "system:5000", f"hi{number}", at=1.0 + number) for number in range(100)))
    assert kept.nearest(TENANT, request("new", "system:5000", "hello", "more", at=200.0), NOON + 200).id == "own"
