"""From marks on the wire to what the engine is told, and back to what the client reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.messages import Keep, KeptMark
from gateway.ask import Turn
from gateway.errors import BadRequest
from gateway.retention import AskedMark, Wish, plan, report
from gateway.tally import Tally
from prefix_store.classes import CLASSES
from prefix_store.policy import Policy
from prefix_store.sqlite_store import SqliteStore
from prefix_store.store import StoreUnavailable
from tests.gateway.conftest import StartGateway
from tests.gateway.records import record

HOUR = 3600.0
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def policy(**fields) -> Policy:
    """The default policy, changed."""
    return Policy(name="default", **fields)


def marked(text: str, ttl: str | None = None) -> dict[str, object]:
    """A text part with a mark at its end."""
    breakpoint_ = {"mode": "explicit"} | ({"ttl": ttl} if ttl else {})
    return {"type": "text", "text": text, "prompt_cache_breakpoint": breakpoint_}


def test_an_unmarked_prompt_is_held_for_the_policys_default():
    """Implicit mode without a mark promises nothing and keeps everything for the default time."""
    kept = plan(Wish(), (), 100, policy(), CLASSES, 16)
    assert kept.keep == Keep(held_klass="5m", min_tokens=16, sliding=True, priority=50)
    assert kept.outcomes == ()


def test_a_mark_becomes_an_order_of_whole_blocks():
    """A mark after 40 tokens covers two blocks of 16, for the class it asked for."""
    kept = plan(Wish(marks=(AskedMark("1h", "p"),)), (40,), 100, policy(), CLASSES, 16)
    (order,) = kept.keep.marks
    assert (order.tokens, order.ttl_s, order.klass) == (32, HOUR, "1h")
    (told,) = report(kept, [KeptMark(tokens=32, kept="promised", left_s=HOUR)], NOON)
    assert (told.asked, told.applied, told.kept, told.reason) == ("1h", "1h", "promised", None)
    assert told.until == NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("fields", "asked", "applied", "reason"),
    [
        ({"allowed_ttls": ("5m", "30m")}, "1h", "30m", "not_allowed"),
        ({"max_ttl": "30m"}, "1h", "30m", "ceiling"),
        ({}, "90s", None, "not_allowed"),
        ({"min_tokens": 64}, "1h", None, "below_minimum"),
    ],
)
def test_a_ttl_that_is_not_allowed_is_lowered_and_said(fields, asked, applied, reason):
    """Never refused, never raised: the longest allowed one below, or none, with the reason."""
    kept = plan(Wish(marks=(AskedMark(asked, "p"),)), (40,), 100, policy(**fields), CLASSES, 16)
    marks = [KeptMark(tokens=order.tokens, kept="promised", left_s=order.ttl_s) for order in kept.keep.marks]
    (told,) = report(kept, marks, NOON)
    assert (told.applied, told.reason) == (applied, reason)
    assert told.kept == ("promised" if applied else "none")


def test_a_declined_budget_is_told():
    """Held for the time asked, with the reason."""
    kept = plan(Wish(marks=(AskedMark("1h", "p"),)), (40,), 100, policy(), CLASSES, 16)
    (told,) = report(kept, [KeptMark(tokens=32, kept="held", left_s=HOUR, reason="budget")], NOON)
    assert (told.kept, told.reason, told.applied) == ("held", "budget", "1h")


def test_explicit_mode_without_a_mark_turns_caching_off():
    """Nothing is read and nothing is written; with a mark only what it covers is written."""
    assert plan(Wish(mode="explicit"), (), 100, policy(), CLASSES, 16).keep.cache is False
    explicit = Wish(mode="explicit", marks=(AskedMark("1h", "p"),))
    keep = plan(explicit, (40,), 100, policy(), CLASSES, 16).keep
    assert (keep.cache, keep.write_all) == (True, False)


def test_an_implicit_ttl_marks_the_prompts_end():
    """`prompt_cache_options.ttl` alone promises the whole prompt."""
    (order,) = plan(Wish(ttl="30m"), (), 100, policy(), CLASSES, 16).keep.marks
    assert (order.tokens, order.klass) == (96, "30m")


def test_the_latest_four_marks_count():
    """Of six marks the first two are no longer asked for."""
    wish = Wish(marks=tuple(AskedMark("1h", f"p{i}") for i in range(6)))
    kept = plan(wish, (16, 32, 48, 64, 80, 96), 100, policy(), CLASSES, 16)
    assert [order.tokens for order in kept.keep.marks] == [48, 64, 80, 96]


def test_what_is_no_duration_is_refused_with_its_path():
    """The client's own path is named."""
    with pytest.raises(BadRequest, match="soon") as refused:
        plan(Wish(marks=(AskedMark("soon", "messages[0].content[1]"),)), (40,), 100, policy(), CLASSES, 16)
    assert refused.value.param == "messages[0].content[1]"


def test_marks_change_no_token_and_end_at_a_token_border(renderer):
    """A marked prompt has the ids of the unmarked one; the mark's tokens spell no more than the marked text."""
    rule, rest = "Rule one: be kind to birds. ", "Then answer."
    plain = renderer.render([Turn(role="user", text=rule + rest)])
    marked_prompt = renderer.render([Turn(role="user", text=rule + rest, breaks=(len(rule),))])
    assert marked_prompt.tokens == plain.tokens
    (place,) = marked_prompt.marks
    before = renderer.render([Turn(role="user", text=rule)])
    assert 0 < place <= len(before)
    assert marked_prompt.tokens[: place * 4] == before.tokens[: place * 4]


def test_a_mark_behind_a_spelt_control_token_is_found_too(renderer):
    """Text that spells a control token stays text, and the mark stands behind it."""
    rule = "The word <|im_end|> is only a word. "
    prompt = renderer.render([Turn(role="user", text=rule + "Go.", breaks=(len(rule),))])
    assert prompt.tokens == renderer.render([Turn(role="user", text=rule + "Go.")]).tokens
    short = renderer.render([Turn(role="user", text="The word ", breaks=(9,))])
    assert prompt.marks[0] > short.marks[0]


async def test_marks_reach_the_engine_and_the_answer(start_gateway: StartGateway):
    """A marked system part becomes an order; the answer says what was applied and until when, streamed or not."""
    gateway = await start_gateway()
    messages = [
        {"role": "system", "content": [marked("A long rule. " * 20, "1h"), {"type": "text", "text": "More."}]},
        {"role": "user", "content": "hello"},
    ]
    answer = await (await gateway.chat(messages=messages, prompt_cache_key="team")).json()
    (submit,) = gateway.backend.submitted
    (order,) = submit.keep.marks
    assert (order.klass, submit.tenant, submit.partition) == ("1h", "default", "team")
    assert order.tokens % 16 == 0 and 0 < order.tokens < len(submit.tokens) // 4
    (told,) = answer["keepwarm"]["retention"]
    assert (told["asked"], told["applied"], told["kept"], told["reason"]) == ("1h", "1h", "promised", None)
    assert told["until"].endswith("Z") and told["tokens"] == order.tokens
    missed = answer["keepwarm"]["miss"]
    assert missed == [{"reason": "never_written", "fate": "never_written", "tokens": len(submit.tokens) // 4}]


async def test_a_ttl_that_is_no_duration_is_a_400(start_gateway: StartGateway):
    """Nothing reaches the engine."""
    gateway = await start_gateway()
    answer = await gateway.chat(prompt_cache_options={"ttl": "soon"})
    error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, "prompt_cache_options.ttl")
    assert gateway.backend.submitted == []


async def test_the_engine_hears_the_policies_at_the_start(start_gateway: StartGateway):
    """The default policy is in force before anyone changes one."""
    gateway = await start_gateway()
    while not gateway.backend.told:
        await gateway.serving.get("/health")
    ((default,),) = gateway.backend.told
    assert (default.name, default.default_ttl_s, default.promise_budget) == ("default", 300.0, 0.5)


async def test_counts_reach_the_shared_state_and_survive_its_absence():
    """Sums add up over flushes; what the store refuses is kept and handed over when it is back."""
    store = await SqliteStore.open(":memory:")

    class Shaky:
        """The real store behind a switch."""

        away = True

        async def count(self, space: str, increments: dict[str, int], *, ttl_s: float) -> None:
            if self.away:
                raise StoreUnavailable("away")
            await store.count(space, increments, ttl_s=ttl_s)

        async def counters(self, space: str) -> dict[str, int]:
            sums: dict[str, int] = await store.counters(space)
            return sums

    shaky: Any = Shaky()
    tally = Tally(shaky, ["a", "b"])
    ended = record(tenant="a")
    tally.ended(ended, b"")
    assert await tally.sums() == {"a": {}, "b": {}}
    shaky.away = False
    tally.ended(ended, b"")
    expected = {"requests": 2, "prompt_tokens": 20, "read_tokens": 8, "write_tokens": 12}
    expected |= {"missed_never_written": 12, "because_never_written": 12}
    assert await tally.sums() == {"a": expected, "b": {}}
    await store.close()
