"""Reuse curves: without sampling they equal brute force, with it they lie within their error."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.traces import VARIABLE
from gateway.advice.replay import Replay
from gateway.advice.trace import MOONCAKE, read_trace
from prefix_store.chain import BlockHash, chain
from prefix_store.recency import Recency
from prefix_store.reuse import ENDLESS, WHOLE, Reuse, Use, scaled, sift

unhurried = settings(deadline=None)  # a busy machine is no failure

BLOCK = 4
TTLS = (1, 2, 5, 10, 20)
ROOMS = (1, 2, 3, 5, 8, 13)
TOTALS = {"conversation": 144_793_823, "synthetic": 61_194_628}
WHOLE_TRACES = {
    ("conversation", 60_000): 14_759_672,
    ("conversation", 300_000): 42_445_349,
    ("conversation", 900_000): 52_444_139,
    ("conversation", 1_800_000): 53_667_307,
    ("conversation", ENDLESS): 54_098_411,
    ("synthetic", 60_000): 20_050_390,
    ("synthetic", 300_000): 36_417_948,
    ("synthetic", 900_000): 39_852_661,
    ("synthetic", 1_800_000): 39_852_661,
    ("synthetic", ENDLESS): 39_852_661,
}


def mixed(number: int) -> int:
    """A number as evenly spread as a hash."""
    return random.Random(number).getrandbits(64)


@st.composite
def traffic(draw: st.DrawFn) -> list[Use]:
    """Prompts over a small tree, so that every kind of reuse happens."""
    now, uses = 0, []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.integers(0, 6))
        path = draw(st.lists(st.integers(0, 1), max_size=5))
        prefixes = [hash(tuple(path[: end + 1])) for end in range(len(path))]
        uses.append(use(now, [mixed(prefix) for prefix in prefixes], spare=draw(st.integers(0, BLOCK - 1))))
    return uses


def use(at: int, blocks: list[int], *, spare: int = 0, ttl: float = 10, group: str = "a") -> Use:
    """One prompt of whole blocks and some tokens more."""
    covered = len(blocks) * BLOCK
    return Use(at=at, group=group, ttl=ttl, tokens=covered + spare, covered=covered, blocks=blocks, block_tokens=BLOCK)


def curves(uses: list[Use], *, most: int = 1 << 18, capacity: float = ENDLESS) -> Reuse:
    """The curves of that traffic."""
    reuse = Reuse(ttls=TTLS, capacities=ROOMS, capacity=capacity, most=most)
    for one in uses:
        reuse.observe(one)
    return reuse


def replayed(uses: list[Use], **policy: Any) -> int:
    """Tokens that the slow truth reads."""
    replay = Replay(**policy)
    for one in uses:
        replay.feed(one)
    return replay.read


@unhurried
@given(traffic())
def test_gaps_equal_brute_force(uses):
    """At every TTL the one pass reads what a replay under that TTL reads, without any error."""
    reuse = curves(uses)
    for ttl in (*TTLS, ENDLESS):
        assert reuse.read(["a"], ttl) == (replayed(uses, ttl=ttl), 0.0)


@unhurried
@given(traffic())
def test_distances_equal_a_replay_in_that_room(uses):
    """At every capacity the one pass reads what a cache of that size reads at the present TTL."""
    reuse = curves(uses)
    for room in ROOMS:
        assert reuse.read_within(["a"], room) == (replayed(uses, capacity=room), 0.0)


@unhurried
@given(traffic(), st.sampled_from(ROOMS))
def test_ttl_and_room_together_equal_a_replay(uses, room):
    """In a cache of limited size, every TTL reads what a replay under both limits reads."""
    reuse = curves(uses, capacity=room)
    for ttl in (*TTLS, ENDLESS):
        assert reuse.read(["a"], ttl).tokens == replayed(uses, ttl=ttl, capacity=room)


@unhurried
@given(traffic(), st.sampled_from(TTLS))
def test_what_is_kept_equals_brute_force(uses, ttl):
    """Token-milliseconds are the sum, over all blocks, of the time until the next use or the TTL's end."""
    last: dict[int, int] = {}
    spent = 0
    for one in uses:
        for block in one.blocks:
            spent += BLOCK * min(ttl, one.at - last.get(block, one.at))
            last[block] = one.at
    end = uses[-1].at
    spent += sum(BLOCK * min(ttl, end - at) for at in last.values())
    assert curves(uses).kept(["a"], ttl, end) == spent


@unhurried
@given(st.lists(st.integers(0, 8), max_size=60))
def test_recency_equals_a_naive_stack(names):
    """The count of newer slots is the place in a plain list, also when the line was compacted on the way."""
    recency, slots, stack = Recency(20), {}, []
    for name in names:
        if recency.left < 1:
            moved = recency.compact(slots.values())
            slots = {known: moved[slot] for known, slot in slots.items()}
        if name in slots:
            assert recency.above(slots[name]) == stack[::-1].index(name)
            recency.drop(slots[name])
            stack.remove(name)
        slots[name] = recency.take()
        stack.append(name)
    assert recency.live == len(stack)


@unhurried
@given(traffic(), st.integers(1, 6))
def test_what_falls_out_was_never_counted(uses, most):
    """After the rate was lowered on the way, gaps are what that rate would have counted from the start."""
    adaptive = curves(uses, most=most)
    limit = adaptive.limit
    thinned = [
        Use(
            at=one.at,
            group=one.group,
            ttl=one.ttl,
            tokens=one.tokens,
            covered=one.covered,
            blocks=[block for block in one.blocks if block < limit],
            block_tokens=BLOCK,
        )
        for one in uses
    ]
    from_the_start = Reuse(ttls=TTLS, capacities=ROOMS)
    from_the_start.thin(limit)
    for one in thinned:
        from_the_start.observe(one)
    assert adaptive.rate == from_the_start.rate
    assert [adaptive.read(["a"], ttl) for ttl in TTLS] == [from_the_start.read(["a"], ttl) for ttl in TTLS]


def talks(seed: int, requests: int = 1500) -> list[Use]:
    """Conversations under one shared beginning, which grow and end."""
    draw = random.Random(seed)
    shared = [draw.getrandbits(64) for _ in range(5)]
    open_talks = [list(shared) for _ in range(40)]
    now, uses = 0, []
    for _ in range(requests):
        now += draw.randint(0, 2)
        at = draw.randrange(len(open_talks))
        if draw.random() < 0.1:
            open_talks[at] = list(shared)
        open_talks[at] = [*open_talks[at], *(draw.getrandbits(64) for _ in range(draw.randint(1, 3)))]
        uses.append(use(now, open_talks[at]))
    return uses


def test_the_error_band_holds_the_truth():
    """Of 40 seeded streams at an eighth or less, the 95 % band misses the truth in no more than five."""
    missed = {"ttl": 0, "gain": 0, "room": 0}
    for seed in range(40):
        uses = talks(seed)
        exact, sampled = curves(uses), curves(uses, most=200)
        assert sampled.rate <= 1 / 8
        pairs = {
            "ttl": (exact.read(["a"], 20), sampled.read(["a"], 20)),
            "gain": (exact.gained(["a"], 5, 20), sampled.gained(["a"], 5, 20)),
            "room": (exact.read_within(["a"], ENDLESS), sampled.read_within(["a"], ENDLESS)),
        }
        for name, (truth, guess) in pairs.items():
            missed[name] += abs(truth.tokens - guess.tokens) > guess.error
    assert max(missed.values()) <= 5, missed


def test_known_blocks_are_bounded():
    """Never are more blocks known than may be, however many come."""
    reuse = Reuse(ttls=TTLS, capacities=ROOMS, most=100)
    for one in talks(1):
        reuse.observe(one)
        assert len(reuse._known) <= 100


def test_between_edges_uses_count_evenly():
    """A TTL halfway between two edges reads half of what lies between them."""
    uses = [use(0, [1]), use(8, [1])]
    assert curves(uses).read(["a"], 7.5).tokens == BLOCK / 2


def test_a_gap_of_exactly_the_ttl_is_too_long():
    """A block is readable while less than the TTL has passed."""
    uses = [use(0, [1]), use(5, [1])]
    assert (curves(uses).read(["a"], 5).tokens, curves(uses).read(["a"], 10).tokens) == (0, BLOCK)


def test_groups_are_told_apart_and_share_the_room():
    """Each group has its own reads, and the other's blocks lie between its uses."""
    uses = [use(0, [1]), use(1, [2], group="b"), use(2, [1])]
    reuse = curves(uses)
    assert (reuse.read(["a"], 10).tokens, reuse.read(["b"], 10).tokens) == (BLOCK, 0)
    assert (reuse.read_within(["a"], 1).tokens, reuse.read_within(["a"], 2).tokens) == (0, BLOCK)
    assert reuse.whole(["a", "b"]) == (3, 12, 12)


def test_an_error_of_equal_parts_is_none_and_at_rate_one_always():
    """Parts that agree leave no doubt, and neither does a sample that is the whole."""
    assert scaled([2.0] * 16, 0.25) == (128.0, 0.0)
    assert scaled([16.0] + [0.0] * 15, 1.0) == (16.0, 0.0)
    assert scaled([16.0] + [0.0] * 15, 0.5).error == pytest.approx(2.131 * math.sqrt(256 * 0.5) * 2)


def test_sift_takes_the_first_bytes_of_each_hash():
    """A packed chain becomes one number a block, and half of the space keeps the numbers in its lower half."""
    packed = chain(BlockHash(b"r" * 16), bytes(range(64)) * 8, BLOCK)
    numbers = [int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 16)]
    assert list(sift(packed, WHOLE)) == numbers
    assert list(sift(packed, WHOLE >> 1)) == [number for number in numbers if number < WHOLE >> 1]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The traces' folder."""
    if VARIABLE not in os.environ:
        pytest.skip(f"the public traces are not here: set {VARIABLE} to their folder")
    return Path(os.environ[VARIABLE])


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize("most", [1 << 18, 1 << 14])
def test_public_traces_read_what_is_right(folder, name, most):
    """One pass gives every row of the exact table, and a sampled one lies within its stated error of each."""
    reuse = Reuse(ttls=(60_000, 300_000, 900_000, 1_800_000), capacities=(), most=most)
    path = folder / f"mooncake_{name}_trace.jsonl.gz"
    for one in read_trace(path, ttl=lambda _group, _class: 300_000.0, limit=lambda: reuse.limit):
        reuse.observe(one)
    assert reuse.whole([MOONCAKE]).tokens == TOTALS[name]
    for (trace, ttl), right in WHOLE_TRACES.items():
        if trace == name:
            guess = reuse.read([MOONCAKE], ttl)
            assert abs(guess.tokens - right) <= guess.error
            assert guess.error == 0 or most == 1 << 14
    gained = reuse.gained([MOONCAKE], 300_000, 900_000)
    right = WHOLE_TRACES[name, 900_000] - WHOLE_TRACES[name, 300_000]
    assert abs(gained.tokens - right) <= gained.error
