"""Live events and marks on the time axis at the operators' API, over a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from structlog.testing import capture_logs

from gateway.keys import LIVE, TIMELINE
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.scripted import MODEL
from tests.gateway.test_admin import refusal, said
from tests.gateway.test_operator_cli import refused, run


@contextlib.asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[ClientResponse]:
    """An open stream of events, past its greeting."""
    async with gateway.admin.get("/admin/v1/live") as stream:
        assert (stream.status, stream.content_type) == (200, "text/event-stream")
        yield stream


async def upto(stream: ClientResponse, kind: str) -> dict[str, Any]:
    """The data of the next event of a kind."""
    while line := (await stream.content.readline()).decode():
        if line == f"event: {kind}\n":
            data: dict[str, Any] = json.loads((await stream.content.readline()).decode().removeprefix("data: "))
            return data
    raise AssertionError("the stream ended")


async def test_two_listeners_hear_state_requests_and_changes(gateway: Gateway) -> None:
    """Both are told at once how things are, then of a request as it is remembered, then of what an operator changed."""
    async with listening(gateway) as one, listening(gateway) as other:
        for stream in (one, other):
            state = await upto(stream, "state")
            assert (state["ready"], state["restarts"], state["state"]) == (True, 0, "ok")
            assert (state["engine"]["steps_total"], state["detail"]) == (3, "The engine is ready.")
        await gateway.chat()
        _, body = await said(gateway, "GET", "requests")
        for stream in (one, other):
            assert await upto(stream, "request") == body["requests"][0]
        await said(gateway, "PUT", "policies/default", json={"default_ttl": "1h", "version": 0})
        gateway.backend.die()
        for stream in (one, other):
            told = [await upto(stream, "change"), await upto(stream, "change")]
            assert {(change["kind"], change["subject"]) for change in told} == {
                ("policy", "default"),
                ("restart", MODEL),
            }


async def test_a_state_without_an_engine_has_null_for_its_numbers(gateway: Gateway) -> None:
    """What the engine does not say is not 0."""
    gateway.backend.card = gateway.backend.reading = None
    async with listening(gateway) as stream:
        state = await upto(stream, "state")
    assert (state["engine"], state["ready"], state["detail"]) == (None, False, "The engine is starting.")


async def test_who_left_is_not_told_any_more(gateway: Gateway) -> None:
    """When the client hangs up its queue goes, at the next event at the latest, and a later one starts afresh."""
    hub = gateway.admin.app[LIVE]
    async with listening(gateway) as stream:
        await upto(stream, "state")
        assert hub.heard
    while hub.heard:
        hub.publish("state", dict)
        await asyncio.sleep(0)
    async with listening(gateway) as stream:
        await upto(stream, "state")
        await gateway.chat()
        assert (await upto(stream, "request"))["tenant"] == "default"


async def test_a_gateway_that_stops_ends_its_streams(start_gateway: StartGateway) -> None:
    """An open stream ends whole when the gateway is closed, which does not wait for the client."""
    gateway = await start_gateway()
    async with listening(gateway) as stream:
        await upto(stream, "state")
        async with asyncio.timeout(5):
            await gateway.admin.server.close()
            rest = await stream.content.read()
    assert rest == b"\n"  # which ends the state
    assert not gateway.house.hub.heard


async def test_a_stream_has_no_head_and_no_fields(gateway: Gateway) -> None:
    """HEAD, which would never end, is not allowed, and a field is refused."""
    assert (await gateway.admin.head("/admin/v1/live")).status == 405
    assert (await refusal(gateway, "GET", "live?tenant=a"))[:2] == (400, "tenant")


# ---- what happened ----


async def test_a_mark_is_audited_and_stands_among_the_events(gateway: Gateway) -> None:
    """A deploy mark comes back from the events of the last hour, after the start, and from the audit trail."""
    status, mark = await said(gateway, "POST", "events", json={"title": "  deployed 1.4 "})
    assert (status, mark["kind"], mark["title"], mark["subject"]) == (200, "deploy", "deployed 1.4", "")
    _, told = await said(gateway, "GET", "events")
    assert [(one["kind"], one["title"]) for one in told["events"]] == [
        ("start", "The gateway started"),
        ("deploy", "deployed 1.4"),
    ]
    assert (told["events"][1], told["cut"]) == (mark, False)
    _, audit = await said(gateway, "GET", "audit")
    assert [(line["what"], line["subject"], line["by"]) for line in audit["lines"]] == [
        ("deploy", "deployed 1.4", "admin")
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "title"),
        ({"title": ""}, "title"),
        ({"title": "   "}, "title"),
        ({"title": "a\nb"}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"title": 4}, "title"),
        ({"titel": "x"}, "titel"),
        ({"title": "x", "at": 5}, "at"),
    ],
)
async def test_wrong_marks_are_refused(gateway: Gateway, body: dict[str, Any], field: str) -> None:
    """A mark is one line of text and nothing else."""
    assert (await refusal(gateway, "POST", "events", json=body))[:2] == (400, field)
    assert (await said(gateway, "GET", "audit"))[1]["lines"] == []


@pytest.mark.parametrize(
    ("query", "field"), [("?from=soon", "from"), ("?tenant=a", "tenant"), ("?from=9&to=1", "from")]
)
async def test_wrong_ranges_are_refused(gateway: Gateway, query: str, field: str) -> None:
    """Events have a range and no filter."""
    assert (await refusal(gateway, "GET", f"events{query}"))[:2] == (400, field)


async def test_marks_outlive_the_gateway(start_gateway: StartGateway, tmp_path: Path) -> None:
    """On the same file a new gateway shows the old one's policy change, purge and deploy, and one start: its own."""
    file = tmp_path / "state.sqlite"
    first = await start_gateway(state=await SqliteStore.open(file))
    await said(first, "PUT", "policies/default", json={"default_ttl": "1h", "version": 0})
    await said(first, "POST", "purge", json={"all": True})
    await said(first, "POST", "events", json={"title": "deployed 1.4"})
    await first.serving.close()
    second = await start_gateway(state=await SqliteStore.open(file))
    _, told = await said(second, "GET", "events?from=-1h")
    assert [one["kind"] for one in told["events"]] == ["policy", "purge", "deploy", "start"]
    assert [one["title"] for one in told["events"][1:3]] == ["Purged everything: 0 tokens", "deployed 1.4"]


async def test_without_an_audit_trail_there_are_no_events(gateway: Gateway) -> None:
    """A store that is away is 503, not an empty list."""
    await gateway.house.policies.state.close()
    assert (await said(gateway, "GET", "events"))[0] == 503
    assert (await said(gateway, "POST", "events", json={"title": "x"}))[0] == 503


async def test_keepwarm_mark(gateway: Gateway) -> None:
    """The command writes a mark and shows it, as a table or as the API's answer."""
    with capture_logs():
        shown = await run(gateway, "mark", "deployed 1.4")
        assert (shown.code, "deployed 1.4" in shown.out, "deploy" in shown.out) == (0, True, True)
        assert (await run(gateway, "mark", "again", "--json")).json["title"] == "again"
        assert "title" in refused(await run(gateway, "mark", " "))
    span = await gateway.admin.app[TIMELINE].between(0, float("inf"))
    assert [one.title for one in span.events] == ["The gateway started", "deployed 1.4", "again"]
