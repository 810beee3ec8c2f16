"""Policies: their JSON, what is refused and how, and which one governs."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_store.classes import BUILT_IN, CLASSES, RetentionClasses, nearest
from prefix_store.policy import Policy, PolicyRefused, PolicySet, decode_policy, default_policy, parse_policy

FIELDS = {
    "name": "default",
    "model": None,
    "tenant": None,
    "default_ttl": "5m",
    "allowed_ttls": ["5m", "30m", "1h", "12h", "24h"],
    "max_ttl": "24h",
    "mode": "sliding",
    "min_tokens": 16,
    "promise_budget": 0.5,
    "pool_share": 1.0,
    "priority": 50,
    "version": 0,
}


def test_the_default_policy_is_as_documented():
    """The JSON of the untouched default, field by field and in this order."""
    assert msgspec.json.encode(default_policy()) == msgspec.json.encode(FIELDS)


def test_the_default_policy_follows_the_house():
    """Block size, classes and the default time are the gateway's own."""
    classes = RetentionClasses.named({"5s": "5s", "session": "2h"})
    policy = default_policy(block_tokens=32, classes=classes, default_ttl="session")
    assert (policy.min_tokens, policy.default_ttl) == (32, "2h")
    assert policy.allowed_ttls == ("5s", "5m", "30m", "1h", "2h", "12h", "24h")


durations = st.builds("{}{}".format, st.integers(1, 50), st.sampled_from("smh"))
policies = st.builds(
    Policy,
    name=st.text("abcXYZ019._-", min_size=1, max_size=64).filter(lambda name: name != "default"),
    model=st.none() | st.text(min_size=1),
    tenant=st.none() | st.text(min_size=1),
    default_ttl=st.none() | st.just("1s"),
    allowed_ttls=st.lists(durations, max_size=4).map(tuple),
    max_ttl=durations,
    mode=st.sampled_from(("sliding", "fixed")),
    min_tokens=st.integers(0, 1 << 40),
    promise_budget=st.floats(0, 1),
    pool_share=st.floats(0, 1),
    priority=st.integers(0, 100),
    version=st.integers(0, 1 << 40),
)


@given(policies)
def test_what_is_read_can_be_written_back(policy):
    """A policy's JSON gives the same policy, with or without the name in the address."""
    body = msgspec.json.encode(policy)
    assert decode_policy(body) == decode_policy(body, name=policy.name) == policy


def test_absent_fields_take_their_defaults():
    """A body may say only what differs, and leave the name to the address."""
    assert decode_policy(b'{"max_ttl": "12h"}', name="x") == Policy(name="x", max_ttl="12h")


def test_class_names_stand_for_their_durations():
    """A policy stores lengths, so that another gateway needs no names of ours to understand it."""
    classes = RetentionClasses.named({"session": "2h", "blink": "5s"})
    policy = parse_policy(
        {"default_ttl": "blink", "allowed_ttls": ["session", "60m"], "max_ttl": "session"}, name="x", classes=classes
    )
    assert (policy.default_ttl, policy.allowed_ttls, policy.max_ttl) == ("5s", ("2h", "60m"), "2h")
    assert (policy.default_s, policy.allowed_s, policy.max_s) == (5.0, (3600.0, 7200.0), 7200.0)


def test_lengths_above_the_ceiling_are_out_of_reach():
    """`allowed_s` is what clients can really get."""
    policy = Policy(name="x", default_ttl=None, max_ttl="1h")
    assert policy.allowed_s == (300.0, 1800.0, 3600.0)
    assert policy.default_s is None


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"default_ttl": "0s"}, "default_ttl", "expected a duration above zero"),
        ({"default_ttl": "-5m"}, "default_ttl", "expected a duration above zero"),
        ({"default_ttl": "48h"}, "default_ttl", "'48h' is above max_ttl '24h'; allowed: a duration"),
        ({"max_ttl": "1m"}, "default_ttl", "'5m' is above max_ttl '1m'"),
        ({"max_ttl": "0m"}, "max_ttl", 'allowed: a duration above zero such as "24h"'),
        ({"max_ttl": None}, "max_ttl", "Expected `str`, got `null`"),
        ({"allowed_ttls": ["5m", "soon"]}, "allowed_ttls", "'soon'"),
        ({"allowed_ttls": ["5m", 5]}, "allowed_ttls", "Expected `str`, got `int`; allowed: a list of durations"),
        ({"allowed_ttls": "5m"}, "allowed_ttls", "Expected `array`"),
        ({"mode": "sticky"}, "mode", 'allowed: "sliding" or "fixed"'),
        ({"min_tokens": -1}, "min_tokens", "-1 is negative"),
        ({"min_tokens": 1.5}, "min_tokens", "allowed: a whole number from 0"),
        ({"promise_budget": 1.01}, "promise_budget", "1.01 is not a share; allowed: a share of the pool from 0 to 1"),
        ({"pool_share": -0.1}, "pool_share", "-0.1 is not a share"),
        ({"pool_share": float("nan")}, "pool_share", "nan is not a share"),
        ({"priority": 101}, "priority", "allowed: a whole number from 0 to 100"),
        ({"priority": True}, "priority", "Expected `int`, got `bool`"),
        ({"version": -1}, "version", "-1 is negative"),
        ({"model": ""}, "model", "is empty; allowed: a model's name, or null for any"),
        ({"tenant": ""}, "tenant", "is empty"),
        ({"name": "other"}, "name", "'other' is not the 'x' that is addressed"),
        ({"prority": 1}, "prority", "did you mean 'priority'?"),
        ({"zzz": 1}, "zzz", "the fields are name, model, tenant"),
    ],
)
def test_what_cannot_be_a_policy_is_refused_by_field(fields, field, words):
    """The refusal names the field and says what it allows."""
    with pytest.raises(PolicyRefused) as refused:
        parse_policy(fields, name="x")
    assert refused.value.field == field
    assert words in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'"x"', b"null"])
def test_a_body_that_is_no_object_is_refused(body):
    """Not JSON, or JSON of another kind, names no field."""
    with pytest.raises(PolicyRefused, match="is not") as refused:
        decode_policy(body, name="x")
    assert (refused.value.field, refused.value.allowed) == ("", "")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 65])
def test_a_name_fits_into_an_address(name):
    """Names are short and plain."""
    with pytest.raises(PolicyRefused) as refused:
        parse_policy({"name": name})
    assert refused.value.field == "name"


def test_a_policy_has_a_name():
    """Neither the address nor the body names it."""
    with pytest.raises(PolicyRefused, match="name: is missing"):
        parse_policy({})


@pytest.mark.parametrize("field", ["model", "tenant"])
def test_the_default_governs_everything(field):
    """The policy `default` cannot be narrowed."""
    with pytest.raises(PolicyRefused, match="governs every model and tenant") as refused:
        parse_policy({field: "x"}, name="default")
    assert refused.value.field == field


BOTH, TENANT, MODEL = (
    Policy(name="both", model="m", tenant="t"),
    Policy(name="tenant", tenant="t"),
    Policy(name="model", model="m"),
)


@pytest.mark.parametrize("present", [c for n in range(4) for c in itertools.combinations((BOTH, TENANT, MODEL), n)])
def test_the_most_specific_wins(present):
    """Model and tenant, then tenant, then model, then `default`."""
    governing = PolicySet(present)
    expected = [policy.name for policy in (BOTH, TENANT, MODEL) if policy in present] + ["default"]
    assert governing.govern(model="m", tenant="t").name == expected[0]
    assert governing.govern(model="m", tenant="u").name == ("model" if MODEL in present else "default")
    assert governing.govern(model="n", tenant="t").name == ("tenant" if TENANT in present else "default")
    assert governing.govern(model="n", tenant="u").name == "default"


@pytest.mark.parametrize(
    ("twin", "field"),
    [
        (Policy(name="twin", model="m", tenant="t"), "tenant"),
        (Policy(name="twin", tenant="t"), "tenant"),
        (Policy(name="twin", model="m"), "model"),
        (Policy(name="twin"), "model"),
    ],
)
def test_no_two_policies_govern_the_same_requests(twin, field):
    """A second policy with the same selector is refused, `default`'s own included."""
    policies = PolicySet((BOTH, TENANT, MODEL))
    with pytest.raises(PolicyRefused, match="would govern the same requests") as refused:
        policies.adding(twin)
    assert refused.value.field == field


def test_a_set_is_never_changed():
    """`adding` and `removing` give new sets; the old one stays as it was."""
    first = PolicySet((BOTH,))
    second = first.adding(MODEL)
    assert [policy.name for policy in second] == ["default", "both", "model"]
    assert second.removing("model") == first and hash(second.removing("model")) == hash(first)
    assert (len(first), len(second), first != second, first == "set") == (2, 3, True, False)
    assert repr(second) == "PolicySet(default@0, both@0, model@0)"
    assert second.get("model") == MODEL and first.get("model") is None


def test_a_policy_may_move_to_another_selector():
    """Replacing a policy frees the selector it had."""
    moved = PolicySet((MODEL,)).adding(Policy(name="model", tenant="t"))
    assert moved.adding(Policy(name="new", model="m")).govern(model="m", tenant="x").name == "new"


def test_what_cannot_be_removed():
    """`default` always exists; an unknown name is the caller's to check."""
    with pytest.raises(PolicyRefused, match="always exists"):
        PolicySet(()).removing("default")
    with pytest.raises(KeyError):
        PolicySet(()).removing("x")


def test_a_stored_default_takes_the_built_in_ones_place():
    """The built-in default stands only until one is stored."""
    built_in = Policy(name="default", default_ttl="1m")
    assert PolicySet((), built_in=built_in).govern(model="m", tenant="t") is built_in
    stored = Policy(name="default", version=4)
    assert PolicySet((stored,), built_in=built_in).govern(model="m", tenant="t") is stored


def test_the_built_in_classes_are_there():
    """Five names, each its own length."""
    assert tuple(CLASSES.lengths_s) == BUILT_IN
    assert CLASSES.durations() == BUILT_IN


def test_a_class_is_read_by_name_and_labelled_by_length():
    """Names and durations are read alike; a length is shown by its class, or as a duration."""
    classes = RetentionClasses.named({"session": "2h", "hour": "60m"})
    assert classes.seconds("session") == classes.seconds("2h") == classes.seconds("120m") == 7200.0
    assert [classes.label(s) for s in (7200.0, 3600.0, 86400.0, 90.0)] == ["session", "1h", "24h", "90s"]
    with pytest.raises(ValueError, match="expected a duration"):
        classes.seconds("hours")


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ({"a b": "1h"}, "letters, digits"),
        ({"x": "never"}, "class 'x': expected a duration"),
        ({"x": "0s"}, "class 'x'"),
        ({"1h": "2h"}, "already says how long it is"),
    ],
)
def test_a_class_that_misleads_is_refused(classes, words):
    """A class has a plain name and a length, and the name tells no other length."""
    with pytest.raises(ValueError, match=words):
        RetentionClasses.named(classes)


def test_the_nearest_word():
    """A slip is guessed, a stranger is not."""
    assert nearest("max_tll", ("max_ttl", "min_tokens")) == "max_ttl"
    assert nearest("qqq", ("max_ttl", "min_tokens")) is None
