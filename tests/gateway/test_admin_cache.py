"""What operators see and forget of a running cache, over a real store in memory and a scripted engine."""

from __future__ import annotations

from typing import Any

import pytest

from engine.operator_messages import Entries, EntryView
from gateway.keys import POLICIES
from prefix_store.store import Entry, StoreUnavailable
from tests.gateway.conftest import Gateway
from tests.gateway.scripted import MODEL
from tests.gateway.test_admin import ACME, CHANGED, refusal, said, trail

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "secret words"}], "prompt_cache_key": "k"}


async def test_purge_by_filters(gateway: Gateway) -> None:
    """Every filter reaches the engine in its own terms, and the counts are the engine's."""
    gateway.backend.changed = CHANGED
    body = {"tenant": "acme", "model": MODEL, "class": "60m", "older_than": "10m"}
    status, answer = await said(gateway, "POST", "purge", json=body)
    assert gateway.backend.purged == [
        {"tenant": "acme", "model": MODEL, "klass": "1h", "older_than_s": 600.0, "preview": False}
    ]
    assert (status, answer["audited"], answer["dry_run"], answer["leased_tokens"]) == (200, True, False, 16)
    assert answer["tenants"]["acme"]["purged"] == {"entries": 2, "tokens": 64, "bytes": 4096}


async def test_purge_is_audited_and_a_dry_run_is_not(gateway: Gateway) -> None:
    """The trail has who purged what and the true counts; looking leaves no trace."""
    gateway.backend.changed = CHANGED
    _, looked = await said(gateway, "POST", "purge", json={"tenant": "acme", "dry_run": True})
    assert (looked["audited"], await trail(gateway), gateway.backend.purged[0]["preview"]) == (False, [], True)
    _, answer = await said(gateway, "POST", "purge", json={"tenant": "acme"})
    (line,) = await trail(gateway)
    assert (line["what"], line["by"], line["subject"], line["before"]) == ("purge", "admin", "acme", {"tenant": "acme"})
    assert line["after"] == {"tenants": answer["tenants"]}


async def test_purge_by_request_means_its_rendered_prompt(gateway: Gateway) -> None:
    """The prefix is what the same body would be sent with, and its text comes back nowhere."""
    await (await gateway.chat(**CHAT)).read()
    (sent,) = gateway.backend.submitted
    answer = await gateway.admin.post("/admin/v1/purge", json={"request": CHAT})
    assert answer.status == 200
    assert gateway.backend.purged == [
        {
            "tenant": "default",
            "model": None,
            "preview": False,
            "prefix": sent.tokens,
            "partition": sent.partition,
            "rendering": sent.rendering,
        }
    ]
    assert "secret" not in await answer.text() + str(await trail(gateway))
    assert (await trail(gateway))[0]["before"] == {"request": True}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, None),
        ({"dry_run": True}, None),
        ({"all": False, "tenant": None}, None),
        ({"all": True, "tenant": "acme"}, "all"),
        ({"tenent": "acme"}, "tenent"),
        ({"tenant": 7}, "tenant"),
        ({"class": "forever"}, "class"),
        ({"older_than": "0s"}, "older_than"),
        ({"older_than": "soon"}, "older_than"),
        ({"request": "hello"}, "request"),
        ({"request": {}}, "request.model"),
        ({"request": CHAT | {"model": "other"}}, "request.model"),
        ({"request": CHAT | {"messages": [{"role": "wizard"}]}}, "request.messages[0].role"),
    ],
)
async def test_wrong_purge_is_400_and_purges_nothing(gateway: Gateway, body: dict[str, Any], field: str | None) -> None:
    """A filter that is empty, misspelt or senseless is refused by its field before anything is forgotten."""
    assert (await refusal(gateway, "POST", "purge", json=body))[:2] == (400, field)
    assert (gateway.backend.purged, await trail(gateway)) == ([], [])


async def test_misspelt_filter_gets_the_nearest_name(gateway: Gateway) -> None:
    """A filter that would go unread is named, with what was probably meant."""
    assert "did you mean 'tenant'?" in (await refusal(gateway, "POST", "purge", json={"tenent": "a"}))[2]


async def test_purge_of_everything_is_said_outright(gateway: Gateway) -> None:
    """`all` reaches the engine as no filter."""
    assert (await said(gateway, "POST", "purge", json={"all": True}))[0] == 200
    assert gateway.backend.purged == [{"tenant": None, "model": None, "preview": False}]


async def test_purge_that_the_trail_missed_keeps_its_counts(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails after the purge does not take the counts away; the answer says it is not audited."""

    async def fail(_: Entry) -> None:
        raise StoreUnavailable("no room")

    gateway.backend.changed = CHANGED
    monkeypatch.setattr(gateway.admin.app[POLICIES].state, "record", fail)
    status, answer = await said(gateway, "POST", "purge", json={"tenant": "acme"})
    assert (status, answer["audited"], answer["tenants"]["acme"]["purged"]["tokens"]) == (200, False, 64)


async def test_entries_are_shown_a_page_at_a_time(gateway: Gateway) -> None:
    """An entry shows its numbers, its class under that name, and no ids of tokens."""
    gateway.backend.page = Entries(
        seq=1,
        total=9,
        entries=(
            EntryView(
                id="ab",
                tenant="acme",
                model=MODEL,
                tokens=48,
                own_tokens=16,
                klass="5m",
                kept="promised",
                left_s=12.34567,
                age_s=3.0,
                idle_s=1.0,
                reads=2,
                leases=1,
            ),
        ),
    )
    status, body = await said(gateway, "GET", "entries?offset=3&limit=1&tenant=null")
    assert (status, body["total"], body["offset"]) == (200, 9, 3)
    assert body["entries"] == [
        {
            "id": "ab",
            "tenant": "acme",
            "model": MODEL,
            "tokens": 48,
            "own_tokens": 16,
            "class": "5m",
            "kept": "promised",
            "left_s": 12.346,
            "age_s": 3.0,
            "idle_s": 1.0,
            "reads": 2,
            "leases": 1,
        }
    ]
    assert gateway.backend.pages == [{"offset": 3, "limit": 1, "tenant": "null"}]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("entries?limit=0", "limit"),
        ("entries?limit=1001", "limit"),
        ("entries?offset=-1", "offset"),
        ("entries?offset=" + "9" * 30, "offset"),
        ("entries?tennant=a", "tennant"),
        ("audit?limit=many", "limit"),
        ("audit?tenant=a", "tenant"),
    ],
)
async def test_wrong_query_is_400_with_its_field(gateway: Gateway, path: str, field: str) -> None:
    """A page that cannot be shown is refused by the name of the wrong part."""
    assert (await refusal(gateway, "GET", path))[:2] == (400, field)


async def test_stats_have_engine_and_state(gateway: Gateway) -> None:
    """The engine's snapshot and how the store fares stand side by side."""
    status, body = await said(gateway, "GET", "stats")
    assert (status, body["engine"]["steps_total"], body["engine"]["blocks_free"]) == (200, 3, 7)
    assert body["state"] == {"degraded": None, "policies": 1}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "policies/preview", ACME),
        ("POST", "purge", {"all": True}),
        ("POST", "purge", {"request": CHAT}),
        ("GET", "entries", None),
        ("GET", "stats", None),
    ],
)
async def test_engine_that_is_away_is_503(gateway: Gateway, method: str, path: str, body: Any) -> None:
    """What only the engine knows cannot be answered without it, and nothing is pretended or audited."""
    gateway.backend.card = gateway.backend.reading = None
    answer = await gateway.admin.request(method, f"/admin/v1/{path}", json=body)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert (await answer.json())["error"]["message"] == "The engine is starting."
    assert await trail(gateway) == []
