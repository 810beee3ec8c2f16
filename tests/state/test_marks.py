"""What a client's marks come to under a policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_store.classes import CLASSES, RetentionClasses
from prefix_store.marks import Mark, Resolved, held, promised, resolve
from prefix_store.policy import Policy
from prefix_store.retention import Kept, Retention

BLOCK = 16


def one(ttl: str | None, tokens: int = 64, **fields: Any) -> Resolved:
    """Resolve one mark under a policy."""
    (outcome,) = resolve([Mark(tokens, ttl)], 1000, Policy(name="x", **fields), BLOCK)
    return outcome


@pytest.mark.parametrize(("tokens", "covered"), [(16, 16), (17, 16), (31, 16), (32, 32), (33, 32), (1000, 992)])
def test_a_mark_covers_the_whole_blocks_up_to_it(tokens, covered):
    """The blocks that end at or before the mark, not the one it is inside of."""
    assert one("5m", tokens) == Resolved(tokens=covered, asked="5m", applied="5m", ttl_s=300.0, reason=None)


@pytest.mark.parametrize(
    ("asked", "applied", "reason"),
    [
        ("1h", "1h", None),
        ("60m", "1h", None),
        ("59m", "30m", "not_allowed"),
        ("6m", "5m", "not_allowed"),
        ("1d", "24h", None),
        ("3d", "24h", "ceiling"),
        ("4m", None, "not_allowed"),
    ],
)
def test_an_unallowed_length_is_lowered_to_the_longest_allowed(asked, applied, reason):
    """Never raised, never refused; below the shortest allowed nothing is granted."""
    outcome = one(asked)
    assert (outcome.asked, outcome.applied, outcome.reason) == (asked, applied, reason)
    assert outcome.ttl_s == (None if applied is None else CLASSES.seconds(applied))


def test_the_ceiling_lowers_what_the_list_allows():
    """An allowed length above the ceiling is lowered to the longest allowed under it, and the ceiling is the reason."""
    outcome = one("12h", max_ttl="45m")
    assert (outcome.applied, outcome.reason) == ("30m", "ceiling")
    assert one("12h", max_ttl="4m", default_ttl=None).applied is None


@pytest.mark.parametrize(
    ("fields", "applied", "reason"),
    [
        ({"default_ttl": "7s"}, "7s", None),
        ({"default_ttl": None}, "5m", None),
        ({"default_ttl": None, "allowed_ttls": ()}, None, "not_allowed"),
    ],
)
def test_a_mark_without_a_length_takes_the_default(fields, applied, reason):
    """The policy's default, which need not be allowed to clients; without one the shortest allowed length."""
    outcome = one(None, **fields)
    assert (outcome.asked, outcome.applied, outcome.reason) == (None, applied, reason)


@pytest.mark.parametrize(
    ("tokens", "minimum", "below"), [(0, 0, True), (15, 0, True), (16, 16, False), (99, 100, True), (100, 100, False)]
)
def test_below_the_minimum_nothing_is_kept(tokens, minimum, below):
    """The marked tokens are compared, not the whole blocks; less than a block is below any minimum."""
    outcome = one("1h", tokens, min_tokens=minimum)
    assert (outcome.applied is None, outcome.reason == "below_minimum") == (below, below)
    assert outcome.tokens == tokens // BLOCK * BLOCK


@pytest.mark.parametrize("ttl", ["", "soon", "0s", "-5m", "5", "5 m", "1h30m"])
@pytest.mark.parametrize("tokens", [64, 3])
def test_what_is_no_duration_is_refused(ttl, tokens):
    """Whatever the policy and the mark's place."""
    with pytest.raises(ValueError, match="expected a duration"):
        one(ttl, tokens)


@pytest.mark.parametrize("tokens", [-1, 1001])
def test_a_mark_is_inside_the_prompt(tokens):
    """A mark elsewhere is refused."""
    with pytest.raises(ValueError, match="outside a prompt of 1000 tokens"):
        one("5m", tokens)


def test_marks_keep_their_order_and_their_own_outcome():
    """One outcome per mark, in the order given."""
    outcomes = resolve([Mark(64, "1h"), Mark(3, "5m"), Mark(32, "2h")], 64, Policy(name="x"), BLOCK)
    assert [(o.tokens, o.applied, o.reason) for o in outcomes] == [
        (64, "1h", None),
        (0, None, "below_minimum"),
        (32, "1h", "not_allowed"),
    ]


def test_a_client_may_name_a_class():
    """Where operators define a class, its name and its length mean the same."""
    classes = RetentionClasses.named({"session": "2h"})
    policy = Policy(name="x", allowed_ttls=("2h",))
    by_name, by_length = resolve([Mark(64, "session"), Mark(64, "120m")], 64, policy, BLOCK, classes)
    assert by_name.applied == by_length.applied == "session"


@given(
    asked_s=st.integers(1, 10**6),
    allowed=st.lists(st.integers(1, 10**6), max_size=6),
    ceiling=st.integers(1, 10**6),
    tokens=st.integers(0, 200),
    minimum=st.integers(0, 200),
)
def test_nothing_is_ever_raised(asked_s, allowed, ceiling, tokens, minimum):
    """What is granted is allowed, within the ceiling and never more than was asked for."""
    policy = Policy(
        name="x",
        default_ttl=None,
        allowed_ttls=tuple(f"{s}s" for s in allowed),
        max_ttl=f"{ceiling}s",
        min_tokens=minimum,
    )
    (outcome,) = resolve([Mark(tokens, f"{asked_s}s")], 200, policy, BLOCK)
    reachable = [s for s in allowed if s <= min(asked_s, ceiling)]
    enough = tokens >= max(minimum, BLOCK)
    assert outcome.ttl_s == (max(reachable, default=None) if enough else None)
    assert (outcome.reason is None) == (enough and outcome.ttl_s == asked_s)
    assert outcome.tokens <= tokens < outcome.tokens + BLOCK


def test_a_granted_mark_is_promised():
    """The retention carries class, length, mode and priority, and starts at the admission."""
    policy = Policy(name="x", mode="fixed", priority=70)
    (outcome,) = resolve([Mark(64, "1h")], 64, policy, BLOCK)
    assert promised(outcome, policy, since=9.0) == Retention(
        klass="1h", ttl_s=3600.0, kept=Kept.PROMISED, sliding=False, priority=70, since=9.0
    )


def test_a_declined_mark_is_held():
    """Without room in the budget the same time is held, not promised, and the reason says so."""
    policy = Policy(name="x")
    outcome = one("1h").declined()
    assert (outcome.applied, outcome.reason) == ("1h", "budget")
    retention = promised(outcome, policy, since=0.0)
    assert retention is not None and retention.kept is Kept.HELD


def test_a_mark_that_is_granted_nothing_has_no_retention():
    """It fares like what is unmarked."""
    assert promised(one("1s"), Policy(name="x"), since=0.0) is None


def test_unmarked_blocks_are_held_for_the_default():
    """The default class, held; without a default nothing is kept."""
    assert held(Policy(name="x", default_ttl="7s"), since=1.0) == Retention(
        klass="7s", ttl_s=7.0, kept=Kept.HELD, sliding=True, priority=50, since=1.0
    )
    assert held(Policy(name="x", default_ttl=None), since=1.0) is None
