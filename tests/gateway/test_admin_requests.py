"""Recent requests, the words of answers, and forgetting at the operators' API, over a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.keyring import Keyring
from gateway.keys import RECALL
from gateway.miss import REASONS
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.records import AT, facts, missed, record
from tests.gateway.scripted import MODEL
from tests.gateway.test_admin import refusal, said
from tests.gateway.test_auth import BLUE, RED, key

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
            "kv_dtype": "float32",
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
