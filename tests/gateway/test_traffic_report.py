"""What the demo's hour came to: sums by tenant, ratios that are absent where nothing was told, both ways to show it."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
from rich.console import Console

from gateway.demo.asking import Told
from gateway.demo.scenario import CODING, REPORTS, SUPPORT, Pace, Send, Tenant, plan
from gateway.demo.traffic_report import Ratio, Sums, TrafficReport, Waits, print_traffic, sums, traffic_json


def send(tenant: Tenant) -> Send:
    """One request of a tenant."""
    return Send(minute=0.0, tenant=tenant, talk=f"{tenant}-0", turn=0, api="chat")


COLD = Told(
    send=send(CODING),
    outcome="finished",
    status=200,
    prompt=100,
    read=5,
    output=4,
    missed={"new": 60, "system": 35},
    first_token_s=0.4,
)
WARM = replace(COLD, read=80, missed={"system": 20}, first_token_s=0.1)
WARMER = replace(WARM, read=96, missed={"system": 4}, first_token_s=0.2)
LEFT = Told(send=send(CODING), outcome="cancelled", status=200, first_token_s=0.3)
REFUSED = Told(send=send(CODING), outcome="refused", status=404, said="no such model")
ALL = (COLD, WARM, WARMER, LEFT, REFUSED)

REPORT = TrafficReport(
    url="http://gateway",
    admin_url="http://admin",
    model="tiny",
    pace=Pace(2.0),
    plan=plan(7, 0.5),
    tokens_per_s=None,
    policies=[{"name": f"demo-{name}", "tenant": name, "min_tokens": 16} for name in (SUPPORT, CODING, REPORTS)],
    told=ALL,
    left_out=3,
    marked=False,
    dry_run={"tenant": REPORTS, "tokens": 1234},
    removed=("demo-coding", "demo-reports", "demo-support"),
)


def test_sums_are_of_what_was_told() -> None:
    """Ratios and waits count the answers that told their usage; a request that read fewer than 16 is a miss."""
    assert sums(CODING, ALL, 16) == Sums(
        tenant=CODING,
        requests=5,
        outcomes={"cancelled": 1, "finished": 3, "refused": 1},
        reported=3,
        hits=2,
        prompt_tokens=300,
        read_tokens=181,
        output_tokens=12,
        missed_tokens={"new": 60, "system": 59},
        read_ratio=Ratio(by_tokens=181 / 300, by_requests=2 / 3),
        main_miss="new",
        first_token={"hit": Waits(count=2, p50=0.15), "miss": Waits(count=1, p50=0.4)},
    )


def test_without_answers_there_is_no_ratio() -> None:
    """A tenant none of whose answers told anything has no ratio, no reason and no wait."""
    one = sums(CODING, (LEFT, REFUSED), 16)

    assert (one.read_ratio, one.main_miss) == (Ratio(by_tokens=None, by_requests=None), None)
    assert one.first_token == {"hit": None, "miss": None}


def test_the_document_says_what_the_report_says() -> None:
    """The JSON has the scale, the plan's share, sums by tenant, errors, and what was cleared."""
    document = msgspec.json.decode(traffic_json(REPORT))

    assert (document["scale"], document["density"], document["planned"], document["left_out"]) == (30.0, 0.5, 50, 3)
    assert [one["tenant"] for one in document["tenants"]] == [SUPPORT, CODING, REPORTS]
    assert document["tenants"][1]["read_ratio"]["by_tokens"] == 181 / 300
    assert document["tenants"][0]["read_ratio"] == {"by_tokens": None, "by_requests": None}
    assert document["errors"] == {"404 no such model": 1}
    assert document["removed"] == ["demo-coding", "demo-reports", "demo-support"]
    assert document["page"] == "http://admin/"


def shown(report: TrafficReport) -> str:
    """What a person reads."""
    console = Console(file=io.StringIO(), width=160)
    print_traffic(console, report)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_person_reads_the_same() -> None:
    """The table has the ratios, the notes say how TTLs are scaled, what was left out and that policies are gone."""
    text = shown(REPORT)

    assert "60.3%" in text
    assert "66.7%" in text
    assert "Everything is 30 times faster than life, TTLs too: 5m is 10s, 60m is 2m, 4m is 8s, 15m is 30s." in text
    assert "This machine got 50% of the conversations, and 3 requests came too late and were left out" in text
    assert "1 x 404 no such model" in text
    assert "would have forgotten 1,234 tokens" in text
    assert "Taken away again: the policies demo-coding, demo-reports, demo-support." in text
    assert "Look at http://admin/" in text


def test_policies_that_stay_are_named() -> None:
    """With nothing removed, the notes name the policies that are still in force."""
    assert "The demo's policies stay" in shown(replace(REPORT, removed=()))
