"""Events to everyone who listens, and what happened in order: without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gateway.live import COMMENT, Hub, Listener
from gateway.record import Record
from gateway.timeline import MOST, Timeline, told
from prefix_store.policy import Policy
from prefix_store.sqlite_store import SqliteStore
from prefix_store.store import Entry, StoreUnavailable
from tests.gateway.records import AT, record
from tests.state.servers import HandClock

PURGE = Entry(
    by="admin",
    at=AT,
    what="purge",
    subject="acme",
    before={"tenant": "acme", "class": "5m"},
    after={"tenants": {"acme": {"purged": {"tokens": 6400}}, "b": {"purged": {"tokens": 16}}}},
)


class Views:
    """Shows an exchange by its id, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, shown: Record) -> dict[str, str]:
        self.made += 1
        return {"id": shown.id}


def read(data: bytes) -> tuple[str, Any]:
    """Kind and data of an event."""
    kind, body = data.decode().removesuffix("\n\n").split("\n")
    return kind.removeprefix("event: "), json.loads(body.removeprefix("data: "))


async def heard(listener: Listener, count: int) -> list[tuple[str, Any]]:
    """The next events."""
    events = listener.events()
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        return [read(await anext(events)) for _ in range(count)]


async def test_everyone_hears_everything_and_it_is_made_once() -> None:
    """Two listeners hear both exchanges in order, each of which was shown once."""
    hub = Hub(views := Views())
    with hub.listen() as one, hub.listen() as other:
        hub.ended(record(id="a"), b"")
        hub.ended(record(id="b"), b"")
        for listener in (one, other):
            assert await heard(listener, 2) == [("request", {"id": "a"}), ("request", {"id": "b"})]
    assert views.made == 2


async def test_where_nobody_listens_nothing_is_made() -> None:
    """Before the first listener and after the last, an exchange is not even shown."""
    hub = Hub(views := Views())
    hub.ended(record(), b"")
    with hub.listen():
        assert hub.heard
    hub.ended(record(), b"")
    assert (views.made, hub.heard) == (0, False)


async def test_a_slow_listener_loses_the_oldest_and_is_told() -> None:
    """Of five events a queue of two keeps the last two, says that three are lost, and the quick one loses nothing."""
    hub = Hub(Views(), most_waiting=2)
    with hub.listen() as slow, hub.listen() as quick:
        taken = []
        for name in "abcde":
            hub.ended(record(id=name), b"")
            taken += await heard(quick, 1)
        assert [data["id"] for _, data in taken] == ["a", "b", "c", "d", "e"]
        assert await heard(slow, 3) == [("lost", {"events": 3}), ("request", {"id": "d"}), ("request", {"id": "e"})]


async def test_a_quiet_listener_gets_comments() -> None:
    """When nothing comes, a comment does; an event after it comes as ever."""
    hub = Hub(Views())
    with hub.listen() as listener:
        events = listener.events(quiet_s=0.001)
        assert await anext(events) == COMMENT
        hub.ended(record(id="a"), b"")
        assert read(await anext(events)) == ("request", {"id": "a"})


async def test_a_closed_hub_ends_its_listeners_and_those_to_come() -> None:
    """Who waits is woken and ends, and who comes later ends at once."""
    hub = Hub(Views())
    with hub.listen() as listener:
        waiting = asyncio.create_task(heard(listener, 1))
        await asyncio.sleep(0)
        hub.close()
        with pytest.raises((StopAsyncIteration, RuntimeError)):
            await waiting
    with hub.listen() as late:
        assert [one async for one in late.events()] == []


async def test_the_state_is_told_while_somebody_listens() -> None:
    """A pulse comes again and again, asked for only where it is heard."""
    hub, asked = Hub(Views()), 0

    async def state() -> dict[str, int]:
        nonlocal asked
        asked += 1
        return {"n": asked}

    async with hub.pulsing(state, every_s=0.001):
        with hub.listen() as listener:
            assert await heard(listener, 2) == [("state", {"n": 1}), ("state", {"n": 2})]


# ---- what happened ----


@pytest.fixture
async def state() -> AsyncIterator[SqliteStore]:
    """A store in memory."""
    opened = await SqliteStore.open(":memory:")
    yield opened
    await opened.close()


async def test_the_timeline_joins_audit_trail_and_process(state: SqliteStore) -> None:
    """A policy, a purge, a deploy and a restart stand in order of time, and only those of the range."""
    clock = HandClock(AT)
    timeline = Timeline(state, Hub(Views()), now=clock)
    await state.put(Policy(name="acme", tenant="acme", default_ttl="5m"), by="admin", at=AT + 1)
    await state.put(Policy(name="acme", tenant="acme", default_ttl="1h", version=1), by="admin", at=AT + 4)
    clock.now = AT + 2
    timeline.note("restart", "The engine died", "tiny")
    clock.now = AT + 3
    assert (await timeline.mark("deployed 1.4", by="eve")).at == AT + 3
    await state.delete("acme", version=2, by="admin", at=AT + 5)
    await state.record(PURGE)
    span = await timeline.between(AT, AT + 10)
    assert [(one.at - AT, one.kind, one.title, one.subject) for one in span.events] == [
        (0, "purge", "Purged tenant acme, class 5m: 6,416 tokens", "acme"),
        (1, "policy", "Policy acme made: default_ttl 5m", "acme"),
        (2, "restart", "The engine died", "tiny"),
        (3, "deploy", "deployed 1.4", ""),
        (4, "policy", "Policy acme: default_ttl 5m → 1h", "acme"),
        (5, "policy", "Policy acme deleted", "acme"),
    ]
    assert [one.at - AT for one in (await timeline.between(AT + 2, AT + 4)).events] == [2, 3]
    assert (await timeline.between(AT + 90, AT + 99)).events == ()
    deploys = [(line.by, line.subject) for line in await state.audit() if line.what == "deploy"]
    assert deploys == [("eve", "deployed 1.4")]


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"before": {"all": True}}, "Purged everything: 6,416 tokens"),
        ({"before": {"tenant": "a", "request": True}}, "Purged tenant a: 6,416 tokens"),
        ({"before": {"request": True}}, "Purged one prompt: 6,416 tokens"),
        ({"before": {"older_than": "10m"}, "after": None}, "Purged older_than 10m: 0 tokens"),
    ],
)
def test_a_purge_says_what_went(changes: dict[str, Any], title: str) -> None:
    """The title has the filter and the sum over all tenants."""
    happening = told(msgspec.structs.replace(PURGE, **changes))
    assert happening is not None
    assert happening.title == title


def test_what_is_no_mark_is_left_out() -> None:
    """A line that the timeline has no word for is none of its events."""
    assert told(Entry(by="x", at=AT, what="something.else", subject="")) is None


async def test_many_happenings_are_cut_to_the_latest(state: SqliteStore) -> None:
    """More than an answer takes leaves the oldest out, and says so."""
    timeline = Timeline(state, Hub(Views()), now=lambda: AT)
    for number in range(MOST + 100):
        await state.record(Entry(by="x", at=AT + number, what="deploy", subject=str(number)))
    span = await timeline.between(AT, AT + 10_000)
    assert (len(span.events), span.events[-1].title, span.cut) == (MOST, str(MOST + 99), True)
    assert ((await timeline.between(AT, AT + 50)).events[0].title, (await timeline.between(AT, AT + 50)).cut) == (
        "0",
        False,
    )


async def test_what_another_gateway_did_is_told_once(state: SqliteStore) -> None:
    """A look tells what was added to the audit trail since the last one, oldest first, and not what stood before."""
    hub = Hub(Views())
    timeline = Timeline(state, hub, now=lambda: AT)
    await state.record(Entry(by="x", at=AT, what="deploy", subject="before"))
    await timeline.look(quietly=True)
    with hub.listen() as listener:
        for title in ("one", "two"):
            await state.record(Entry(by="x", at=AT, what="deploy", subject=title))
        await timeline.look()
        await timeline.look()
        await timeline.mark("three", by="x")
        assert [data["title"] for _, data in await heard(listener, 3)] == ["one", "two", "three"]


async def test_a_mark_that_cannot_be_kept_is_no_mark(state: SqliteStore) -> None:
    """Without the audit trail a mark is refused, and a look says nothing."""
    timeline = Timeline(state, Hub(Views()), now=lambda: AT)
    await state.close()
    with pytest.raises(StoreUnavailable):
        await timeline.mark("deployed", by="x")
    await timeline.look(quietly=True)
