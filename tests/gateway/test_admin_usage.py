"""GET /admin/v1/usage over a real ledger in memory, and `keepwarm usage`."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import pytest

from engine.operator_messages import EngineStats
from gateway.money import Prices, Rates
from gateway.usage import Written
from prefix_store.ledger import MINUTE, floor
from prefix_store.store import StoreUnavailable
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.records import facts, missed, record
from tests.gateway.test_operator_cli import quiet_gateway, run

__all__ = ["quiet_gateway"]  # a fixture

NOTHING = {
    "requests": 0,
    "hits": 0,
    "outcomes": {"finished": 0, "failed": 0, "refused": 0, "cancelled": 0},
    "prewarms": 0,
    "prompt_tokens": 0,
    "read_tokens": 0,
    "write_tokens": {},
    "uncached_tokens": 0,
    "unknown_tokens": 0,
    "output_tokens": 0,
    "reported": 0,
    "prewarm_tokens": {"read": 0, "write": {}, "uncached": 0},
    "projections": {"done": 0, "without_prefix_cache": 0},
    "missed_tokens": {},
    "missed_requests": {},
    "broken_promises": {},
    "evictions": {"expired": 0, "evicted": 0, "purged": 0},
    "first_token": {"hit": None, "miss": None},
    "seconds": None,
    "queue": None,
    "prefill": None,
    "read_ratio": {"by_tokens": None, "by_requests": None},
    "routed": None,
    "money": None,
}
RATES = Rates(
    model="tiny", currency="USD", input=1.0, read_multiplier=0.1, write_multipliers={"5m": 1.25, "1h": 2.0}, output=4.0
)


async def ask(gateway: Gateway, **query: object) -> dict[str, Any]:
    """The answer to a query that is right."""
    response = await gateway.admin.get("/admin/v1/usage", params={key.rstrip("_"): str(v) for key, v in query.items()})
    assert response.status == 200, await response.text()
    answer: dict[str, Any] = await response.json()
    return answer


async def refusal(gateway: Gateway, query: str) -> dict[str, Any]:
    """What a wrong query is told."""
    response = await gateway.admin.get(f"/admin/v1/usage?{query}")
    assert response.status == 400
    error: dict[str, Any] = (await response.json())["error"]
    return error


def tell(gateway: Gateway, **changes: Any) -> None:
    """Count a request of an hour ago that read 64 of 100 tokens and wrote 20 under 5m and 10 under 1h."""
    written = (Written(tokens=20, asked=None, applied="5m"), Written(tokens=10, asked="1h", applied="1h"))
    prompt = facts(prompt=100, read=64, write=30, written=written, misses=(missed("new", 36),))
    known = {"at": time.time() - 3600, "prompt": prompt, "projected": 38}
    gateway.house.ledger.ended(record(**known | changes), b"\0" * 400)


async def test_a_range_without_data_says_so(gateway: Gateway) -> None:
    """Where nothing was counted `data` is false, ratios and spreads are null, and every bucket is there."""
    answer = await ask(gateway, from_="-10m", bucket="1m")
    assert (answer["data"], answer["total"], answer["groups"], answer["currency"]) == (False, NOTHING, [], None)
    starts = [bucket["start"] for bucket in answer["buckets"]]
    assert starts == list(range(answer["from"], answer["to"], 60)) and len(starts) == 11
    assert all(bucket == {"start": bucket["start"], "total": NOTHING, "groups": []} for bucket in answer["buckets"])


async def test_counts_are_those_of_the_requests(gateway: Gateway) -> None:
    """Every number of the contract, with what has not been flushed yet."""
    tell(gateway)
    tell(gateway, prompt=facts(prompt=50, read=0, write=0, misses=(missed("expired", 50),)), first_token_s=0.2)
    tell(gateway, prewarm=True)
    answer = await ask(gateway, from_="-2h", bucket="none")
    total = answer["total"]
    assert {name: total[name] for name in ("requests", "hits", "prewarms", "reported")} == {
        "requests": 2,
        "hits": 1,
        "prewarms": 1,
        "reported": 2,
    }
    assert (total["prompt_tokens"], total["read_tokens"], total["uncached_tokens"]) == (150, 64, 56)
    assert total["write_tokens"] == {"1h": 10, "5m": 20}
    assert total["prewarm_tokens"] == {"read": 64, "write": {"1h": 10, "5m": 20}, "uncached": 6}
    assert (total["missed_tokens"], total["missed_requests"]) == ({"expired": 50, "new": 36}, {"expired": 1, "new": 1})
    assert total["projections"] == {"done": 76, "without_prefix_cache": 154}
    assert total["read_ratio"] == {"by_tokens": 64 / 150, "by_requests": 0.5}
    assert [total["first_token"][way]["count"] for way in ("hit", "miss")] == [1, 1]
    assert 0.02 / 1.26 <= total["first_token"]["hit"]["p50"] <= 0.02 * 1.26
    assert (answer["bucket_s"], answer["buckets"], total["outcomes"]["finished"]) == (None, [], 2)


async def test_groups_and_buckets_add_up(gateway: Gateway) -> None:
    """Groups come largest first with null for none, and buckets and groups add up to the total."""
    for number, key in enumerate((None, "one", "one", None, "two")):
        tell(gateway, key=key, tenant=f"t{number % 2}", at=time.time() - 600 * number)
    answer = await ask(gateway, from_="-1h", bucket="300", group_by="tenant,key")
    assert [(group["by"], group["total"]["requests"]) for group in answer["groups"]] == [
        ({"tenant": "t0", "key": None}, 1),
        ({"tenant": "t0", "key": "one"}, 1),
        ({"tenant": "t0", "key": "two"}, 1),
        ({"tenant": "t1", "key": None}, 1),
        ({"tenant": "t1", "key": "one"}, 1),
    ]
    assert sum(bucket["total"]["prompt_tokens"] for bucket in answer["buckets"]) == 500
    assert all(
        bucket["total"]["requests"] == sum(group["total"]["requests"] for group in bucket["groups"])
        for bucket in answer["buckets"]
    )


async def test_filters_narrow_and_unknown_values_find_nothing(gateway: Gateway) -> None:
    """A filter keeps what matches it; what the engine does not tell apart is null then, not 0."""
    tell(gateway, tenant="a")
    tell(gateway, tenant="b", api="messages")
    of_a = (await ask(gateway, from_="-2h", tenant="a"))["total"]
    assert (of_a["requests"], of_a["evictions"], of_a["broken_promises"]) == (1, None, {})
    of_api = (await ask(gateway, from_="-2h", api="messages"))["total"]
    assert (of_api["requests"], of_api["broken_promises"]) == (1, None)
    assert (await ask(gateway, from_="-2h", tenant="nobody"))["data"] is False


async def test_evictions_are_in_a_group_of_nobody(gateway: Gateway) -> None:
    """Blocks that went are told of no tenant, and broken promises of theirs."""
    stats = EngineStats(blocks_expired_total=7, purged_total=2, broken_promises={"1h|a": 3})
    gateway.house.ledger.watch(stats, life=9)
    answer = await ask(gateway, from_="-2h", group_by="tenant")
    assert answer["total"]["evictions"] == {"expired": 10 - 3, "evicted": 0, "purged": 2}
    assert {group["by"]["tenant"]: group["total"]["evictions"] for group in answer["groups"]} == {
        None: {"expired": 7, "evicted": 0, "purged": 2},
        "a": None,
    }
    assert answer["total"]["broken_promises"] == {"1h": 3}


async def test_money_is_told_where_there_are_rates(start_gateway: StartGateway) -> None:
    """With rates each total has its net; tokens of models without one are told beside it."""
    gateway = await start_gateway(prices=Prices([RATES]))
    tell(gateway)
    tell(gateway, model="other")
    answer = await ask(gateway, from_="-2h", group_by="model")
    assert answer["currency"] == "USD"
    assert answer["total"]["money"] == {
        "currency": "USD",
        "saved_by_reads": 0.0000576,
        "paid_for_writes": 0.000015,
        "net": 0.0000426,
        "reads_per_written": round(64 / 30, 9),
        "break_even": round(0.000015 / (30 * 0.9e-6), 9),
        "unpriced_tokens": 100,
    }
    assert {group["by"]["model"]: bool(group["total"]["money"]) for group in answer["groups"]} == {
        "tiny": True,
        "other": False,
    }


async def test_csv_reads_back(start_gateway: StartGateway) -> None:
    """Each bucket and group is one line, and the columns add up to the totals of the same answer as JSON."""
    gateway = await start_gateway(prices=Prices([RATES]))
    tell(gateway, tenant='a,"b"')
    tell(gateway, tenant="c", prompt=facts(prompt=7, read=0, write=0, misses=(missed("tools", 7),)), first_token_s=None)
    query = {"from": "-2h", "bucket": "15m", "group_by": "tenant"}
    response = await gateway.admin.get("/admin/v1/usage", params=query | {"format": "csv"})
    assert response.content_type == "text/csv"
    assert response.headers["Content-Disposition"] == 'attachment; filename="keepwarm-usage.csv"'
    lines = list(csv.DictReader(io.StringIO(await response.text())))
    total = (await ask(gateway, from_="-2h", bucket="15m", group_by="tenant"))["total"]
    assert [line["tenant"] for line in lines] == ['a,"b"', "c"]
    for column in ("requests", "prompt_tokens", "write_tokens.5m", "missed_tokens.tools", "missed_requests.new"):
        name, _, member = column.partition(".")
        assert sum(int(line[column]) for line in lines) == (total[name][member] if member else total[name])
    assert [line["first_token.hit.p50"] != "" for line in lines] == [True, False]
    assert lines[0]["start"].endswith(":00Z") and lines[0]["evictions.expired"] == ""


async def test_csv_without_groups_has_every_bucket(gateway: Gateway) -> None:
    """Empty buckets are lines too, whose ratios are empty."""
    response = await gateway.admin.get("/admin/v1/usage?from=-3h&bucket=1h&format=csv")
    lines = list(csv.DictReader(io.StringIO(await response.text())))
    assert [(line["requests"], line["read_ratio.by_tokens"]) for line in lines] == [("0", "")] * len(lines)
    assert len(lines) in {3, 4}


@pytest.mark.parametrize(
    ("query", "field", "allowed"),
    [
        ("tennant=a", "tennant", "from, to, bucket"),
        ("from=soon", "from", "seconds since the epoch"),
        ("from=-1h&to=-2h", "from", "before"),
        ("bucket=7m", "bucket", "auto, none, 1m, 5m, 15m, 1h, 6h, 1d"),
        ("bucket=0", "bucket", "auto"),
        ("from=-3d&bucket=1m", "bucket", "5m, 15m, 1h, 6h, 1d"),
        ("from=-100d&bucket=1h", "bucket", "1d"),
        ("from=0&bucket=1d", "bucket", "at most 2,000 buckets"),
        ("group_by=colour", "group_by", "tenant, key, model, api, upstream"),
        ("group_by=key,key", "group_by", "tenant"),
        ("format=xml", "format", "json, csv"),
        ("tenant=", "tenant", "value"),
    ],
)
async def test_wrong_fields_are_refused(gateway: Gateway, query: str, field: str, allowed: str) -> None:
    """What cannot be answered is a 400 that names the field and what fits it."""
    error = await refusal(gateway, query)
    assert error["field"] == field and error["message"]
    assert allowed in error["allowed"]


@pytest.mark.parametrize(
    ("since", "bucket_s"),
    [("-1h", 60), ("-6h", 300), ("-24h", 900), ("-7d", 3600), ("-30d", 21_600), ("-300d", 86_400)],
)
async def test_buckets_are_chosen_by_the_range(gateway: Gateway, since: str, bucket_s: int) -> None:
    """Without a bucket the shortest that is kept and gives at most two hundred is taken."""
    assert (await ask(gateway, from_=since))["bucket_s"] == bucket_s


async def test_a_ledger_that_is_away_is_a_503(gateway: Gateway) -> None:
    """What cannot be read is said, and what was counted stays."""
    tell(gateway)
    await gateway.house.ledger.store.close()
    response = await gateway.admin.get("/admin/v1/usage")
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert len(gateway.house.ledger._fresh) == 1


async def test_the_answers_of_the_gateway_are_counted(gateway: Gateway) -> None:
    """A request's record reaches the ledger under its tenant, model, API and upstream, in the minute it came."""
    began = floor(time.time(), MINUTE)
    usage = (await (await gateway.chat()).json())["usage"]
    answer = await ask(gateway, group_by="tenant,key,model,api,upstream", bucket="1m")
    (group,) = answer["groups"]
    assert group["by"] == {"tenant": "default", "key": None, "model": "tiny", "api": "chat", "upstream": "scripted"}
    assert group["total"]["prompt_tokens"] == usage["prompt_tokens"]
    assert [b["start"] >= began for b in answer["buckets"] if b["total"]["requests"]] == [True]


async def test_the_command_shows_a_table_json_and_csv(start_gateway: StartGateway) -> None:
    """`keepwarm usage` prints groups with their rates and the net, the answer unchanged, or the CSV."""
    gateway = await start_gateway(prices=Prices([RATES]))
    tell(gateway, tenant="[b]acme[/b]")
    shown = await run(gateway, "usage", "--from", "-2h", "--by", "tenant", "--bucket", "1h")
    assert shown.code == 0
    (line,) = (line for line in shown.out.splitlines() if "acme" in line)
    assert line.replace("│", " ").split()[2:9] == [
        "[b]acme[/b]",
        "1",
        "100.0%",
        "64.0%",
        "100",
        "64",
        "30",
    ]
    as_json = await run(gateway, "usage", "--from", "-2h", "--tenant", "[b]acme[/b]", "--json")
    assert (as_json.json["total"]["requests"], as_json.json["bucket_s"]) == (1, None)
    as_csv = await run(gateway, "usage", "--from", "-2h", "--csv")
    assert [line["requests"] for line in csv.DictReader(io.StringIO(as_csv.out))] == ["1"]


async def test_the_command_says_no_data_and_what_is_wrong(gateway: Gateway) -> None:
    """Without data the table says so and shows no ratio; a refusal is one line."""
    empty = await run(gateway, "usage")
    (line,) = (line for line in empty.out.splitlines() if line.startswith("│"))
    assert "no data" in empty.out
    assert line.replace("│", " ").split() == ["0", "-", "-", "0", "0", "0", "0", "0", "-", "-"]
    for more in ([], ["--csv"]):
        wrong = await run(gateway, "usage", "--bucket", "7m", *more)
        assert (wrong.code, wrong.out) == (1, "")
        assert "'7m' is not known; allowed: auto, none" in wrong.err


async def test_flush_failure_is_no_loss(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that one flush could not hand over are in the next answer."""
    tell(gateway)
    store = gateway.house.ledger.store

    async def away(_: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "add", away)
        assert (await ask(gateway, from_="-2h"))["data"] is False
    assert (await ask(gateway, from_="-2h"))["total"]["requests"] == 1
