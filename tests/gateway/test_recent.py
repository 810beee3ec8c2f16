"""The latest exchanges: the ring, its places, and what is shown of each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.view import strip, view
from gateway.miss import MissReport, Where
from gateway.recent import MISS_BYTES, RECORD_BYTES, Recent, UnknownPlace
from gateway.record import Record
from gateway.retention import MarkReport
from gateway.usage import PromptFacts, Written
from tests.gateway.records import AT, facts, record

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
CLASSES = st.sampled_from(["5m", "1h", "lunch", ""])


def anything(_: Record) -> bool:
    """Accept every record."""
    return True


def filled(count: int, **options: int) -> Recent:
    """A ring that was told of so many exchanges."""
    recent = Recent(**options)
    for number in range(count):
        recent.ended(record(id=f"r{number}", at=AT + number), b"")
    return recent


def ids(records: tuple[Record, ...]) -> list[str]:
    """The ids, as they come."""
    return [one.id for one in records]


def test_the_oldest_go_by_count() -> None:
    """A ring of three keeps the latest three, and finds by id only what it keeps."""
    recent = filled(5, most=3)
    assert (len(recent), recent.since, recent.bytes) == (3, AT + 2, 3 * (RECORD_BYTES + MISS_BYTES))
    assert ids(recent.page(anything, limit=10).records) == ["r4", "r3", "r2"]
    assert recent.get("r1") is None
    assert recent.get("r2") is not None


def test_the_oldest_go_by_bytes() -> None:
    """However many are allowed, the bytes are bounded, and one that is too large alone is not kept."""
    size = RECORD_BYTES + MISS_BYTES
    recent = filled(5, most=100, most_bytes=2 * size + 1)
    assert (ids(recent.page(anything, limit=10).records), recent.bytes) == (["r4", "r3"], 2 * size)
    assert (len(filled(1, most_bytes=size - 1)), filled(1, most_bytes=size - 1).since) == (0, None)


def test_an_id_that_came_twice_is_the_latest() -> None:
    """Losing the older one of an id does not lose the id."""
    recent = Recent(most=1)
    recent.ended(record(tenant="a"), b"")
    recent.ended(record(tenant="b"), b"")
    found = recent.get("chatcmpl-1")
    assert found is not None
    assert found.tenant == "b"


@given(st.integers(0, 30), st.integers(1, 12), st.integers(1, 20))
def test_pages_are_the_ring_cut_into_pieces(count: int, limit: int, most: int) -> None:
    """Going on from each page's end shows every kept record once, the latest first, and then there is no next."""
    recent = filled(count, most=most)
    seen: list[str] = []
    place: str | None = None
    for _ in range(count + 1):
        page = recent.page(anything, limit=limit, before=place)
        seen += ids(page.records)
        place = page.next
        if place is None:
            break
    assert place is None
    assert seen == [f"r{number}" for number in range(count - 1, max(count - most, 0) - 1, -1)]


def test_records_that_come_meanwhile_move_no_page() -> None:
    """The second page goes on where the first one ended, whatever was added."""
    recent = filled(4)
    first = recent.page(anything, limit=2)
    recent.ended(record(id="new"), b"")
    assert ids(recent.page(anything, limit=2, before=first.next).records) == ["r1", "r0"]


@pytest.mark.parametrize("place", ["", "4", "-", "x-1", "00000000-1"])
def test_a_place_of_another_life_is_refused(place: str) -> None:
    """What this ring never gave out is no place in it."""
    with pytest.raises(UnknownPlace):
        filled(3).page(anything, limit=1, before=place)


@pytest.mark.parametrize("number", ["", "-1", "1.5", "¹", "9" * 30])
def test_a_place_that_is_no_number_is_refused(number: str) -> None:
    """Nor is one of this life with something else for a number."""
    recent = filled(3)
    life = (recent.page(anything, limit=1).next or "").partition("-")[0]
    with pytest.raises(UnknownPlace):
        recent.page(anything, limit=1, before=f"{life}-{number}")


@st.composite
def costs(draw: st.DrawFn) -> PromptFacts:
    """What any prompt may have cost."""
    prompt = draw(st.integers(0, 5000))
    read = draw(st.integers(0, prompt))
    write = draw(st.integers(0, prompt - read))
    parts = draw(st.lists(st.tuples(st.integers(0, 3000), CLASSES), max_size=5))
    written = tuple(Written(tokens=tokens, asked=None, applied=klass) for tokens, klass in parts)
    return facts(prompt, read, write, written=written)


@given(costs())
def test_the_strip_covers_the_prompt_once_and_in_order(cost: PromptFacts) -> None:
    """Whatever a prompt cost, its stretches are read, written, uncached in that order, and sum to what was counted."""
    shown = list(strip(cost))
    assert sum(one["tokens"] for one in shown) == cost.prompt  # type: ignore[misc]
    kinds = [str(one["kind"]) for one in shown]
    assert kinds == sorted(kinds, key=["read", "write", "uncached"].index)
    sums = {kind: sum(one["tokens"] for one in shown if one["kind"] == kind) for kind in ("read", "write", "uncached")}  # type: ignore[misc]
    assert sums == {"read": cost.read, "write": cost.write, "uncached": cost.uncached}
    assert all(one["tokens"] for one in shown)
    told = view(record(prompt=cost))
    assert sum(told["write"].values()) == cost.write  # type: ignore[attr-defined]


def test_an_exchange_is_shown_whole() -> None:
    """Every field of a finished exchange, with its strip, its marks and why it missed."""
    where = Where(message="messages[3]", token=20, character=5, looks_like="time")
    cost = facts(
        100,
        40,
        50,
        written=(Written(tokens=30, asked="1h", applied="1h"), Written(tokens=20, asked=None, applied="5m")),
        retention=(
            MarkReport(tokens=70, asked="1h", applied="1h", until=NOON, kept="promised", reason=""),
            MarkReport(tokens=90, asked="2h", applied=None, until=None, kept="none", reason="over_budget"),
        ),
        misses=(
            MissReport(reason="messages", fate="never_written", tokens=50, at=None, where=where),
            MissReport(reason="expired", fate="expired", tokens=10, at=NOON),
        ),
    )
    assert view(record(prompt=cost, key="red", generated=3, projected=None)) == {
        "id": "chatcmpl-1",
        "at": AT,
        "tenant": "default",
        "key": "red",
        "model": "tiny",
        "api": "chat",
        "upstream": "bundled",
        "streamed": False,
        "prewarm": False,
        "outcome": "finished",
        "status": 200,
        "prompt": 100,
        "read": 40,
        "write": {"1h": 30, "5m": 20},
        "uncached": 10,
        "output": 3,
        "queue_s": 0.001,
        "prefill_s": 0.01,
        "first_token_s": 0.02,
        "decode_s": 0.03,
        "seconds": 0.05,
        "misses": [
            {
                "reason": "messages",
                "fate": "never_written",
                "tokens": 50,
                "at": None,
                "where": {"message": "messages[3]", "token": 20, "character": 5, "looks_like": "time"},
            },
            {"reason": "expired", "fate": "expired", "tokens": 10, "at": NOON.timestamp(), "where": None},
        ],
        "strip": [
            {"kind": "read", "tokens": 40, "class": None},
            {"kind": "write", "tokens": 30, "class": "1h"},
            {"kind": "write", "tokens": 20, "class": "5m"},
            {"kind": "uncached", "tokens": 10, "class": None},
        ],
        "marks": [
            {
                "tokens": 70,
                "asked": "1h",
                "applied": "1h",
                "kept": "promised",
                "until": NOON.timestamp(),
                "reason": None,
            },
            {"tokens": 90, "asked": "2h", "applied": None, "kept": "none", "until": None, "reason": "over_budget"},
        ],
        "projections": {"done": 62, "without_prefix_cache": 102, "without_kv_cache": 303},
        "routed": None,
    }


def test_what_is_not_known_is_null_and_not_zero() -> None:
    """Of an exchange that was refused before there was a prompt, nothing is made up."""
    told = view(record(prompt=None, outcome="refused", status=429, generated=0, projected=None, first_token_s=None))
    unknown = ("prompt", "read", "uncached", "queue_s", "prefill_s", "first_token_s", "decode_s", "projections")
    assert {name: told[name] for name in unknown} == dict.fromkeys(unknown)
    assert (told["write"], told["strip"], told["misses"], told["marks"]) == ({}, [], [], [])


def test_a_prompt_without_a_record_of_its_classes_is_still_covered() -> None:
    """What was written under no class that is known has no class in the strip, and is counted under `none`."""
    told = view(record(prompt=replace(facts(10, 4, 6), written=())))
    assert (told["write"], told["strip"]) == (
        {"none": 6},
        [{"kind": "read", "tokens": 4, "class": None}, {"kind": "write", "tokens": 6, "class": None}],
    )
