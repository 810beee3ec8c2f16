"""Retention and the tree at the operators' API, and how long anything there waits for the engine."""

from __future__ import annotations

from typing import Any

import pytest

from engine.operator_messages import SPANS_S, EngineStats, Histo, RetentionView, Tree, TreeNode
from gateway import patience
from gateway.admin import views
from prefix_store.classes import RetentionClasses
from tests.gateway.conftest import Gateway
from tests.gateway.scripted import CARD, MODEL
from tests.gateway.test_admin import ACME, refusal, said, trail

EDGES = list(SPANS_S)
NONE = (0,) * (len(EDGES) + 1)
SOME = (1, 2) + (0,) * (len(EDGES) - 2) + (3,)


def node(name: str, parent: str | None, **rest: Any) -> TreeNode:
    """A node of sixteen tokens."""
    given: dict[str, Any] = {"start": 0, "tokens": 16, "subtree_tokens": 16, "tenant": "acme", "model": MODEL}
    given |= {"klass": "5m", "kept": "held", "left_s": 12.34567, "idle_s": 1.0, "age_s": 3.0, "reads": 2, "leases": 1}
    return TreeNode(id=name, parent=parent, **given | rest)


async def test_retention_has_every_class_and_every_cause(gateway: Gateway) -> None:
    """Configured classes stand there with zeros, seen ones with what they hold, and each number is the engine's."""
    gateway.backend.view = RetentionView(seq=1, ages={"5m": SOME, "1h": NONE}, deadlines={"5m": NONE})
    gateway.backend.reading = EngineStats(
        blocks_free=1000,
        blocks_cached=20,
        blocks_held=4,
        blocks_promised=6,
        blocks_expired_total=7,
        blocks_policy_changed_total=2,
        blocks_evicted_total=8,
        purged_total=9,
        entries_by={"5m|held": 3, "1h|promised": 1, "gold|promised": 2},
        tokens_by={"5m|held": 48, "1h|promised": 16, "gold|promised": 32},
        broken_promises={"1h|acme|inc": 4, "1h|zeta": 1},
        reuse_gap=Histo(counts=SOME, sum=9.5),
    )
    status, body = await said(gateway, "GET", "retention")
    none = {"entries": 0, "tokens": 0, "bytes": 0}
    assert status == 200
    assert body["classes"] == [
        {"class": "5m", "ttl_s": 300.0, "promised": none, "held": {"entries": 3, "tokens": 48, "bytes": 48 * 64}},
        {"class": "30m", "ttl_s": 1800.0, "promised": none, "held": none},
        {"class": "1h", "ttl_s": 3600.0, "promised": {"entries": 1, "tokens": 16, "bytes": 16 * 64}, "held": none},
        {"class": "12h", "ttl_s": 43_200.0, "promised": none, "held": none},
        {"class": "24h", "ttl_s": 86_400.0, "promised": none, "held": none},
        {"class": "gold", "ttl_s": None, "promised": {"entries": 2, "tokens": 32, "bytes": 32 * 64}, "held": none},
    ]
    assert body["ages"] == {"edges_s": EDGES, "tokens": {"1h": list(NONE), "5m": list(SOME)}}
    assert body["deadlines"] == {"edges_s": EDGES, "tokens": {"5m": list(NONE)}}
    assert body["reuse_gap"] == {"edges_s": EDGES, "blocks": list(SOME)}
    assert {tuple(body[name]["blocks"]) for name in ("lifetime", "idle_before_evict", "age_at_read")} == {NONE}
    assert (body["evictions"], body["policy_changed"]) == ({"expired": 7, "evicted": 8, "purged": 9}, 2)
    assert body["broken"] == [
        {"class": "1h", "tenant": "acme|inc", "blocks": 4},
        {"class": "1h", "tenant": "zeta", "blocks": 1},
    ]
    assert body["capacity"] == {
        "blocks": CARD.blocks,
        "free": 1000,
        "cached": 20,
        "held": 4,
        "promised": 6,
        "kv_bytes": CARD.kv_bytes,
        "kv_bytes_per_token": 64,
        "kv_dtype": "float32",
        "block_tokens": 16,
    }


def test_a_length_without_a_name_is_still_a_class() -> None:
    """Entries under a plain duration stand among the named ones, by their length."""
    stats = EngineStats(entries_by={"7m|held": 1}, tokens_by={"7m|held": 16})
    shown = views.retention(RetentionView(seq=0), stats, CARD, RetentionClasses.named({"gold": "6m"}))
    told = [(line["class"], line["ttl_s"]) for line in shown["classes"]]
    assert told[:4] == [("5m", 300.0), ("gold", 360.0), ("7m", 420.0), ("30m", 1800.0)]


async def test_the_tree_is_shown_as_it_came(gateway: Gateway) -> None:
    """Nodes keep their order and their numbers, the class under that name, and the query reaches the engine."""
    gateway.backend.tree_shown = Tree(seq=1, total=9, nodes=(node("ab", None, subtree_tokens=32), node("cd", "ab")))
    status, body = await said(gateway, "GET", "tree?limit=2&tenant=acme")
    assert (status, body["total"], [shown["id"] for shown in body["nodes"]]) == (200, 9, ["ab", "cd"])
    assert body["nodes"][1] == {
        "id": "cd",
        "parent": "ab",
        "start": 0,
        "tokens": 16,
        "subtree_tokens": 16,
        "tenant": "acme",
        "model": MODEL,
        "class": "5m",
        "kept": "held",
        "left_s": 12.346,
        "idle_s": 1.0,
        "age_s": 3.0,
        "reads": 2,
        "leases": 1,
    }
    await said(gateway, "GET", "tree")
    assert gateway.backend.trees == [{"limit": 2, "tenant": "acme"}, {"limit": 2000, "tenant": None}]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("tree?limit=0", "limit"),
        ("tree?limit=5001", "limit"),
        ("tree?limit=all", "limit"),
        ("tree?tennant=a", "tennant"),
        ("retention?tenant=a", "tenant"),
    ],
)
async def test_wrong_query_is_400_with_its_field(gateway: Gateway, path: str, field: str) -> None:
    """What cannot be shown is refused by the name of the wrong part, and the engine is not asked."""
    assert (await refusal(gateway, "GET", path))[:2] == (400, field)
    assert gateway.backend.trees == []


@pytest.mark.parametrize("path", ["tree", "retention"])
async def test_engine_that_is_away_is_503(gateway: Gateway, path: str) -> None:
    """Without an engine there is nothing to show, and nothing is pretended."""
    gateway.backend.card = gateway.backend.reading = None
    answer = await gateway.admin.get(f"/admin/v1/{path}")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert (await answer.json())["error"]["message"] == "The engine is starting."


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits."""
    monkeypatch.setattr(patience, "LOOK_S", 0.0)
    monkeypatch.setattr(patience, "CHANGE_S", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "tree", None),
        ("GET", "retention", None),
        ("GET", "entries", None),
        ("GET", "stats", None),
        ("POST", "policies/preview", ACME),
        ("POST", "purge", {"all": True, "dry_run": True}),
    ],
)
async def test_engine_that_is_silent_is_503_in_time(gateway: Gateway, method: str, path: str, body: Any) -> None:
    """An engine that does not answer holds up no operator for ever, and a look leaves no trace."""
    gateway.backend.silent = True
    answer = await gateway.admin.request(method, f"/admin/v1/{path}", json=body)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert (await answer.json())["error"]["message"] == "The engine has given no answer within 0 s. Ask again."
    assert await trail(gateway) == []


@pytest.mark.usefixtures("impatient")
async def test_policy_that_the_engine_has_not_heard_of_is_stored_and_said_so(gateway: Gateway) -> None:
    """The change stands and is audited; the answer is no success, and says what is so."""
    gateway.backend.silent = True
    status, _, message = await refusal(gateway, "PUT", "policies/acme", json=ACME)
    assert (status, message.partition(". ")[2]) == (503, "The change is stored; the engine will hear of it.")
    assert (await said(gateway, "GET", "policies/acme"))[1]["version"] == 1
    assert (await refusal(gateway, "DELETE", "policies/acme?version=1"))[0] == 503
    assert (await said(gateway, "GET", "policies/acme"))[0] == 404
    assert [line["what"] for line in await trail(gateway)] == ["policy.delete", "policy.put"]


@pytest.mark.usefixtures("impatient")
async def test_purge_that_was_not_confirmed_is_audited_as_that(gateway: Gateway) -> None:
    """It may still be done, so the trail has it, without counts that nobody knows."""
    gateway.backend.silent = True
    status, _, message = await refusal(gateway, "POST", "purge", json={"tenant": "acme"})
    assert (status, message.partition(". ")[2]) == (503, "It may still be purged.")
    (line,) = await trail(gateway)
    assert (line["what"], line["subject"], line["after"]) == ("purge", "acme", {"confirmed": False})
