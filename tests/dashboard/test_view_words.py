"""What views say in words: misses and where prompts break, reasons, policies, purges and the way back."""

from __future__ import annotations

import pytest

from gateway.miss import REASONS
from tests.dashboard.conftest import Lay
from tests.dashboard.made_up import MINUTE, NOW, REQUEST, Json, counts, usage

pytestmark = pytest.mark.asyncio(loop_scope="session")

BACK = "policy_words.parsed(Object.fromEntries(policy_words.FIELDS.map(([n]) => [n, policy_words.spelt(given[n])])), 3)"
POLICY: Json = {
    "name": "acme",
    "model": None,
    "tenant": "acme",
    "default_ttl": "5m",
    "allowed_ttls": ["5m", "1h"],
    "max_ttl": "1h",
    "mode": "sliding",
    "min_tokens": 16,
    "promise_budget": 0.5,
    "pool_share": 1.0,
    "priority": 50,
    "version": 3,
}


async def test_places_are_grouped_by_message_look_and_reason(lay: Lay) -> None:
    """Tokens and requests of one place are summed, its latest request is the example, a miss without one is not."""
    later = REQUEST | {"id": "r2", "at": NOW + 5, "tenant": "globex"}
    assert await lay("misses_words.positions(given)", [REQUEST, later]) == [
        {
            "message": "system",
            "looks_like": "time",
            "reason": "system",
            "tokens": 60,
            "requests": 2,
            "tenants": ["acme", "globex"],
            "last": NOW + 5,
            "first_token": 60,
            "last_token": 60,
            "example": "r2",
        }
    ]


def minutes(*reasons: str) -> Json:
    """Shape usage whose every minute missed 100 of 1,000 tokens as new, and 500 more by the reason that is named."""
    each = [counts(20, read=900, rest=100) if not name else _missing(name) for name in reasons]
    answer = usage(each)
    sums: dict[str, int] = {}
    for total in each:
        for reason, tokens in total["missed_tokens"].items():
            sums[reason] = sums.get(reason, 0) + tokens
    answer["total"]["missed_tokens"] = sums
    return answer


def _missing(reason: str) -> Json:
    return counts(20, read=400, rest=600) | {"missed_tokens": {"new": 100, reason: 500}}


async def test_a_sudden_rise_is_found_with_its_cost(lay: Lay) -> None:
    """A reason that missed far more in a stretch is told with both ends and the tokens beyond what was usual."""
    answer = minutes(*[""] * 5, *["system"] * 4, *[""] * 5)
    assert await lay("misses_words.rise(given)", answer) == {
        "reason": "system",
        "from": NOW - 9 * MINUTE,
        "until": NOW - 5 * MINUTE,
        "before": 0,
        "inside": 0.5,
        "tokens": 2000,
    }
    said: str = await lay("misses_words.finding(given, 'utc')", answer)
    assert (
        said.replace("\u202f", " ") == "Misses by “system” rose from 0 % to 50 % of prompt tokens at 07:51, until 07:55"
    )


async def test_a_rise_that_lasts_has_no_end(lay: Lay) -> None:
    """While it goes on, its end is not known."""
    assert (await lay("misses_words.rise(given)", minutes(*[""] * 5, *["expired"] * 5)))["until"] is None


@pytest.mark.parametrize(
    "answer", [[""] * 10, ["", "system", *[""] * 8][:1], ["system"] * 10], ids=["even", "one", "always"]
)
async def test_no_rise_where_nothing_changed(lay: Lay, answer: list[str]) -> None:
    """Even traffic, a single minute and what always was so are no findings."""
    assert await lay("misses_words.rise(given)", minutes(*answer)) is None


async def test_no_misses_are_said_in_words(lay: Lay) -> None:
    """A range without prompts and one in which all was read are told apart."""
    said = "[misses_words.finding(given.none), misses_words.finding(given.all)]"
    all_read = usage([counts(20, read=1000)])
    all_read["total"]["missed_tokens"] = {}
    assert await lay(said, {"none": usage([]), "all": all_read}) == [
        "Misses: no prompts in this range",
        "Every prompt token of this range was read",
    ]


async def test_reasons_have_one_order(lay: Lay) -> None:
    """Reasons are ordered as ever whatever order they came in, and one that is not known goes last."""
    given = ["new", "strange", "broken_promise", "system", "expired", "model"]
    assert await lay("reasons.ordered(given)", given) == [
        "model",
        "system",
        "expired",
        "broken_promise",
        "new",
        "strange",
    ]


async def test_every_reason_of_the_gateway_has_a_meaning_and_a_colour(lay: Lay) -> None:
    """The page knows every word that the gateway can say."""
    known = await lay("given.filter((reason) => reasons.kind(reason) !== 'unknown')", list(REASONS))
    assert known == list(REASONS)


async def test_a_form_spells_a_policy(lay: Lay) -> None:
    """What is shown in a form and read back is the same policy."""
    assert await lay(BACK, POLICY) == POLICY


async def test_what_is_no_number_is_left_for_the_server_to_refuse(lay: Lay) -> None:
    """A form does not guess: text in a number's place goes out as text."""
    wrong = POLICY | {"min_tokens": "many", "priority": ""}
    assert await lay(BACK, wrong) == wrong


async def test_differences_name_what_changes(lay: Lay) -> None:
    """Only fields that differ are told, and the version is none of them."""
    told = await lay("policy_words.differences(given[0], given[1])", [POLICY, POLICY | {"max_ttl": "2h", "version": 4}])
    assert told == [{"name": "max_ttl", "before": "1h", "after": "2h"}]


@pytest.mark.parametrize(
    ("line", "policies", "wanted"),
    [
        (
            {"what": "policy.put", "before": POLICY | {"max_ttl": "2h", "version": 2}},
            [POLICY],
            {"put": POLICY | {"max_ttl": "2h"}},
        ),
        ({"what": "policy.put", "before": None}, [POLICY], {"remove": {"name": "acme", "version": 3}}),
        ({"what": "policy.delete", "before": POLICY}, [], {"put": POLICY | {"version": 0}}),
        ({"what": "policy.put", "before": POLICY | {"version": 2}}, [POLICY], None),
        ({"what": "purge", "before": {}}, [POLICY], None),
    ],
    ids=["changed", "made", "deleted", "already back", "purge"],
)
async def test_the_way_back(lay: Lay, line: Json, policies: list[Json], wanted: Json | None) -> None:
    """A change is undone over the version that is now; what is as before already, or is gone, has no way back."""
    given = {"line": line | {"subject": "acme"}, "policies": policies}
    assert await lay("policy_words.undo(given.line, given.policies)", given) == wanted


@pytest.mark.parametrize(
    ("form", "body", "typed"),
    [
        ({"tenant": "acme", "klass": "", "model": "", "older": ""}, {"tenant": "acme"}, "acme"),
        ({"tenant": "", "klass": "", "model": "", "older": " "}, {"all": True}, "all tenants"),
        (
            {"tenant": "", "klass": "5m", "model": "tiny", "older": "1h"},
            {"model": "tiny", "class": "5m", "older_than": "1h"},
            "all tenants",
        ),
    ],
)
async def test_a_purge_says_what_it_means(lay: Lay, form: Json, body: Json, typed: str) -> None:
    """Choices left open are left out, and only an empty form means everything."""
    assert await lay("policy_words.purge(given)", form) == {"body": body, "typed": typed}


async def test_reuse_within_a_length_of_time(lay: Lay) -> None:
    """The share of reads that came within a TTL counts whole bins; of no reads there is none."""
    some = {"edges_s": [10, 60, 300], "blocks": [1, 2, 3, 4]}
    given = [some, {"edges_s": [10], "blocks": [0, 0]}]
    assert await lay("[policy_words.within(given[0], 60), policy_words.within(given[1], 60)]", given) == [0.3, None]
