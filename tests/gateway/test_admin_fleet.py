"""What routing promised and upstreams delivered, in the ledger and as operators read it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from gateway.admin.view import view
from gateway.record import Record
from gateway.usage import Written
from tests.gateway.conftest import Gateway
from tests.gateway.records import facts
from tests.gateway.relayed import relayed
from tests.gateway.test_admin_usage import ask


def tell(gateway: Gateway, *records: Record) -> None:
    """Tell the ledger of exchanges."""
    for one in records:
        gateway.house.ledger.ended(one, b"")


async def asked(gateway: Gateway, **query: str) -> tuple[int, Any]:
    """Status and body of GET /admin/v1/fleet."""
    async with gateway.admin.get("/admin/v1/fleet", params=query) as answer:
        return answer.status, await answer.json()


def now(*args: Any, **fields: Any) -> Record:
    """A relayed answer of this moment."""
    return relayed(*args, at=time.time(), **fields)


def made() -> list[Record]:
    """Answers of two upstreams; one of `b` did not say what it read, and one broke off before it said anything."""
    silent = {"read": None, "upstream": "b", "why": "chance"}
    return [
        now(read=60),
        now(prompt=200, read=0, why="load", available=150, captured=0),
        now(prompt=300, read=250, upstream="b", available=200, captured=200),
        now(**silent),
        now(**silent, outcome="failed", status=502),
    ]


async def test_the_fleet_is_the_sum_of_its_records(gateway: Gateway) -> None:
    """Requests, tokens, losses and decisions by upstream, which add up to the total."""
    tell(gateway, *made())
    status, answer = await asked(gateway)
    total = {"prompt_tokens": 600, "available": 430, "captured": 270, "delivered": 310}
    assert (status, answer["data"]) == (200, True)
    assert answer["total"] == {"requests": 5, **total, "unreported_requests": 2}
    assert answer["why"] == {"chance": 2, "load": 1, "prefix": 2}
    assert answer["replicas"] == [
        {
            "name": "a",
            "requests": 2,
            "prompt_tokens": 300,
            "available": 230,
            "captured": 70,
            "delivered": 60,
            "unreported_requests": 0,
            "lost_in_routing": 160,
            "lost_at_replica": 10,
        },
        {
            "name": "b",
            "requests": 3,
            "prompt_tokens": 300,
            "available": 200,
            "captured": 200,
            "delivered": 250,
            "unreported_requests": 2,
            "lost_in_routing": 0,
            "lost_at_replica": -50,
        },
    ]
    for field in ("requests", "prompt_tokens", "available", "captured", "delivered", "unreported_requests"):
        assert sum(one[field] for one in answer["replicas"]) == answer["total"][field]


async def test_filters_narrow_the_fleet(gateway: Gateway) -> None:
    """A filter by upstream leaves that upstream alone."""
    tell(gateway, *made())
    _, answer = await asked(gateway, upstream="a", model="large")
    assert ([one["name"] for one in answer["replicas"]], answer["total"]["requests"]) == (["a"], 2)


async def test_what_nobody_said_stays_unsaid(gateway: Gateway) -> None:
    """Where no answer said what was read every token count is null, and the requests are there."""
    tell(gateway, now(read=None))
    _, answer = await asked(gateway)
    unsaid = dict.fromkeys(("prompt_tokens", "available", "captured", "delivered"))
    lost = {"lost_in_routing": None, "lost_at_replica": None}
    assert answer["total"] == {"requests": 1, **unsaid, "unreported_requests": 1}
    assert answer["replicas"] == [{"name": "a", "requests": 1, **unsaid, "unreported_requests": 1, **lost}]


async def test_a_gateway_without_upstreams_has_no_fleet(gateway: Gateway) -> None:
    """Nothing routed is no data, whatever the bundled engine answered."""
    async with gateway.chat() as answer:
        await answer.read()
    _, told = await asked(gateway)
    assert (told["data"], told["replicas"], told["why"], told["total"]["requests"]) == (False, [], {}, 0)


@pytest.mark.parametrize("query", [{"bucket": "1m"}, {"from": "soon"}])
async def test_a_wrong_query_names_its_field(gateway: Gateway, query: dict[str, str]) -> None:
    """What is no filter of this answer, or no value of it, is 400 with the field."""
    status, answer = await asked(gateway, **query)
    assert (status, answer["error"]["field"]) == (400, *query)


async def test_usage_tells_what_was_routed(gateway: Gateway) -> None:
    """Counts of usage have the same sums, and null for what the bundled engine answered."""
    tell(gateway, *made())
    async with gateway.chat() as answer:
        await answer.read()
    told = await ask(gateway, from_="-10m", bucket="none", group_by="upstream")
    by = {group["by"]["upstream"]: group["total"]["routed"] for group in told["groups"]}
    assert by == {
        "a": {"available": 230, "captured": 70, "delivered": 60, "by": {"load": 1, "prefix": 1}},
        "b": {"available": 200, "captured": 200, "delivered": 250, "by": {"chance": 2, "prefix": 1}},
        "scripted": None,
    }


async def test_relayed_usage_is_a_partition(gateway: Gateway) -> None:
    """Read, written, uncached and unknown add up to the prompts, written under no class included; waits are unknown."""
    split = (Written(tokens=10, asked=None, applied="1h"),)
    told = now(prompt=100, read=60)
    written = replace(told, prompt=facts(100, 60, 30, written=split, misses=(), timed=False))
    tell(gateway, told, now(read=None), written)
    total = (await ask(gateway, from_="-10m", bucket="none"))["total"]
    assert total["write_tokens"] == {"1h": 10, "none": 20}
    parts = total["read_tokens"] + 30 + total["uncached_tokens"] + total["unknown_tokens"]
    assert (parts, total["prompt_tokens"], total["unknown_tokens"]) == (300, 300, 100)
    assert (total["queue"], total["prefill"], total["reported"]) == (None, None, 2)
    assert total["read_ratio"]["by_tokens"] == 120 / 200


def test_a_relayed_request_is_shown_with_where_it_went() -> None:
    """The view has what was promised and delivered; what the upstream did not say is null."""
    told = view(relayed(read=None))
    assert told["routed"] == {"why": "prefix", "available": 80, "captured": 70, "delivered": None}
    unknown = ("read", "uncached", "queue_s", "prefill_s", "projections")
    assert [told[name] for name in unknown] == [None] * 5
    assert told["strip"] == [{"kind": "unknown", "tokens": 100, "class": None}]
    assert view(relayed(read=60))["strip"] == [
        {"kind": "read", "tokens": 60, "class": None},
        {"kind": "uncached", "tokens": 40, "class": None},
    ]
