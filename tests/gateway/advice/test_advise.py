"""Advice from curves, checked against the slow truth."""

from __future__ import annotations

import random

import pytest

from gateway.advice.advise import LEAST_REQUESTS, Adviser, Net, Pool, Trial, Unpriced, chosen, label, pass_over, span
from gateway.advice.replay import Replay
from gateway.advice.trace import Group
from prefix_store.reuse import ENDLESS, Estimate, Use

ACME = Group("acme", "tiny")
BLOCK = 16
MINUTE = 60_000


class Dollars:
    """A dollar for every thousand tokens read."""

    currency = "USD"

    def worth(self, model, read_tokens):
        """What they are worth, for the one model that has a rate."""
        return read_tokens / 1000 if model == "tiny" else None


def use(at, blocks, *, group=ACME, ttl=5 * MINUTE):
    """One prompt of whole blocks."""
    tokens = len(blocks) * BLOCK
    return Use(at=at, group=group, ttl=ttl, tokens=tokens, covered=tokens, blocks=blocks, block_tokens=BLOCK)


def every_ten_minutes(count=120):
    """The same ten blocks again and again, ten minutes apart."""
    return [use(at * 10 * MINUTE, list(range(10))) for at in range(count)]


def adviser(uses, *, pool=Pool(), ttl_s=300.0, rates=None, most=None):  # noqa: B008 - frozen
    """An adviser over that traffic."""
    reuse = pass_over(pool, [ttl_s], most=most)
    for one in uses:
        reuse.observe(one)
    trial = Trial(pool, reuse.rate)
    for one in uses:
        trial.feed(one)
    return Adviser(reuse, lambda _: ttl_s, pool, rates or Unpriced(), trial)


def read_of(uses, **policy):
    """Tokens that the slow truth reads."""
    replay = Replay(**policy)
    for one in uses:
        replay.feed(one)
    return replay.read


def test_a_longer_ttl_is_advised_with_exactly_what_it_brings():
    """Prompts ten minutes apart want 15m, and tokens, memory, money and sentence are those of a replay."""
    uses = every_ten_minutes()
    pool = Pool(block_tokens=BLOCK, bytes_per_token=1_000_000)
    (advice,) = adviser(uses, pool=pool, rates=Dollars()).told(None, None)["advice"]
    assert advice["read_tokens_delta"] == read_of(uses, ttl=15 * MINUTE) - read_of(uses, ttl=5 * MINUTE) == 119 * 160
    hours = 119 * 5 / 60  # each of the gaps is kept for five minutes more
    assert advice["gb_hours_delta"] == pytest.approx(160 * 1e6 * hours / 1e9)
    assert advice["net"] == {"currency": "USD", "amount": pytest.approx(19.04)}
    assert (advice["kind"], advice["tenant"], advice["model"]) == ("ttl", "acme", "tiny")
    assert (advice["now"], advice["advised"], advice["error"]) == ("5m", "15m", 0)
    assert (advice["read_now"], advice["read_then"]) == (0.0, 119 / 120)
    assert advice["sentence"] == (
        "acme, tiny: 5m → 15m: 0.0% → 99.2% of prompt tokens read; +1.59 GB·h; net +19.04 USD; "
        "± 0.0%, from 120 requests in 1190m"
    )


def test_a_shorter_ttl_is_advised_where_nothing_is_lost():
    """Prompts ten seconds apart read the same at one minute, with less memory."""
    uses = [use(at * 10_000, list(range(10))) for at in range(200)]
    uses.append(use(3_600_000, [99]))
    pool = Pool(block_tokens=BLOCK, bytes_per_token=1_000_000)
    (advice,) = adviser(uses, pool=pool).told(None, None)["advice"]
    assert (advice["now"], advice["advised"], advice["read_tokens_delta"]) == ("5m", "1m", 0)
    assert advice["gb_hours_delta"] == pytest.approx(-160 * 1e6 * 240 / 3600 / 1e9)
    assert advice["net"] is None


def test_few_requests_are_no_ground_for_advice():
    """One request less than what advice takes, and it says so."""
    told = adviser(every_ten_minutes(LEAST_REQUESTS - 1)).told(None, None)
    assert (told["advice"], told["note"]) == ([], "not enough traffic: 99 requests, and advice takes 100")
    assert told["sample"]["requests"] == 99


def test_no_traffic_is_no_sample():
    """Nothing is told of nothing."""
    told = adviser([]).told(None, None)
    assert (told["sample"], told["advice"], told["curve"], told["capacity_curve"]) == (None, [], [], [])


def test_no_ttl_is_advised_that_is_longer_than_what_was_seen():
    """Of half an hour of traffic nothing follows for four hours."""
    told = adviser([use(at * 10_000, [at % 7]) for at in range(181)])
    assert told.ladder_s == (60.0, 300.0, 900.0, 1800.0)
    assert max(point["ttl_s"] for point in told.curve([ACME])) == 1800.0


def test_a_larger_cache_is_advised_where_it_brings_much():
    """Fifteen prompts in turn, in a cache for ten, read nothing; one half as large again reads all."""
    uses = [use(at * 1000, list(range(at % 15 * 10, at % 15 * 10 + 10))) for at in range(300)]
    pool = Pool(blocks=100, block_tokens=BLOCK, bytes_per_token=1000)
    found = {one.kind: one for one in adviser(uses, pool=pool).advice([ACME])}
    capacity = found["capacity"]
    assert (capacity.now, capacity.advised) == ("100 blocks", "150 blocks")
    assert capacity.read_tokens_delta == read_of(uses, capacity=150) - read_of(uses, capacity=100) == 285 * 160
    assert capacity.gb_hours_delta == pytest.approx(50 * 16 * 1000 * 299 / 3600 / 1e9)


def test_another_order_is_told_where_it_reads_more():
    """One prompt that comes often among many that come once is kept by frequency and not by recency."""
    uses = []
    for turn in range(40):
        often = [use(len(uses) * 1000 + at, list(range(10))) for at in range(2)]
        once = [
            use((len(uses) + at) * 1000 + 500, [turn * 1000 + at * 10 + 7000 + n for n in range(10)])
            for at in range(12)
        ]
        uses += [*often, *once]
    uses.sort(key=lambda one: one.at)
    found = {one.kind: one for one in adviser(uses, pool=Pool(blocks=100, block_tokens=BLOCK)).advice([ACME])}
    order = found["order"]
    assert (order.now, order.advised, order.tenant) == ("lru", "lfu", None)
    assert order.read_tokens_delta == read_of(uses, capacity=100, order="lfu") - read_of(uses, capacity=100) == 39 * 160


def test_filters_choose_the_groups():
    """A tenant's or a model's answer counts what is theirs alone."""
    uses = [use(at * 1000, [at], group=Group("acme" if at % 3 else "other", "tiny")) for at in range(90)]
    told = adviser(uses)
    assert [told.told(tenant, None)["sample"]["requests"] for tenant in ("acme", "other")] == [60, 30]
    assert told.told(None, "large")["sample"] is None


def test_the_error_of_sampled_advice_holds_what_a_replay_says():
    """From a thin sample the gain that is told lies within its error of the whole replay."""
    draw = random.Random(3)
    open_talks = [[draw.getrandbits(64) for _ in range(4)] for _ in range(300)]
    now, uses = 0, []
    for _ in range(3000):
        now += draw.randint(0, 4000)
        talk = draw.choice(open_talks)
        talk.append(draw.getrandbits(64))
        uses.append(use(now, list(talk)))
    told = adviser(uses, most=1000)
    (advice,) = told.advice([ACME])
    right = read_of(uses, ttl=30 * MINUTE) - read_of(uses, ttl=5 * MINUTE)
    assert advice.advised == "30m"
    assert 0 < abs(advice.read_tokens_delta - right) <= advice.error


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({2.0: Estimate(5, 0)}, None),
        ({2.0: Estimate(50, 60)}, None),
        ({2.0: Estimate(50, 0), 3.0: Estimate(100, 0), 4.0: Estimate(101, 0)}, 3.0),
        ({0.5: Estimate(-4, 0), 0.2: Estimate(-60, 0)}, 0.5),
        ({0.5: Estimate(-4, 3)}, None),
    ],
)
def test_a_change_is_chosen_for_what_it_surely_brings(changes, expected):
    """The least that brings most of the gain, else the least that loses nothing, and never less than the error."""
    assert chosen(changes, 1.0, 1000) == expected


def test_lengths_of_time_are_spelt_as_policies_do():
    """Also those that are none, that never end, and that are no class."""
    assert [label(s) for s in (0, 0.5, 5, 300, 420, ENDLESS)] == ["none", "500ms", "5s", "5m", "7m", "endless"]
    assert [span(s) for s in (0, 2.25, 3537)] == ["an instant", "2.2s", "59m"]


def test_a_net_is_never_without_currency():
    """A model without a rate has no money, beside one that has."""
    uses = [
        *every_ten_minutes(),
        *(use(1200 * MINUTE + at * 10 * MINUTE, [5], group=Group("a", "b")) for at in range(120)),
    ]
    nets = {one.model: one.net for one in adviser(uses, rates=Dollars()).advice([ACME, Group("a", "b")])}
    assert nets == {"tiny": Net(currency="USD", amount=19.04), "b": None}
