"""What the gateway counts into the ledger, and what becomes of counts that the store does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import gateway.ledger
from engine.errors import EngineUnavailable
from engine.operator_messages import EngineStats
from gateway.ledger import PORTION, Ledger
from gateway.record import Record
from gateway.usage import Written
from prefix_store.ledger import DAY, HOUR, MINUTE, RETENTION_S, Place, Question, Row, Span, Sums, floor, merge, slot
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.store import StoreUnavailable
from tests.gateway.records import AT, facts, missed, record

MINUTE_OF = floor(AT, MINUTE)
PLACE = Place(tenant="default", key="", model="tiny", api="chat", upstream="bundled")


class Engine:
    """An engine whose counters a test sets."""

    name, model = "bundled", "tiny"

    def __init__(self) -> None:
        self.life = 0
        self.reading: EngineStats | None = EngineStats()

    async def stats(self) -> EngineStats:
        """Return what was set."""
        if self.reading is None:
            raise EngineUnavailable("gone")
        return self.reading


class Shelf:
    """A store that keeps rows as they come, and refuses when told to."""

    retention_s = RETENTION_S

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.calls: list[int] = []
        self.refuses: StoreUnavailable | None = None
        self.after = 0  # calls that still go well

    async def add(self, rows: Sequence[Row]) -> None:
        """Keep rows, or refuse."""
        if self.refuses is not None:
            if not self.after:
                raise self.refuses
            self.after -= 1
        self.calls.append(len(rows))
        self.rows += rows

    async def sums(self, question: Question) -> Sums:
        """Nothing asks."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to let go of."""

    @property
    def told(self) -> dict[tuple[int, Place], dict[str, int]]:
        """What was kept, added up."""
        found: dict[tuple[int, Place], dict[str, int]] = {}
        for row in self.rows:
            merge(found.setdefault((row.start, row.place), {}), row.counts)
        return found


async def counted(*records: Record, tokens: bytes = b"\0" * 40) -> dict[str, int]:
    """The counts that these records of one place and minute come to."""
    shelf = Shelf()
    ledger = Ledger(shelf, Engine())
    for one in records:
        ledger.ended(one, tokens)
    await ledger.flush()
    ((_, counts),) = shelf.told.items()
    return counts


async def test_a_request_counts_all_its_facts() -> None:
    """A finished request that read too little for a hit counts as a miss with its reasons, times and projections."""
    prompt = facts(
        prompt=30,
        read=4,
        write=20,
        written=(Written(tokens=12, asked="1h", applied="1h"), Written(tokens=8, asked=None, applied="5m")),
        misses=(missed("system", 10), missed("new", 6), missed("system", 10)),
    )
    assert await counted(record(prompt=prompt, key="one", projected=28, min_tokens=16)) == {
        "outcome|finished": 1,
        "requests": 1,
        "output": 3,
        f"seconds|{slot(0.05)}": 1,
        "reported": 1,
        "prompt": 30,
        "read": 4,
        "uncached": 6,
        "write|1h": 12,
        "write|5m": 8,
        "missed|system": 20,
        "missed|new": 6,
        "misses|system": 1,
        "misses|new": 1,
        "done": 28,
        "without": 32,
        f"first_miss|{slot(0.02)}": 1,
        f"queue|{slot(0.001)}": 1,
        f"prefill|{slot(0.01)}": 1,
    }


@pytest.mark.parametrize(
    ("least", "read", "hits"),
    [(0, 0, None), (0, 1, 1), (16, 15, None), (16, 16, 1), (64, 63, None), (64, 64, 1)],
)
async def test_a_hit_has_what_its_policy_asks(least: int, read: int, hits: int | None) -> None:
    """A request is a hit from the governing policy's minimum on, and its first token is counted with the hits."""
    found = await counted(record(min_tokens=least, prompt=facts(prompt=70, read=read, write=0)))
    assert found.get("hits") == hits
    assert f"first_{'hit' if hits else 'miss'}|{slot(0.02)}" in found


async def test_without_a_minimum_nothing_read_is_no_hit() -> None:
    """A policy's minimum of zero does not make a hit of a request that read nothing."""
    shelf = Shelf()
    ledger = Ledger(shelf, Engine())
    ledger.ended(record(prompt=facts(prompt=5, read=0, write=0)), b"")
    await ledger.flush()
    assert "hits" not in shelf.rows[0].counts


async def test_a_prewarm_is_apart() -> None:
    """What a pre-warm read and wrote is in no count of requests."""
    prompt = facts(prompt=30, read=4, write=20, written=(Written(tokens=20, asked="1h", applied="1h"),))
    found = await counted(record(prewarm=True, prompt=prompt, generated=0, first_token_s=None))
    assert found == {"prewarms": 1, "warm_read": 4, "warm_uncached": 6, "warm_write|1h": 20}


async def test_a_refusal_without_a_prompt_is_no_request() -> None:
    """What was refused before a prompt was made counts among the outcomes only; after it, as a request too."""
    nothing: dict[str, Any] = {"prompt": None, "generated": 0, "projected": None, "first_token_s": None}
    early = record(outcome="refused", status=400, **nothing)
    assert await counted(early, tokens=b"") == {"outcome|refused": 1}
    assert await counted(early) == {"outcome|refused": 1, "requests": 1}


async def test_an_answer_of_which_nothing_is_told_is_unknown() -> None:
    """Where an upstream answers and does not say what its cache did, the prompt's tokens are unknown, not uncached."""
    found = await counted(record(prompt=None, first_token_s=None))
    assert (found["prompt"], found["unknown"], "uncached" in found, "reported" in found) == (10, 10, False, False)


async def test_a_request_counts_in_the_minute_of_its_arrival() -> None:
    """The last moment of a minute is that minute's, its end the next one's, however late a record comes."""
    shelf = Shelf()
    ledger = Ledger(shelf, Engine(), wall=lambda: AT + DAY)
    for at in (MINUTE_OF + 59.999, MINUTE_OF + 60.0, MINUTE_OF + 0.0):
        ledger.ended(record(at=at), b"")
    await ledger.flush()
    assert [(start, counts["requests"]) for (start, _), counts in shelf.told.items()] == [
        (MINUTE_OF, 2),
        (MINUTE_OF + 60, 1),
    ]


async def test_what_is_refused_stays_for_the_next_time() -> None:
    """Counts that the store does not take are handed over later, with what came meanwhile, and once."""
    shelf = Shelf()
    ledger = Ledger(shelf, Engine())
    shelf.refuses = StoreUnavailable("away")
    ledger.ended(record(), b"")
    await ledger.flush()
    ledger.ended(record(), b"")
    shelf.refuses = None
    await ledger.flush()
    await ledger.flush()
    assert {place: counts["requests"] for place, counts in shelf.told.items()} == {(MINUTE_OF, PLACE): 2}


@pytest.mark.parametrize(("perhaps", "kept"), [(False, 3 * PORTION), (True, 2 * PORTION)])
async def test_what_may_have_arrived_is_not_sent_again(*, perhaps: bool, kept: int) -> None:
    """A portion of which it is not known whether it arrived is given up; those after it are kept."""
    shelf = Shelf()
    ledger = Ledger(shelf, Engine())
    for number in range(3 * PORTION):
        ledger.ended(record(tenant=f"t{number:03}"), b"")
    shelf.refuses, shelf.after = StoreUnavailable("slow", perhaps=perhaps), 1
    await ledger.flush()
    shelf.refuses = None
    await ledger.flush()
    assert sum(counts["requests"] for counts in shelf.told.values()) == kept


async def test_a_long_outage_folds_minutes_into_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above its bound the memory keeps hours instead of minutes, and the sum stays whole."""
    monkeypatch.setattr(gateway.ledger, "MOST_ROWS", 10)
    shelf = Shelf()
    ledger = Ledger(shelf, Engine())
    shelf.refuses = StoreUnavailable("away")
    hour = floor(AT, HOUR)
    for minute in range(120):
        ledger.ended(record(at=hour + 60.0 * minute), b"")
    await ledger.flush()
    shelf.refuses = None
    await ledger.flush()
    assert {start: counts["requests"] for (start, _), counts in shelf.told.items()} == {hour: 60, hour + HOUR: 60}


async def test_evictions_are_the_engine_s_growth() -> None:
    """Between two looks a counter's growth counts, in the minute of the look, and its standing is not counted again."""
    shelf, engine = Shelf(), Engine()
    ledger = Ledger(shelf, engine, wall=lambda: AT)
    engine.reading = EngineStats(blocks_expired_total=5, blocks_evicted_total=2, broken_promises={"1h|acme": 3})
    await ledger.poll()
    await ledger.poll()
    engine.reading = EngineStats(
        blocks_expired_total=9, blocks_evicted_total=2, purged_total=1, broken_promises={"1h|acme": 4, "5m|x|y": 1}
    )
    await ledger.poll()
    await ledger.flush()
    place = Place(tenant="", key="", model="tiny", api="", upstream="bundled")
    assert shelf.told == {
        (MINUTE_OF, place): {"gone|expired": 9, "gone|evicted": 2, "gone|purged": 1},
        (MINUTE_OF, place._replace(tenant="acme")): {"broken|1h": 4},
        (MINUTE_OF, place._replace(tenant="x|y")): {"broken|5m": 1},
    }


@pytest.mark.parametrize("restarts", [0, 1])
async def test_a_new_engine_counts_from_nothing(restarts: int) -> None:
    """A counter that fell, or a restart that is told, means that all of them began anew."""
    shelf, engine = Shelf(), Engine()
    ledger = Ledger(shelf, engine, wall=lambda: AT)
    engine.reading = EngineStats(blocks_expired_total=5, blocks_evicted_total=2)
    await ledger.poll()
    engine.reading = None
    await ledger.poll()
    engine.life = restarts
    engine.reading = EngineStats(blocks_expired_total=5 + restarts, blocks_evicted_total=1 + 2 * restarts)
    await ledger.poll()
    await ledger.flush()
    ((_, counts),) = shelf.told.items()
    assert counts == {"gone|expired": 10 + restarts, "gone|evicted": 3 + 2 * restarts}


async def test_what_is_counted_is_in_a_real_ledger() -> None:
    """Records come back from the store summed, by the hour as by the minute."""
    store = await SqliteLedger.open(":memory:", clock=lambda: AT)
    ledger = Ledger(store, Engine())
    for _ in range(3):
        ledger.ended(record(), b"")
    async with ledger.flushing():
        pass
    for step in (MINUTE, HOUR):
        question = Question(spans=(Span(step, floor(AT, step), floor(AT, step) + step),), fields=("tenant",))
        assert (await store.sums(question))[None, ("default",)]["prompt"] == 30
    await store.close()
