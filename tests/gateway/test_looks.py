"""What text at a place looks like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.looks import looks_like, volatile

UUID = "0b9f3c52-6c6e-4e1b-9d3e-3f0f0f0a1b2c"
AWS = "https://bucket.s3.amazonaws.com/cat.png?X-Amz-Date=20270303T101500Z&X-Amz-Signature=9f86d081884c7d65"

SAMPLES = [
    ("time", "Now it is |2027-03-03T10:15:00Z|."),
    ("time", "Now: |2027-03-03 10:15:00.123456+01:00|"),
    ("time", "started at |10:15|, ended later"),
    ("time", "The clock says |7:05 PM| here"),
    ("time", '{"created": |1804068900|}'),
    ("time", '{"created_ms": |1804068900123|}'),
    ("time", "ts=|1804068900.25| x"),
    ("time", "stamp |20270303T101500Z| end"),
    ("date", "Today is |Monday, 3 March 2027|."),
    ("date", "Today is |March 3, 2027|."),
    ("date", "Date: |2027-03-03|"),
    ("date", "on |03.03.2027| we met"),
    ("date", "on |03/14/2027| we met"),
    ("date", "the |3rd of March 2027| it is"),
    ("date", "Knowledge cutoff: |March 2027|"),
    ("date", "It is |Wednesday| again"),
    ("uuid", f"conversation |{UUID}|:"),
    ("uuid", f"conversation |{UUID.upper()}|:"),
    ("hash", "digest |9f86d081884c7d659a2feaa0c55ad015|."),
    ("hash", "x-anthropic-billing-header: |cch=a1b2c|; v=1"),
    ("hash", "|trace_id: 4bf92f3577b34|"),
    ("hash", "key |toolu_01A09q90qw90lq917835lq9Z| is"),
    ("counter", "This is |request 1234| of many"),
    ("counter", "issue |#42| again"),
    ("counter", "|Turn: 7| begins"),
    ("counter", "|session id 99| begins"),
    ("signed_url", f"see |{AWS}| now"),
    ("signed_url", "![x](|https://a.blob.core.windows.net/c/b.png?sv=2024&sig=abc%2Fdef&se=2027|"),
    ("signed_url", "|https://cdn.example.com/i.png?Expires=1804068900&Signature=xyz&Key-Pair-Id=K1|"),
    ("number", "There are |17| birds"),
    ("number", "It costs |12.50| now"),
    ("white_space", "two words|  |here"),
    ("white_space", "line|\n|break"),
    ("text", "|plain words of nobody|"),
    ("text", "You |may go| on"),
    ("text", "the |claude-sonnet-preview-for-long| model"),
    ("text", "|https://example.com/page?name=value|"),
]


@pytest.mark.parametrize(("kind", "sample"), SAMPLES, ids=[sample for _, sample in SAMPLES])
def test_each_character_of_a_sample_is_told_for_what_it_belongs_to(kind: str, sample: str) -> None:
    """Wherever in a time, a UUID or the like the place lies, the whole is seen; text and blanks are themselves."""
    before, inside, after = sample.split("|")
    text = before + inside + after
    places = [at for at in range(len(before), len(before + inside)) if kind != "text" or not text[at].isspace()]
    assert {looks_like(text, at) for at in places} == {kind}


def test_a_place_outside_the_text_is_its_nearest_character() -> None:
    """What was only appended to or cut looks like where it ends; nothing looks like text."""
    assert (looks_like("at 10:15", 8), looks_like("10:15 now", -3), looks_like("", 0)) == ("time", "time", "text")


def test_a_long_text_is_seen_only_around_the_place() -> None:
    """A date far away is no part of the word, and one behind much text still is found."""
    text = "2027-03-03 " + "word " * 100_000 + "2027-03-04"
    assert [looks_like(text, at) for at in (3, 250_001, len(text) - 2)] == ["date", "text", "date"]


def test_what_tends_to_change_is_found_once() -> None:
    """Each volatile piece is named by its widest kind, and numbers are left out."""
    text = f"On 2027-03-03T10:15:00Z request 12 of {UUID} saw 3 birds at {AWS}"
    found = sorted(volatile(text), key=lambda one: one.begin)
    assert [(one.looks_like, text[one.begin : one.end]) for one in found] == [
        ("time", "2027-03-03T10:15:00Z"),
        ("counter", "request 12"),
        ("uuid", UUID),
        ("signed_url", AWS),
    ]


@given(st.text(max_size=200), st.integers(-5, 300))
def test_any_place_of_any_text_has_one_of_the_kinds(text: str, at: int) -> None:
    """There is an answer for everything."""
    kinds = {"time", "date", "uuid", "counter", "hash", "signed_url", "white_space", "number", "text"}
    assert looks_like(text, at) in kinds
