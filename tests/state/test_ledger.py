"""What every ledger promises, over a file, memory and a real Redis-compatible server."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefix_store.breaker import Breaker
from prefix_store.ledger import DAY, FIVE, HOUR, MINUTE, STEPS, Place, Question, Row, Span, floor, spans
from prefix_store.redis_ledger import RedisLedger
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.store import StateRefused, StoreUnavailable
from tests.state.servers import HandClock

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("never_blocked")]

NOON = 20_000 * DAY + 12 * HOUR
ACME = Place(tenant="acme", key="one", model="tiny", api="chat", upstream="bundled")
OTHER = ACME._replace(tenant="other", key="", api="messages")


@pytest.fixture
def ledger_clock() -> HandClock:
    """Return the wall clock of the ledgers."""
    return HandClock(NOON + 30.0)


@pytest.fixture
def opening_ledger(backend, tmp_path, ledger_clock, prefix, request):
    """Return how to open this run's ledger; opened again, all but memory hold what they held."""
    if backend == "redis":
        where = request.getfixturevalue("shared_server").settings(prefix=prefix)
        return lambda **more: RedisLedger.open(where, clock=ledger_clock, **more)
    path = ":memory:" if backend == "memory" else tmp_path / "ledger.db"
    return lambda **more: SqliteLedger.open(path, clock=ledger_clock, **more)


@pytest_asyncio.fixture
async def ledger(opening_ledger, opened):
    """Return an empty ledger of this run's kind."""
    return await opened(opening_ledger())


@pytest.fixture
def later(backend, ledger_clock, prefix, request):
    """Return how to let time pass for this run's ledger."""

    def turn(seconds):
        ledger_clock.now += seconds
        if backend == "redis":
            request.getfixturevalue("shared_server").age(seconds, f"{prefix}*")

    return turn


def all_of(step: int, **more) -> Question:
    """Ask for all rows of one step within two days of noon."""
    return Question(spans=(Span(step, floor(NOON - DAY, step), floor(NOON + DAY, step) + step),), **more)


async def test_an_empty_ledger_has_no_cells(ledger):
    """Where nothing was counted there is nothing, not zeros."""
    assert await ledger.sums(all_of(MINUTE, bucket=HOUR, fields=("tenant",))) == {}


@pytest.mark.parametrize("step", STEPS)
async def test_every_step_holds_the_same(ledger, step):
    """What is added to minutes is in the five minutes, the hour and the day around them too."""
    await ledger.add([Row(NOON, ACME, {"a": 1, "b": 2}), Row(NOON + 60, ACME, {"a": 10})])
    await ledger.add([Row(NOON, ACME, {"b": 5})])
    assert await ledger.sums(all_of(step)) == {(None, ()): {"a": 11, "b": 7}}


async def test_a_minute_ends_where_the_next_begins(ledger):
    """A span has its start and not its end."""
    await ledger.add([Row(NOON - 60, ACME, {"a": 1}), Row(NOON, ACME, {"a": 10}), Row(NOON + 60, ACME, {"a": 100})])
    assert await ledger.sums(Question(spans=(Span(MINUTE, NOON, NOON + 60),))) == {(None, ()): {"a": 10}}


async def test_cells_are_buckets_and_groups(ledger):
    """Sums are apart by the bucket that a row lies in and by the fields that were asked for, in their order."""
    await ledger.add([Row(NOON, ACME, {"a": 1}), Row(NOON + 300, ACME, {"a": 2}), Row(NOON, OTHER, {"a": 4})])
    assert await ledger.sums(all_of(MINUTE, bucket=FIVE, fields=("api", "tenant"))) == {
        (NOON, ("chat", "acme")): {"a": 1},
        (NOON + 300, ("chat", "acme")): {"a": 2},
        (NOON, ("messages", "other")): {"a": 4},
    }


@pytest.mark.parametrize(
    ("only", "found"),
    [({"tenant": "acme"}, 1), ({"key": ""}, 2), ({"tenant": "acme", "api": "chat"}, 1), ({"tenant": "nobody"}, None)],
)
async def test_filters_narrow(ledger, only, found):
    """Only rows at places with these values are summed; a value that nobody has finds nothing."""
    await ledger.add([Row(NOON, ACME, {"a": 1}), Row(NOON, OTHER, {"a": 2})])
    assert await ledger.sums(all_of(HOUR, only=only)) == ({} if found is None else {(None, ()): {"a": found}})


async def test_large_counts_and_odd_names_stay_apart(ledger):
    """Counts of a thousand billion tokens and names of any text are kept exactly."""
    odd = Place(tenant="ä|\"'\n", key="", model="m\x00", api="", upstream="")
    counts = {f"missed|{number}": 10**12 + number for number in range(40)}
    await ledger.add([Row(NOON, odd, counts)])
    await ledger.add([Row(NOON, odd, counts | {"last": 1})])
    found = await ledger.sums(all_of(DAY, fields=tuple(Place._fields)))
    assert found == {(None, tuple(odd)): {name: 2 * count for name, count in counts.items()} | {"last": 1}}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_sums_equal_a_plain_sum(opening_ledger, backend, ledger_clock, data, request):
    """Whatever rows are added in whatever portions, the sums over a range are those of its minutes."""
    minute = st.integers(-20 * 60, 0).map(lambda number: NOON + 60 * number)
    place = st.builds(Place, *(st.sampled_from(["", "x", "y"]) for _ in Place._fields))
    counts = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 10**9), min_size=1)
    rows = data.draw(st.lists(st.builds(Row, minute, place, counts), min_size=1, max_size=12))
    cut = data.draw(st.integers(0, len(rows)))
    start, end = sorted(data.draw(st.tuples(minute, minute)))
    bucket = data.draw(st.sampled_from([None, 60, 900, 3600, DAY]))
    fields = data.draw(st.sampled_from([(), ("tenant",), ("api", "model")]))
    expected: dict[object, Counter[str]] = {}
    for row in rows:
        if start <= row.start < end + 60:
            cell = (bucket and row.start - row.start % bucket, tuple(getattr(row.place, name) for name in fields))
            expected.setdefault(cell, Counter()).update(row.counts)
    if backend == "redis":
        request.getfixturevalue("shared_server").say("FLUSHALL")
    memory = backend != "redis"
    ledger = await (SqliteLedger.open(":memory:", clock=ledger_clock) if memory else opening_ledger())
    try:
        for portion in (rows[:cut], rows[cut:]):
            await ledger.add(portion)
        covered = spans(start, end + 60, bucket=bucket, now=NOON, retention_s=ledger.retention_s)
        assert await ledger.sums(Question(spans=covered, bucket=bucket, fields=fields)) == expected
    finally:
        await ledger.close()


async def test_finer_rows_go_first(ledger, later):
    """After two days minutes are gone, after seven five minutes, after ninety hours; days stay."""
    await ledger.add([Row(NOON, ACME, {"a": 1})])
    left = []
    for days in (1.9, 0.3, 5, 83.5):
        later(days * DAY)
        await ledger.add([Row(NOON + 200 * DAY, ACME, {"a": 1})])
        left.append([step for step in STEPS if await ledger.sums(all_of(step))])
    assert left == [[MINUTE, FIVE, HOUR, DAY], [FIVE, HOUR, DAY], [HOUR, DAY], [DAY]]


async def test_a_short_retention_shortens_all(opening_ledger, opened, later):
    """No row outlives the retention by more than its own length."""
    ledger = await opened(opening_ledger(retention_s=float(HOUR)))
    await ledger.add([Row(NOON, ACME, {"a": 1})])
    later(2.5 * HOUR)
    await ledger.add([Row(NOON + 200 * DAY, ACME, {"a": 1})])
    assert [step for step in STEPS if await ledger.sums(all_of(step))] == [DAY]


@pytest.mark.parametrize("backend", ["file", "redis"], indirect=True)
async def test_what_was_added_is_there_after_a_restart(opening_ledger, opened):
    """A ledger opened again holds what it held, and goes on counting."""
    first = await opened(opening_ledger())
    await first.add([Row(NOON, ACME, {"a": 1, "b": 1})])
    await first.close()
    second = await opened(opening_ledger())
    await second.add([Row(NOON, ACME, {"c": 1, "a": 1})])
    assert await second.sums(all_of(DAY)) == {(None, ()): {"a": 2, "b": 1, "c": 1}}


@pytest.mark.parametrize("backend", ["file", "redis"], indirect=True)
async def test_two_writers_add_to_the_same_rows(opening_ledger, opened):
    """Two gateways that know nothing of each other's names and places lose no count."""
    one, other = await opened(opening_ledger()), await opened(opening_ledger())
    await asyncio.gather(
        *(one.add([Row(NOON, ACME, {"a": 1, f"x{number}": 1})]) for number in range(10)),
        *(other.add([Row(NOON, place, {f"y{number}": 1, "a": 1})]) for number in range(5) for place in (ACME, OTHER)),
    )
    expected = {"a": 20} | {f"x{number}": 1 for number in range(10)} | {f"y{number}": 2 for number in range(5)}
    assert await one.sums(all_of(HOUR)) == {(None, ()): expected}
    assert await other.sums(all_of(HOUR)) == {(None, ()): expected}


async def test_a_closed_ledger_refuses(ledger):
    """What comes after the end is not pretended to be kept."""
    await ledger.close()
    await ledger.close()
    with pytest.raises(StoreUnavailable):
        await ledger.add([Row(NOON, ACME, {"a": 1})])


async def test_every_key_expires_and_names_nobody(shared_server, prefix, ledger_clock):
    """In Redis each key has an expiry no longer than the rows' own, and is a digest."""
    ledger = await RedisLedger.open(shared_server.settings(prefix=prefix), clock=ledger_clock)
    await ledger.add([Row(NOON, ACME, {"a": 1}), Row(NOON - 600 * DAY, OTHER, {"a": 1})])
    await ledger.close()
    keys = shared_server.lines("KEYS", f"{prefix}*")
    lives_s = sorted({shared_server.number("PTTL", key) // 1000 for key in keys})
    assert len(keys) == 16
    assert lives_s[0] > 50 and lives_s[-1] <= 401 * DAY
    assert not any(word in key for key in keys for word in ("acme", "other", "tiny"))


async def test_a_server_that_is_away_is_said_and_comes_back(server, ledger_clock):
    """Counts that were sent and not answered may have arrived, those that the breaker held back have not."""
    still = HandClock()
    ledger = await RedisLedger.open(server.settings(), breaker=Breaker(failures=1, clock=still), clock=ledger_clock)
    await ledger.add([Row(NOON, ACME, {"a": 1})])
    server.pause()
    with pytest.raises(StoreUnavailable) as unanswered:
        await ledger.add([Row(NOON, ACME, {"b": 1})])
    server.resume()
    with pytest.raises(StoreUnavailable) as unsent:
        await ledger.add([Row(NOON, ACME, {"c": 1})])
    assert (unanswered.value.perhaps, unsent.value.perhaps) == (True, False)
    still.now += 1
    await ledger.add([Row(NOON, ACME, {"a": 1})])
    ((_, counts),) = (await ledger.sums(all_of(DAY))).items()
    assert (counts["a"], "c" in counts) == (2, False)
    await ledger.close()


async def test_a_foreign_file_is_refused_as_it_was(tmp_path):
    """A state file is no ledger file, a text is neither, and both are left as they were."""
    path = tmp_path / "ledger.db"
    await asyncio.to_thread(path.write_text, "hello" * 100)
    with pytest.raises(StateRefused, match=r"the ledger file .* is not a SQLite database"):
        await SqliteLedger.open(path)
    assert await asyncio.to_thread(Path.read_text, path) == "hello" * 100
