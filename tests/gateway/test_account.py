"""What one request cost."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineUnavailable
from engine.messages import Delta, Finished, KeptMark, Missed, Prefilled
from gateway.account import Account, Came
from gateway.miss import Explained, misses
from gateway.retention import AskedMark, Kept, Wish, Written, plan, written
from prefix_store.classes import CLASSES
from prefix_store.policy import Policy

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
UNEXPLAINED = Explained(misses=())
PROMPT = 200
BLOCK = 16
MISSED = (Missed(fate="never_written", tokens=90),)


def kept(*marks: tuple[int, str | None], mode: str = "implicit", ttl: str | None = None) -> Kept:
    """How a prompt of 200 tokens with marks after so many tokens is kept."""
    wish = Wish(mode=mode, ttl=ttl, marks=tuple(AskedMark(asked, "p") for _, asked in marks))  # type: ignore[arg-type]
    return plan(wish, [at for at, _ in marks], PROMPT, Policy(name="default"), CLASSES, BLOCK)


def prefilled(plan_: Kept, read: int, write: int, *, declined: frozenset[int] = frozenset()) -> Prefilled:
    """What the engine did; orders at `declined` places had no room."""
    marks = tuple(
        KeptMark(tokens=order.tokens, kept="held", left_s=300.0, reason="budget")
        if at in declined
        else KeptMark(tokens=order.tokens, kept="promised", left_s=order.ttl_s)
        for at, order in enumerate(plan_.keep.marks)
    )
    return Prefilled(prompt=PROMPT, read=read, write=write, queue_s=0.5, prefill_s=1.5, marks=marks, missed=MISSED)


def parts(*rows: tuple[int, str | None, str]) -> tuple[Written, ...]:
    """Rows of tokens, TTL asked, class applied."""
    return tuple(Written(tokens=tokens, asked=asked, applied=applied) for tokens, asked, applied in rows)


@pytest.mark.parametrize(
    ("marks", "read", "write", "declined", "expected"),
    [
        # Anthropic's rule: up to the first mark for an hour, up to the next for five minutes, then by the policy.
        ([(64, "1h"), (128, "5m")], 0, 192, [], [(64, "1h", "1h"), (64, "5m", "5m"), (64, None, "5m")]),
        ([(64, "1h"), (128, "5m")], 32, 160, [], [(32, "1h", "1h"), (64, "5m", "5m"), (64, None, "5m")]),
        ([(64, "1h"), (128, "5m")], 64, 128, [], [(64, "5m", "5m"), (64, None, "5m")]),
        ([(64, "1h"), (128, "5m")], 128, 64, [], [(64, None, "5m")]),
        ([(64, "1h"), (128, "5m")], 0, 128, [], [(64, "1h", "1h"), (64, "5m", "5m")]),
        ([(64, "1h"), (128, "5m")], 192, 0, [], []),
        # A longer mark behind covers what is before it, too.
        ([(64, "5m"), (128, "1h")], 0, 192, [], [(64, "1h", "1h"), (64, "1h", "1h"), (64, None, "5m")]),
        # What the budget declined was not written for the time asked.
        ([(64, "1h"), (128, "5m")], 0, 192, [0], [(128, "5m", "5m"), (64, None, "5m")]),
        ([(64, "1h"), (128, "5m")], 0, 192, [0, 1], [(192, None, "5m")]),
        # A mark without a TTL is kept under the policy's own, asked by nobody.
        ([(64, None)], 0, 192, [], [(64, None, "5m"), (128, None, "5m")]),
        ([], 0, 192, [], [(192, None, "5m")]),
        ([(64, "1h"), (64, "1h")], 0, 192, [], [(64, "1h", "1h"), (128, None, "5m")]),
        ([(64, "30m"), (64, "1h")], 0, 192, [], [(64, "1h", "1h"), (128, None, "5m")]),
    ],
)
def test_what_is_written_is_split_by_class(marks, read, write, declined, expected):
    """Each token counts under the longest accepted mark that covers it, the rest under the policy's default."""
    how = kept(*marks)
    assert written(how, prefilled(how, read, write, declined=frozenset(declined))) == parts(*expected)


marks_ = st.lists(st.tuples(st.integers(0, PROMPT), st.sampled_from([None, "5m", "30m", "1h", "90s"])), max_size=6)


@given(marks=marks_, read=st.integers(0, 12), write=st.integers(0, 12), declined=st.frozensets(st.integers(0, 3)))
def test_the_parts_sum_to_what_was_written(marks, read, write, declined):
    """Whatever is marked, read and declined, the parts are not empty and sum to `write`."""
    read_tokens = read * BLOCK
    write_tokens = min(write * BLOCK, PROMPT - read_tokens)
    how = kept(*marks)
    found = written(how, prefilled(how, read_tokens, write_tokens, declined=declined))
    assert sum(part.tokens for part in found) == write_tokens
    assert all(part.tokens > 0 for part in found)


def account(choices: int = 1, began: float = 100.0) -> Account:
    """An account of a request without marks."""
    return Account(kept(), normalised=("rule",), choices=choices, began=began)


def tokens(count: int) -> Delta:
    """A delta of so many tokens."""
    return Delta(id="a", tokens=(1,) * count)


def end(generated: int, projected: int = 0, decode_s: float = 0.0, count: int = 0) -> Delta:
    """The last delta."""
    finished = Finished(reason="stop", generated=generated, projected=projected, decode_s=decode_s)
    return Delta(id="a", tokens=(1,) * count, finished=finished)


def test_the_prompt_counts_once():
    """However many choices, the prompt's facts are those of the first; tokens and projections are all choices'."""
    made = account(choices=2)
    assert made.begun is False
    told = prefilled(kept(), 110, 80)
    facts = made.prompt(told, NOON, Explained(misses=misses(told.missed, NOON)))
    assert made.begun is True
    assert (facts.prompt, facts.read, facts.write, facts.uncached) == (200, 110, 80, 10)
    assert (facts.queue_s, facts.prefill_s, facts.normalised) == (0.5, 1.5, ("rule",))
    for choice, (first, last) in enumerate([(2, end(4, 93, 2.0)), (3, end(5, 94, 3.0, count=2))]):
        made.take(choice, tokens(first), 101.0)
        made.take(choice, last, 102.0)
    whole = made.facts()
    assert (whole.prompt, whole.read, whole.write, whole.written) == (200, 110, 80, facts.written)
    assert (whole.generated, whole.projected, whole.decode_s) == (9, 187, 3.0)
    assert sum(miss.tokens for miss in whole.misses) == whole.computed


def test_waits_are_told_from_the_request_then_from_the_last_tokens():
    """The first tokens are timed from the request's arrival, each later delta from the one before of its choice."""
    made = account(choices=2)
    assert made.take(0, Delta(id="a"), 101.0) is None
    assert made.take(0, tokens(1), 102.0) == Came(1, 2.0, first=True)
    assert made.take(1, tokens(2), 103.0) == Came(2, 3.0, first=True)
    assert made.take(0, tokens(3), 104.5) == Came(3, 2.5, first=False)
    assert made.take(0, end(4), 106.0) is None
    assert made.take(1, end(3), 104.0) == Came(1, 1.0, first=False)


def test_the_unseen_stop_token_counts():
    """A stop token is generated and not shown; where it is all there is, it is the first token."""
    made = account()
    made.prompt(prefilled(kept(), 0, 0), NOON, UNEXPLAINED)
    assert made.take(0, end(1, 200), 103.0) == Came(1, 3.0, first=True)
    facts = made.facts()
    assert (facts.generated, facts.first_token_s) == (1, 3.0)


def test_a_choice_without_a_token_does_not_make_the_others_instant():
    """The first token's time is the earliest of those that came."""
    made = account(choices=2)
    made.prompt(prefilled(kept(), 0, 0), NOON, UNEXPLAINED)
    made.take(0, end(0), 101.0)
    made.take(1, tokens(1), 104.0)
    made.take(1, end(1), 105.0)
    assert made.facts().first_token_s == 4.0


def test_a_prompt_that_is_only_made_warm_has_no_first_token():
    """Nothing generated, nothing timed."""
    made = account()
    made.prompt(prefilled(kept(), 0, 192), NOON, UNEXPLAINED)
    assert made.take(0, end(0, 200), 103.0) is None
    facts = made.facts()
    assert (facts.generated, facts.projected, facts.first_token_s, facts.decode_s) == (0, 200, 0.0, 0.0)


def test_a_choice_that_was_left_leaves_projections_unknown():
    """Its tokens count and its time runs to its last one; what the engine computed is not told."""
    made = account(choices=2)
    made.prompt(prefilled(kept(), 0, 0), NOON, UNEXPLAINED)
    made.take(0, tokens(1), 101.0)
    made.take(0, tokens(4), 107.5)
    made.take(1, tokens(1), 102.0)
    made.take(1, end(2, 201, 1.0), 103.0)
    facts = made.facts()
    assert (facts.generated, facts.projected, facts.decode_s, facts.first_token_s) == (7, None, 6.5, 1.0)


def test_an_answer_that_the_engine_gave_up_is_no_answer():
    """A cancelled end is an error, and so is an answer whose prompt was never processed."""
    finished = Finished(reason="cancelled", generated=0, projected=0, decode_s=0.0)
    with pytest.raises(EngineUnavailable, match="gave this answer up"):
        account().take(0, Delta(id="a", finished=finished), 101.0)
    with pytest.raises(EngineUnavailable, match="without a first word"):
        account().facts()
