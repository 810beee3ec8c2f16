"""The arithmetic of the ledger: which rows make up a range, and durations in buckets."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_store.ledger import (
    DAY,
    FIVE,
    HOUR,
    LAST,
    MINUTE,
    PARTS,
    RETENTION_S,
    SHORTEST_S,
    Span,
    ceiling,
    is_kept,
    quantiles,
    slot,
    spans,
    steps_of,
)

NOW = 20_000.5 * DAY
MIDNIGHT = 20_000 * DAY


def told(start: float, end: float, bucket: int | None = None, retention_s: float = RETENTION_S) -> tuple[Span, ...]:
    """The rows of a range."""
    return spans(start, end, bucket=bucket, now=NOW, retention_s=retention_s)


def test_a_range_is_made_of_the_longest_rows_that_fit() -> None:
    """From 23:57 of a day to 02:06 of the next but one: minutes, a whole day, hours, five minutes, a minute."""
    start, end = MIDNIGHT - DAY - 180, MIDNIGHT + 2 * HOUR + 360
    assert told(start, end) == (
        Span(MINUTE, start, MIDNIGHT - DAY),
        Span(DAY, MIDNIGHT - DAY, MIDNIGHT),
        Span(HOUR, MIDNIGHT, MIDNIGHT + 2 * HOUR),
        Span(FIVE, MIDNIGHT + 2 * HOUR, MIDNIGHT + 2 * HOUR + FIVE),
        Span(MINUTE, MIDNIGHT + 2 * HOUR + FIVE, end),
    )


def test_edges_move_outwards_to_whole_minutes() -> None:
    """A minute that is touched is asked for whole, and the next one is not."""
    start = int(NOW) - 600
    assert told(start + 59.9, start + 60.1) == (Span(MINUTE, start, start + 120),)
    assert told(start, start + 60.0) == (Span(MINUTE, start, start + 60),)


def test_where_minutes_are_gone_edges_move_to_hours() -> None:
    """Thirty days back an edge is the hour's; a year back it is the day's."""
    assert told(NOW - 30 * DAY + 100, NOW - 30 * DAY + 200) == (
        Span(HOUR, int(NOW) - 30 * DAY, int(NOW) - 30 * DAY + HOUR),
    )
    assert told(NOW - 365 * DAY, NOW - 365 * DAY + 60) == (Span(DAY, MIDNIGHT - 365 * DAY, MIDNIGHT - 364 * DAY),)


def test_no_row_is_longer_than_a_bucket() -> None:
    """Buckets of an hour are made of hours, and of what is shorter at the edges."""
    start = MIDNIGHT - 2 * DAY - HOUR
    assert told(start, MIDNIGHT, HOUR) == (Span(HOUR, start, MIDNIGHT),)
    assert {span.step for span in told(MIDNIGHT - DAY, MIDNIGHT, 900)} == {FIVE}


@given(
    st.integers(1, 500 * DAY),
    st.integers(1, 500 * DAY),
    st.sampled_from([None, 60, 300, 900, 3600, 21_600, 86_400]),
    st.sampled_from([3600.0, 10.0 * DAY, RETENTION_S]),
)
def test_spans_cover_a_range_once(back: int, length: int, bucket: int | None, retention_s: float) -> None:
    """Rows follow each other without gap or overlap, cover the range, fit into buckets, and are kept where any is."""
    start, end = NOW - back, NOW - back + length
    found = told(start, end, bucket, retention_s)
    assert found[0].start <= start and found[-1].end >= end
    assert all(one.end == other.start for one, other in pairwise(found))
    for span in found:
        assert span.start % span.step == 0 and (span.end - span.start) % span.step == 0 and span.end > span.start
        assert bucket is None or bucket % span.step == 0
        if any(is_kept(step, start, NOW, retention_s) for step in steps_of(bucket)):
            assert is_kept(span.step, span.start, NOW, retention_s)


@pytest.mark.parametrize("seconds", [0.0, -1.0, SHORTEST_S])
def test_what_is_too_short_to_tell_is_in_the_first_bucket(seconds: float) -> None:
    """Nothing, and a clock that went back, count as the shortest duration."""
    assert slot(seconds) == 0


def test_what_takes_very_long_is_in_the_last_bucket() -> None:
    """There is no bucket after the last."""
    assert (slot(6 * 3600.0), slot(1e300)) == (LAST, LAST)


@given(st.floats(SHORTEST_S * 1.001, 6000.0))
def test_a_bucket_holds_what_is_above_the_one_before(seconds: float) -> None:
    """A duration is at most its bucket's ceiling and above the one below, within rounding."""
    number = slot(seconds)
    assert ceiling(number - 1) * (1 - 1e-9) < seconds <= ceiling(number) * (1 + 1e-9)


@given(st.lists(st.floats(SHORTEST_S, 6000.0), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_quantiles_are_within_one_bucket(durations: list[float], share: float) -> None:
    """A quantile lies in the bucket of the exact one."""
    slots: dict[int, int] = {}
    for duration in durations:
        slots[slot(duration)] = slots.get(slot(duration), 0) + 1
    exact = sorted(durations)[max(math.ceil(share * len(durations)) - 1, 0)]
    (found,) = quantiles(slots, [share])
    assert abs(math.log2(found / exact)) <= 1 / PARTS + 1e-9


def test_quantiles_of_empty_buckets_pass_them_over() -> None:
    """A bucket with a count of zero is never the answer."""
    assert list(quantiles({0: 0, 3: 2, 9: 0}, [0.5, 1.0])) == pytest.approx(
        [ceiling(2) * 2 ** (1 / 2 / PARTS), ceiling(3)]
    )
