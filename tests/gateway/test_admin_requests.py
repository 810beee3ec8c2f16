"""Recent requests, live events, marks and words at the operators' API, over a scripted engine."""

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

from gateway.keyring import Keyring
from gateway.keys import LIVE, RECALL, TIMELINE
from gateway.miss import REASONS
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.records import AT, facts, missed, record
from tests.gateway.scripted import MODEL
from tests.gateway.test_admin import refusal, said
from tests.gateway.test_auth import BLUE, RED, key
from tests.gateway.test_operator_cli import refused, run

SEEN = [
    record(id="a", at=AT, tenant="red", key="k1", api="chat"),
    record(id="b", at=AT + 1, tenant="red", key="k2", api="messages", outcome="failed", status=503),
    record(id="c", at=AT + 2, tenant="blue", key=None, model="other", prompt=facts(misses=(missed("expired", 6),))),
    record(id="d", at=AT + 3, tenant="blue", key=None, upstream="far", prompt=None, outcome="refused", status=400),
]


async def ids(gateway: Gateway, query: str = "") -> list[str]:
    """Ids of the requests that are shown."""
    status, body = await said(gateway, "GET", f"requests{query}")
    assert status == 200
    return [shown["id"] for shown in body["requests"]]


@pytest.fixture
async def seen(gateway: Gateway) -> Gateway:
    """A gateway that remembers four requests."""
    for one in SEEN:
        gateway.house.recent.ended(one, b"")
    return gateway


async def test_before_the_first_request_there_is_none(gateway: Gateway) -> None:
    """Nothing remembered is an empty list, of nothing, since never."""
    assert await said(gateway, "GET", "requests") == (200, {"requests": [], "next": None, "kept": 0, "since": None})


async def test_an_answer_is_remembered_as_it_was_told(gateway: Gateway) -> None:
    """What a client was told of its usage is what the operator is shown, in the list and alone."""
    told = await (await gateway.chat()).json()
    _, body = await said(gateway, "GET", "requests")
    shown = body["requests"][0]
    assert (shown["id"], shown["tenant"], shown["model"], shown["api"]) == (told["id"], "default", MODEL, "chat")
    assert (shown["outcome"], shown["status"], shown["streamed"], shown["key"]) == ("finished", 200, False, None)
    assert (shown["prompt"], shown["output"]) == (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"])
    assert sum(part["tokens"] for part in shown["strip"]) == shown["prompt"]
    assert [miss["reason"] for miss in shown["misses"]] == [miss["reason"] for miss in told["keepwarm"]["miss"]]
    assert await said(gateway, "GET", f"requests/{told['id']}") == (200, shown)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["d", "c", "b", "a"]),
        ("?tenant=red", ["b", "a"]),
        ("?tenant=nobody", []),
        ("?key=k1", ["a"]),
        ("?model=other", ["c"]),
        ("?api=messages", ["b"]),
        ("?upstream=far", ["d"]),
        ("?outcome=refused", ["d"]),
        ("?reason=expired", ["c"]),
        ("?reason=never_written", ["b", "a"]),
        ("?tenant=red&outcome=failed", ["b"]),
        (f"?from={AT + 1}&to={AT + 3}", ["c", "b"]),
        (f"?to={AT + 1}", ["a"]),
        ("?from=2026-09-21T14:13:21Z&to=2026-09-21T14:13:22", ["b"]),
        ("?from=-1s", []),
    ],
)
async def test_filters(seen: Gateway, query: str, found: list[str]) -> None:
    """Every given filter must match exactly."""
    assert await ids(seen, query) == found


@pytest.mark.parametrize(
    ("query", "field", "allowed"),
    [
        ("?tenent=red", "tenent", "tenant"),
        ("?api=grpc", "api", "chat, completions, responses, messages"),
        ("?outcome=won", "outcome", "finished, failed, refused, cancelled"),
        ("?reason=luck", "reason", "never_written"),
        ("?limit=0", "limit", ""),
        ("?limit=1001", "limit", ""),
        ("?limit=many", "limit", ""),
        ("?from=yesterday", "from", "ISO 8601"),
        ("?to=-1", "to", "-1h"),
        ("?from=1e400", "from", "seconds"),
        ("?from=nan", "from", "seconds"),
        ("?from=9999-99-99", "from", "seconds"),
        ("?from=20&to=10", "from", "a time before to"),
        ("?before=x", "before", "`next`"),
        ("?before=00000000-1", "before", "`next`"),
    ],
)
async def test_wrong_queries_name_their_field(seen: Gateway, query: str, field: str, allowed: str) -> None:
    """What cannot be asked is 400 with the field and, where that can be said, what would do."""
    status, body = await said(seen, "GET", f"requests{query}")
    assert (status, body["error"]["field"]) == (400, field)
    assert allowed in (body["error"]["allowed"] or "")


async def test_pages_follow_one_another(seen: Gateway) -> None:
    """`next` leads on, keeps to the filter, and is null at the end."""
    _, first = await said(seen, "GET", "requests?limit=1&tenant=red")
    _, second = await said(seen, "GET", f"requests?limit=1&tenant=red&before={first['next']}")
    assert [one["id"] for one in (*first["requests"], *second["requests"])] == ["b", "a"]
    assert (second["next"], second["kept"], second["since"]) == (None, 4, AT)


async def test_what_is_no_longer_remembered_is_404(start_gateway: StartGateway) -> None:
    """The setting bounds the ring; what went is said to be gone."""
    gateway = await start_gateway(recent_requests=3)
    for one in SEEN:
        gateway.house.recent.ended(one, b"")
    assert (await refusal(gateway, "GET", "requests/a"))[:2] == (404, "id")
    assert (await said(gateway, "GET", "requests/b"))[0] == 200
    assert await ids(gateway) == ["d", "c", "b"]


async def test_each_prompt_of_a_completion_names_its_own_place(gateway: Gateway) -> None:
    """Where one of two prompts parts from an earlier request, the place has its number; a single one is `prompt`."""
    rules = "Answer in one word, and never in two. " * 10
    for prompt in (rules, [rules + "red", "Now " + rules], rules + "blue"):
        body = {"model": MODEL, "max_tokens": 1, "prompt_cache_key": "raw", "prompt": prompt}
        await gateway.serving.post("/v1/completions", json=body)
    _, answer = await said(gateway, "GET", "requests?limit=3")
    places = [
        {miss["where"]["message"] for miss in shown["misses"] if miss["where"] is not None}
        for shown in answer["requests"]
    ]
    assert places == [{"prompt"}, {"prompt[1]"}, {"prompt[0]"}]


# ---- live ----


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


# ---- about, and forgetting ----


async def test_about_has_the_words_that_answers_use(start_gateway: StartGateway) -> None:
    """Model, card, tenants, keys by their ids and every word that a filter may be."""
    ring = Keyring((key("red", RED, "team-a"), key("blue", BLUE, "team-b")))
    gateway = await start_gateway(keyring=ring)
    _, about = await said(gateway, "GET", "about")
    assert about.pop("started_at") == gateway.house.timeline.started_at
    assert about.pop("version") != ""
    assert about.pop("classes")[0] == {"class": "5m", "ttl_s": 300.0}
    assert about == {
        "model": MODEL,
        "detail": "The engine is ready.",
        "card": {
            "max_model_len": 2048,
            "block_tokens": 16,
            "blocks": 1024,
            "kv_bytes": 1 << 20,
            "kv_bytes_per_token": 64,
            "dtype": "float32",
            "device": "cpu",
        },
        "tenants": ["team-a", "team-b"],
        "keys": ["blue", "red"],
        "models": [MODEL],
        "upstreams": ["scripted"],
        "apis": ["chat", "completions", "responses", "messages"],
        "reasons": list(REASONS),
        "currency": None,
    }
    assert RED not in json.dumps(about)


async def test_about_without_engine_and_keys(gateway: Gateway) -> None:
    """No engine is no card, and without keys everybody is `default`."""
    gateway.backend.card = None
    _, about = await said(gateway, "GET", "about")
    assert (about["card"], about["tenants"], about["keys"]) == (None, ["default"], [])


@pytest.mark.parametrize(
    ("body", "forgotten"),
    [
        ({"tenant": "default"}, True),
        ({"all": True}, True),
        ({"tenant": "default", "dry_run": True}, False),
        ({"tenant": "other"}, False),
        ({"tenant": "default", "class": "5m"}, False),
        ({"older_than": "10m"}, False),
    ],
)
async def test_a_purge_of_a_tenant_forgets_its_fingerprints(
    start_gateway: StartGateway, body: dict[str, Any], forgotten: bool
) -> None:
    """After a purge of all that a tenant has, nothing is left to compare with, here or for a gateway beside it."""
    state = await SqliteStore.open(":memory:")
    one, other = [await start_gateway(state=state, secret=b"one for both") for _ in range(2)]
    rules = {"role": "system", "content": "Answer in one word. " * 20}
    await one.chat(messages=[rules, {"role": "user", "content": "hello"}])
    recall = one.admin.app[RECALL]
    await recall.flush()
    assert (await said(one, "POST", "purge", json=body))[0] == 200
    assert recall.tenants == (() if forgotten else ("default",))
    for gateway in (other, one):
        answer = await gateway.chat(messages=[rules, {"role": "user", "content": "good bye"}])
        reasons = {miss["reason"] for miss in (await answer.json())["keepwarm"]["miss"]}
        assert ("messages" not in reasons) == forgotten
        await gateway.house.recall.forget("default")


async def test_a_purge_that_the_shared_state_missed_is_still_done_here(gateway: Gateway) -> None:
    """Fingerprints go from memory when the store does not answer, and the log says that it did not."""
    await gateway.chat()
    await gateway.house.policies.state.close()
    with capture_logs() as logs:
        assert (await said(gateway, "POST", "purge", json={"tenant": "default"}))[1]["audited"] is False
    assert gateway.house.recall.tenants == ()
    assert [line["tenant"] for line in logs if line["event"] == "fingerprints_forgotten_here_only"] == ["default"]
