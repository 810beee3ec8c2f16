"""What the played hour came to, by tenant: sums as one document for a program, and as a table for a person.

Owns the arithmetic over what answers said, and layout. Pure but for the console it is given.
Rule: ratios are of answers that told their usage; where none did there is no ratio, and no 0 %.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.demo.asking import Told
from gateway.demo.scenario import LONG_TTL, REPORTS_TTL, REPORTS_TTL_LATER, SHORT_TTL, TENANTS, Pace, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """All that one run found out."""

    url: str
    admin_url: str
    model: str
    pace: Pace
    plan: Plan
    tokens_per_s: float | None
    policies: Sequence[dict[str, Any]]
    told: Sequence[Told]
    left_out: int
    marked: bool
    dry_run: dict[str, Any]
    removed: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds to the first token: how many were measured, and their median."""

    count: int
    p50: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How much was read: of the tokens, and by how many requests."""

    by_tokens: float | None
    by_requests: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """One tenant's hour. `reported` counts the answers that told their usage; token counts are theirs."""

    tenant: str
    requests: int
    outcomes: dict[str, int]
    reported: int
    hits: int
    prompt_tokens: int
    read_tokens: int
    output_tokens: int
    missed_tokens: dict[str, int]
    read_ratio: Ratio
    main_miss: str | None
    first_token: dict[str, Waits | None]


def sums(tenant: str, told: Sequence[Told], least: int) -> Sums:
    """Add up what one tenant's answers said. A request is a hit that read at least `least` tokens."""
    own = [one for one in told if one.send.tenant == tenant]
    reported = [(one, one.prompt, one.read) for one in own if one.prompt is not None and one.read is not None]
    prompt, read = sum(tokens for _, tokens, _ in reported), sum(tokens for *_, tokens in reported)
    hits = [one for one, _, tokens in reported if tokens >= least]
    missed: Counter[str] = Counter()
    for one in own:
        missed.update(one.missed)
    ranked = missed.most_common()
    return Sums(
        tenant=tenant,
        requests=len(own),
        outcomes=dict(sorted(Counter(one.outcome for one in own).items())),
        reported=len(reported),
        hits=len(hits),
        prompt_tokens=prompt,
        read_tokens=read,
        output_tokens=sum(one.output or 0 for one in own),
        missed_tokens=dict(ranked),
        read_ratio=Ratio(
            by_tokens=read / prompt if prompt else None, by_requests=len(hits) / len(reported) if reported else None
        ),
        main_miss=ranked[0][0] if ranked else None,
        first_token={
            "hit": _waits(hits),
            "miss": _waits([one for one, _, tokens in reported if tokens < least]),
        },
    )


def _by_tenant(report: TrafficReport) -> list[Sums]:
    least = {policy["tenant"]: int(policy["min_tokens"]) for policy in report.policies}
    return [sums(tenant, report.told, least[tenant]) for tenant in TENANTS]


def _waits(told: Sequence[Told]) -> Waits | None:
    waits = [one.first_token_s for one in told if one.first_token_s is not None]
    return Waits(count=len(waits), p50=round(statistics.median(waits), 4)) if waits else None


def traffic_json(report: TrafficReport) -> str:
    """Write the report as one JSON document."""
    document = {
        "url": report.url,
        "page": f"{report.admin_url}/",
        "model": report.model,
        "minutes": report.pace.minutes,
        "scale": report.pace.scale,
        "seed": report.plan.seed,
        "density": report.plan.density,
        "tokens_per_s": None if report.tokens_per_s is None else round(report.tokens_per_s, 1),
        "planned": len(report.plan.sends),
        "left_out": report.left_out,
        "tenants": [asdict(one) for one in _by_tenant(report)],
        "errors": _errors(report.told),
        "policies": report.policies,
        "removed": report.removed,
        "deploys_marked": report.marked,
        "dry_run": report.dry_run,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _errors(told: Sequence[Told]) -> dict[str, int]:
    return dict(Counter(f"{one.status} {one.said}" for one in told if one.said).most_common(5))


def print_traffic(console: Console, report: TrafficReport) -> None:
    """Print the table, what was done meanwhile, and where to look."""
    for line in (_table(report), *_notes(report)):
        console.print(line, highlight=False)
    console.print(f"[bold]Look at {report.admin_url}/[/bold], range: last 15 minutes.", highlight=False)
    for view, words in VIEWS:
        console.print(f"  [bold]{view:<10}[/bold] {words}", highlight=False)


VIEWS = (
    ("Overview", "the read ratio falls with the bad deploy and rises when the reports' TTL is raised"),
    ("Tokens", "by tenant: what was read, written by class, and computed for nothing"),
    ("Misses", "system: a time in the coding agent's prompt; expired: the reports"),
    ("Retention", "the reports come back just after their TTL: compare it with the reuse gap"),
    ("Requests", "filter by tenant; a cancelled one, a refused one, and the strip of each prompt"),
    ("Tree", "one trunk for each tenant's system prompt, conversations as its branches"),
)


def _table(report: TrafficReport) -> Table:
    title = f"An hour in {report.pace.minutes:g} minutes on {escape(report.model)}"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("tenant", no_wrap=True)
    for heading in ("requests", "tokens read", "requests read"):
        table.add_column(heading, justify="right")
    table.add_column("main miss", no_wrap=True)
    for heading in ("hit p50", "miss p50"):
        table.add_column(heading, justify="right")
    for one in _by_tenant(report):
        table.add_row(
            one.tenant,
            str(one.requests),
            _percent(one.read_ratio.by_tokens),
            _percent(one.read_ratio.by_requests),
            one.main_miss or "-",
            _wait(one.first_token["hit"]),
            _wait(one.first_token["miss"]),
        )
    table.caption = (
        "read: shares, of the answers that told their usage.\n"
        "p50: median wait for the first token, of requests that read and of those that did not."
    )
    return table


def _notes(report: TrafficReport) -> list[str]:
    pace, plan = report.pace, report.plan
    ttls = (SHORT_TTL, LONG_TTL, REPORTS_TTL, REPORTS_TTL_LATER)
    said = ", ".join(f"{minutes:g}m is {pace.ttl(minutes)}" for minutes in ttls)
    outcomes = Counter(one.outcome for one in report.told)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    notes = [
        f"Everything is {pace.scale:g} times faster than life, TTLs too: {said}.",
        f"Seed {plan.seed}: {ends}.",
    ]
    if plan.density < 1 or report.left_out:
        longer = f"--minutes {pace.minutes * 2:g}"
        late = f", and {report.left_out} requests came too late and were left out" if report.left_out else ""
        notes.append(f"This machine got {plan.density:.0%} of the conversations{late}; {longer} gives it more time.")
    notes += [f"{count} x {escape(said)}" for said, count in _errors(report.told).items()]
    if not report.marked:
        notes.append("This gateway takes no marks, so the two deploys stand on no time axis.")
    if report.dry_run:
        notes.append(f"A purge of the reports would have forgotten {report.dry_run.get('tokens', 0):,} tokens.")
    if report.removed:
        notes.append(f"Taken away again: the policies {', '.join(report.removed)}.")
    else:
        names = " ".join(policy["name"] for policy in report.policies)
        notes.append(f"The demo's policies stay (keepwarm policy delete removes one): {names}.")
    return notes


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _wait(waits: Waits | None) -> str:
    return "-" if waits is None else f"{waits.p50 * 1000:,.0f} ms"
