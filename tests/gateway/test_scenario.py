"""The demo's hour as a plan: who asks when, what it costs, and what is left out on a slow machine."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from gateway.api import anthropic_messages, openai_chat
from gateway.demo.scenario import (
    ACTS,
    BAD_DEPLOY,
    CODING,
    DENSITIES,
    REPORTS,
    REPORTS_TTL,
    ROLLED_BACK,
    SHORT_TTL,
    SUPPORT,
    Pace,
    Send,
    fitting,
    plan,
    scene,
)
from gateway.demo.tenants import body, policies, question, reports_policy, warmings
from gateway.looks import looks_like
from prefix_store.policy import parse_policy

FULL = plan(7)
TWO_MINUTES = Pace(2.0)


@pytest.mark.parametrize("seed", [0, 7, 12345])
def test_equal_seeds_make_equal_plans(seed: int) -> None:
    """A plan follows from its seed alone, and another seed moves its requests."""
    assert plan(seed) == plan(seed)
    assert plan(seed) != plan(seed + 1)


@pytest.mark.parametrize("seed", [0, 7, 12345])
def test_the_hour_has_so_many_requests(seed: int) -> None:
    """The hour has 40, 37 and 22 requests of the tenants, two of them cancelled and one refused, whatever the seed."""
    sends = plan(seed).sends

    assert Counter(send.tenant for send in sends) == {SUPPORT: 40, CODING: 37, REPORTS: 22}
    assert Counter(send.ending for send in sends) == {"whole": 96, "cancelled": 2, "refused": 1}
    assert Counter(send.api for send in sends) == {"messages": 58, "chat": 41}
    assert all(0 <= send.minute < 60 for send in sends)


def test_requests_stand_in_the_order_of_their_times() -> None:
    """All requests together are sorted by time, and so is each conversation, whose turns count from zero."""
    assert [send.minute for send in FULL.sends] == sorted(send.minute for send in FULL.sends)
    for talk in FULL.talks:
        assert [send.turn for send in talk] == list(range(len(talk)))
        assert all(before.minute < after.minute for before, after in pairwise(talk))


@pytest.mark.parametrize("density", DENSITIES)
def test_the_bad_deploy_is_the_coding_agents_alone(density: float) -> None:
    """Exactly the coding agent's requests between deploy and rollback are stamped, six of them at every density."""
    sends = plan(7, density).sends
    within = [send for send in sends if send.tenant == CODING and BAD_DEPLOY <= send.minute < ROLLED_BACK]

    assert [send for send in sends if send.stamped] == within
    assert len(within) == 6


def test_reports_come_back_just_after_their_ttl() -> None:
    """The gaps between runs of one report are above its first TTL by less than two minutes."""
    for talk in FULL.talks:
        if talk[0].tenant == REPORTS:
            gaps = [after.minute - before.minute for before, after in pairwise(talk)]
            assert min(gaps) > REPORTS_TTL
            assert max(gaps) < REPORTS_TTL + 2


@pytest.mark.parametrize(("density", "requests"), [(1.0, 99), (0.75, 77), (0.5, 50), (0.25, 34), (0.1, 22)])
def test_a_thinner_plan_is_the_fuller_one_with_talks_left_out(density: float, requests: int) -> None:
    """Thinning leaves whole conversations out, and every tenant keeps at least one."""
    thin = plan(7, density)

    assert set(thin.talks) <= set(FULL.talks)
    assert len(thin.sends) == requests
    assert {send.tenant for send in thin.sends} == {SUPPORT, CODING, REPORTS}
    assert any(send.ending == "cancelled" for send in thin.sends)


def test_the_plan_fits_the_engine() -> None:
    """A fast engine and an unknown one get the whole hour, a slower one the fullest that fits, a crawling one 10 %."""
    exact = plan(7, 0.5).weight / (120 * 0.6)

    assert fitting(7, tokens_per_s=None, seconds=120) == FULL
    assert fitting(7, tokens_per_s=1e6, seconds=120) == FULL
    assert fitting(7, tokens_per_s=exact + 1e-6, seconds=120).density == 0.5
    assert fitting(7, tokens_per_s=exact - 1e-6, seconds=120).density == 0.25
    assert fitting(7, tokens_per_s=exact - 1e-6, seconds=240).density > 0.5
    assert fitting(7, tokens_per_s=0.1, seconds=120).density == 0.1


def test_two_minutes_are_thirty_times_faster() -> None:
    """In two minutes a TTL of 5 minutes is 10 s, one of an hour 2 m, and minute 30 comes after one minute."""
    assert (TWO_MINUTES.scale, TWO_MINUTES.seconds(30.0)) == (30.0, 60.0)
    assert [TWO_MINUTES.ttl(minutes) for minutes in (5.0, 60.0, 4.0, 15.0)] == ["10s", "2m", "8s", "30s"]
    assert [Pace(0.1).ttl(minutes) for minutes in (5.0, 60.0)] == ["500ms", "6s"]
    assert [TWO_MINUTES.clock(minute) for minute in (0.0, 31.9, 60.0)] == ["09:00", "09:31", "09:59"]


def test_the_policies_are_policies() -> None:
    """What the demo sets is accepted as it stands: TTLs of 10, 10 and 8 seconds, the reports' later 30 s."""
    stored = [parse_policy(fields) for fields in policies(TWO_MINUTES)]

    assert [(policy.name, policy.tenant, policy.default_s, policy.max_s) for policy in stored] == [
        ("demo-support", SUPPORT, 10.0, 120.0),
        ("demo-coding", CODING, 10.0, 10.0),
        ("demo-reports", REPORTS, 8.0, 8.0),
    ]
    assert parse_policy(reports_policy(TWO_MINUTES, 15.0)).default_s == 30.0


def test_what_operators_do_stands_in_order() -> None:
    """A deploy, its rollback, a raised TTL and a dry run of a purge come in this order."""
    assert [(act.kind, act.minute) for act in ACTS] == [
        ("deploy", 26.0),
        ("deploy", 36.0),
        ("policy", 47.0),
        ("dry_run", 56.0),
    ]


@pytest.mark.parametrize(
    ("minute", "word"), [(0.0, "opens"), (26.0, "bad deploy"), (36.5, "rolled back"), (60, "purge")]
)
def test_a_scene_says_what_happens(minute: float, word: str) -> None:
    """Each minute has words of its own."""
    assert word in scene(minute)


@pytest.mark.parametrize("send", FULL.sends, ids=lambda send: f"{send.talk}.{send.turn}")
def test_every_body_is_a_request(send: Send) -> None:
    """Each request of the plan is one that its API accepts, after a history of the right length."""
    history = [("user", "Before?"), ("assistant", "Before.")] * send.turn
    raw = msgspec.json.encode(body(send, history, model="tiny", clock="09:30"))

    if send.api == "chat":
        ask = openai_chat.ask_of(openai_chat.parse(raw), "id")
    else:
        ask = anthropic_messages.ask_of(anthropic_messages.parse(raw), "id", tenant=send.tenant)
    assert ask.model == ("smollm2-turbo" if send.ending == "refused" else "tiny")
    assert ask.max_tokens == send.answer
    assert len(ask.tools) == (3 if send.tenant == CODING else 0)


def test_marks_are_an_hour_for_the_desk_and_five_minutes_for_the_agent() -> None:
    """On Anthropic's API the help desk marks its system prompt 1h; the agent marks system and last turn 5m."""
    marks = {}
    for tenant in (SUPPORT, CODING):
        send = next(one for one in FULL.sends if one.tenant == tenant and one.api == "messages")
        ask = anthropic_messages.parse(msgspec.json.encode(body(send, [], model="tiny", clock="09:00")))
        marks[tenant] = [mark.ttl for mark in anthropic_messages.ask_of(ask, "id", tenant=tenant).wish.marks]

    assert marks == {SUPPORT: ["1h"], CODING: ["5m", "5m"]}


def test_a_stamp_stands_first_and_looks_like_a_time() -> None:
    """A stamped request differs from its like only by a time before the system prompt."""
    stamped = next(send for send in FULL.sends if send.stamped and send.api == "messages")
    with_time = body(stamped, [], model="tiny", clock="09:31")["system"][0]["text"]
    other = body(stamped, [], model="tiny", clock="09:32")["system"][0]["text"]
    at = next(place for place, (one, two) in enumerate(zip(with_time, other, strict=True)) if one != two)

    assert with_time.startswith("Now: 2026-03-02T09:31:")
    assert looks_like(with_time, at) == "time"


def test_a_warm_prompt_is_the_one_that_is_asked() -> None:
    """What is made warm are the very messages of the first agent's and the first report's request."""
    firsts = {
        send.tenant: body(send, [], model="tiny", clock="09:00")["messages"]
        for send in FULL.sends
        if send.turn == 0 and send.talk in {"coding-0", "reports-0"}
    }
    assert {tenant: wanted["messages"] for tenant, wanted in warmings("tiny")} == firsts


def test_questions_differ_by_conversation_and_turn() -> None:
    """No two turns of one conversation ask the same."""
    for tenant in (SUPPORT, CODING, REPORTS):
        asked = [question(tenant, 0, turn) for turn in range(5)]
        assert len(set(asked)) == 5


def test_the_short_ttl_is_shorter_than_the_desks_pause() -> None:
    """One in three of the help desk's conversations pauses for longer than the TTL of what it does not mark."""
    pauses = [
        max(after.minute - before.minute for before, after in pairwise(talk))
        for talk in FULL.talks
        if talk[0].tenant == SUPPORT
    ]
    assert [pause > SHORT_TTL for pause in pauses] == [False, True, False, False, True, False, False, True]
