"""Why tokens were not read: what the client changed, joined with what became of the blocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Fate, Missed
from gateway.compare import Divergence
from gateway.miss import MissReport, Where, changed_word, explain, misses
from prefix_store.fingerprints import Fingerprint

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FATES = get_args(Fate)
HERE = Where(message="system", token=40, character=12, looks_like="time")


def plain(reports: tuple[MissReport, ...]) -> list[tuple[str, str, int]]:
    """Reason, fate and tokens of each report."""
    return [(report.reason, report.fate, report.tokens) for report in reports]


def expired(tokens: int) -> Missed:
    """A run that expired a minute ago."""
    return Missed(fate="expired", tokens=tokens, ago_s=60.0)


def unwritten(tokens: int) -> Missed:
    """A run that never was written."""
    return Missed(fate="never_written", tokens=tokens)


def changed(token: int, until: int, reason: str = "system") -> Divergence:
    """A change from `token` to `until`."""
    return Divergence(reason=reason, token=token, until=until)  # type: ignore[arg-type]


def test_without_an_earlier_request_the_fate_is_the_reason() -> None:
    """What happened is dated; what never was is not."""
    told = misses((expired(32), unwritten(3)), NOON)
    assert plain(told) == [("expired", "expired", 32), ("never_written", "never_written", 3)]
    assert [report.at for report in told] == [NOON - timedelta(minutes=1), None]
    assert explain(None, (expired(32), unwritten(3)), read=0, prompt=35, now=NOON) == told


def test_a_change_is_cut_out_of_what_was_not_read() -> None:
    """The same text keeps its fate as the reason, the change has its own, and what is behind it is new."""
    told = explain(changed(40, 80), (expired(48), unwritten(52)), read=16, prompt=116, now=NOON, where=HERE)
    assert plain(told) == [
        ("expired", "expired", 24),
        ("system", "expired", 24),
        ("system", "never_written", 16),
        ("new", "never_written", 36),
    ]
    assert [report.where for report in told] == [None, HERE, HERE, None]
    assert [report.at is not None for report in told] == [True, True, False, False]


def test_what_was_appended_is_new() -> None:
    """A conversation that went on has no change, and no place to tell."""
    told = explain(changed(64, 64, "new"), (unwritten(20),), read=64, prompt=84, now=NOON, where=HERE)
    assert told == (MissReport(reason="new", fate="never_written", tokens=20, at=None),)


def test_a_request_that_is_the_same_misses_by_fate_alone() -> None:
    """Where nothing differs the engine's word is the reason."""
    told = explain(changed(50, 50, "none"), (expired(34),), read=16, prompt=50, now=NOON)
    assert plain(told) == [("expired", "expired", 34)]


@pytest.mark.parametrize("word", ["weights_changed", "template_changed"])
def test_what_the_operator_changed_explains_the_same_text(word: str) -> None:
    """Text that was there before but never was written under these weights or this template is told so; no other is."""
    told = explain(changed(40, 60), (expired(16), unwritten(84)), read=0, prompt=100, now=NOON, same_text=word)
    assert plain(told) == [
        ("expired", "expired", 16),
        (word, "never_written", 24),
        ("system", "never_written", 20),
        ("new", "never_written", 40),
    ]


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({}, None),
        ({"weights": "w2"}, "weights_changed"),
        ({"rendering": "r2"}, "template_changed"),
        ({"weights": "w2", "rendering": "r2"}, "weights_changed"),
        ({"model": "m2", "weights": "w2"}, None),
    ],
)
def test_the_operators_change_is_named_under_the_same_model_name(other: dict[str, str], word: str | None) -> None:
    """Other weights come before another template; another model is the client's doing."""
    fields = {"id": "r", "at": 0.0, "model": "m", "weights": "w", "rendering": "r"}
    assert changed_word(Fingerprint(**{**fields, **other}), Fingerprint(**fields)) == word  # type: ignore[arg-type]


runs = st.lists(
    st.builds(
        Missed, fate=st.sampled_from(FATES), tokens=st.integers(0, 40), ago_s=st.none() | st.sampled_from([1.0, 60.0])
    ),
    max_size=6,
)
changes = st.tuples(
    st.integers(0, 200), st.integers(0, 200), st.sampled_from(["system", "tools", "new", "retokenised"])
)


@given(runs, st.integers(0, 100), changes, st.integers(-20, 20))
def test_every_token_that_was_not_read_has_one_reason(
    missed: list[Missed], read: int, change: tuple[int, int, str], surplus: int
) -> None:
    """Token by token the reason is what the place says, the order is the prompt's, and the sum is prompt − read."""
    told_of = sum(miss.tokens for miss in missed)
    prompt = read + max(0, told_of + surplus)
    token, until = sorted(change[:2])
    until = token if change[2] == "new" else until
    reports = explain(
        changed(token, until, change[2]), missed, read=read, prompt=prompt, now=NOON, same_text="weights_changed"
    )
    fates = [(miss.fate, miss.ago_s) for miss in missed for _ in range(miss.tokens)]
    fates += [("never_written", None)] * (prompt - read - told_of)
    expected = []
    for at, (fate, ago_s) in enumerate(fates[: prompt - read], start=read):
        same = "weights_changed" if fate == "never_written" else fate
        reason = same if at < token else change[2] if at < until else "new"
        expected.append((reason, fate, None if ago_s is None else NOON - timedelta(seconds=ago_s)))
    assert [(report.reason, report.fate, report.at, report.tokens) for report in reports] == [
        (*key, len(list(run))) for key, run in groupby(expected)
    ]
