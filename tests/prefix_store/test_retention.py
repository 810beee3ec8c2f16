"""Retention: deadlines, and durations as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_store.retention import LONGEST_S, Kept, Retention, format_duration, parse_duration


def test_the_clock_starts_at_admission():
    """A deadline counts from when the request was admitted, not from when a block was written."""
    terms = Retention(klass="5m", ttl_s=300.0, since=12.0)
    assert (terms.deadline, terms.kept, terms.sliding, terms.priority) == (312.0, Kept.HELD, True, 50)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("24h", 86_400.0),
        ("1d", 86_400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        (" 5m ", 300.0),
        ("3650d", LONGEST_S),
    ],
)
def test_durations_are_read(text, seconds):
    """A number and a unit, from milliseconds to days."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "m",
        "-5m",
        "+5m",
        "0s",
        "0.0h",
        "5 m",
        "5M",
        "5m5s",
        "1e3s",
        "nan",
        "infs",
        ".5s",
        "5.s",
        "3651d",
        "9" * 400 + "s",
    ],
)
def test_what_is_no_duration_is_refused_by_name(text):
    """Anything else is refused with the text and examples of what is right."""
    with pytest.raises(ValueError, match="a duration above zero such as 30s, 5m, 1h or 1d") as refused:
        parse_duration(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300.0, "5m"),
        (3600.0, "1h"),
        (86_400.0, "1d"),
        (90.0, "90s"),
        (90.5, "90.5s"),
        (5400.0, "90m"),
        (0.25, "250ms"),
        (1.0, "1s"),
    ],
)
def test_durations_are_written_in_the_largest_whole_unit(seconds, text):
    """What a person would write."""
    assert format_duration(seconds) == text


@given(st.floats(1e-6, LONGEST_S))
def test_what_is_written_can_be_read(seconds):
    """Writing and reading gives any duration from a microsecond up back, to twelve digits."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-11)
