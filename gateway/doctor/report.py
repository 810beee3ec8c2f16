"""What the doctor found, as tables for a person and as JSON for a program. Both say the same.

Rule: what came from a request is shown as text, never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gateway.doctor.findings import Finding
from gateway.doctor.log import Report
from gateway.doctor.pair import Break

_COLOURS = {"error": "bold red", "advice": "yellow"}
MOST_BREAKERS = 20
_MOST_UNREADABLE = 3

Json = dict[str, Any]


def findings_json(findings: Sequence[Finding], tokens: int, rate: float | None) -> Json:
    """Write what was found in one request alone."""
    return {
        "kind": "request",
        "breaks": any(finding.level == "error" for finding in findings),
        "prompt_tokens": tokens,
        "findings": [
            {**asdict(finding), **_daily(finding.tokens if finding.level == "error" else 0, rate)}
            for finding in findings
        ],
    }


def pair_json(found: Break, findings: Sequence[Finding], rate: float | None) -> Json:
    """Write what was found between two requests."""
    return {
        "kind": "pair",
        "breaks": found.lost > 0,
        "reason": found.reason,
        "where": {
            "message": found.message,
            "character": found.character,
            "token": found.token,
            "looks_like": found.looks_like,
        },
        "before": found.before,
        "after": found.after,
        "details": list(found.details),
        "prompt_tokens": found.prompt,
        "shared_tokens": found.shared,
        "lost_tokens": found.lost,
        **_daily(found.lost, rate),
        "advice": found.advice,
        "findings": [asdict(finding) for finding in findings],
    }


def log_json(report: Report, rate: float | None) -> Json:
    """Write what a log comes to."""
    return {
        "kind": "log",
        "breaks": report.lost > 0,
        "requests": report.requests,
        "prompt_tokens": report.prompt,
        "reachable_tokens": report.reachable,
        "reachable_share": _share(report.reachable, report.prompt),
        "reachable_requests_share": _share(report.hits, report.requests),
        "lost_tokens": report.lost,
        "reordered_share": _share(report.reachable + report.lost, report.prompt),
        **_daily(report.lost / report.requests, rate),
        "breakers": [asdict(breaker) for breaker in report.worst],
        "unreadable": report.unreadable,
    }


def show_findings(console: Console, name: str, found: Json) -> None:
    """Print what `findings_json` returned."""
    errors = sum(finding["level"] == "error" for finding in found["findings"])
    head = f"{name}: {found['prompt_tokens']:,} tokens; "
    if not found["findings"]:
        console.print(Text(head + "nothing found that breaks the prefix", "green"), soft_wrap=True)
        return
    console.print(Text(head + f"{_counted(errors)} the prefix", "bold red" if errors else "yellow"), soft_wrap=True)
    for finding in found["findings"]:
        console.print(_finding(finding))


def show_pair(console: Console, names: tuple[str, str], found: Json) -> None:
    """Print what `pair_json` returned."""
    head = f"{names[1]} after {names[0]}: "
    if found["breaks"]:
        console.print(Text(f"{head}the prefix breaks ({found['reason']})", "bold red"), soft_wrap=True)
    else:
        console.print(Text(f"{head}the prefix holds ({found['reason']})", "green"), soft_wrap=True)
    where = found["where"]
    place = where["message"] + ("" if where["character"] is None else f", character {where['character']:,}")
    rows = [
        ("where", f"{place}, token {where['token']:,}" if where["message"] else "nothing differs"),
        ("looks like", where["looks_like"].replace("_", " ")),
        ("before", found["before"]),
        ("now", found["after"]),
        ("besides", "; ".join(found["details"])),
        ("shared", f"{found['shared_tokens']:,} of {found['prompt_tokens']:,} tokens"),
        ("lost", _lost(found)),
        ("what to do", found["advice"]),
    ]
    same = not where["message"]
    console.print(_facts((name, text) for name, text in rows if text and not (same and name == "looks like")))
    for finding in found["findings"]:
        console.print(_finding(finding))


def show_log(console: Console, found: Json) -> None:
    """Print what `log_json` returned."""
    rows = [
        ("requests", f"{found['requests']:,}, {found['prompt_tokens']:,} prompt tokens"),
        (
            "reachable",
            f"{found['reachable_share']:.1%} of the tokens and {found['reachable_requests_share']:.1%} of the requests",
        ),
        ("lost", _lost(found)),
        (
            "reordered",
            f"{found['reordered_share']:.1%} of the tokens, if what changes stood behind what stays",
        ),
        ("unreadable", _unreadable(found["unreadable"])),
    ]
    console.print(_facts((name, text) for name, text in rows if text))
    if not found["breakers"]:
        console.print(Text("No prefix breaks.", "green"))
        return
    table = Table("breaker", "looks like", title="What breaks the prefix", title_justify="left")
    for column in ("requests", "tokens lost", "share"):
        table.add_column(column, justify="right")
    table.add_column("before → now", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for breaker in found["breakers"][:MOST_BREAKERS]:
        table.add_row(
            Text(f"{breaker['reason']} at {breaker['place']}\nfirst: {breaker['example']}"),
            Text(breaker["looks_like"].replace("_", " ")),
            f"{breaker['requests']:,}",
            f"{breaker['lost']:,}",
            f"{_share(breaker['lost'], found['prompt_tokens']):.1%}",
            Text(f"{breaker['before']}\n→ {breaker['after']}"),
            Text(breaker["advice"]),
        )
    console.print(table)


def _finding(finding: Json) -> Group:
    place = finding["where"] + ("" if finding["character"] is None else f", character {finding['character']:,}")
    colour = _COLOURS[finding["level"]]
    head = Text.assemble((f"{finding['level']:<7}", colour), f"{place}: {finding['says']}")
    rows = [
        ("text", finding["excerpt"].replace("\n", "⏎")),
        ("a day", _a_day(finding)),
        ("what to do", finding["advice"]),
    ]
    return Group(head, Padding(_facts((name, text) for name, text in rows if text), (0, 0, 0, 7)))


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, Text(text))
    return table


def _lost(found: Json) -> str:
    per = "" if found["kind"] == "log" else " in each such request"
    daily = _a_day(found)
    return f"{found['lost_tokens']:,} tokens{per}" + (f", {daily}" if daily else "")


def _a_day(found: Json) -> str:
    lost = found.get("lost_tokens_per_day")
    return f"{lost:,} tokens a day" if lost else ""


def _daily(lost: float, rate: float | None) -> Json:
    return {} if rate is None else {"lost_tokens_per_day": round(lost * rate)}


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _counted(errors: int) -> str:
    return "1 thing breaks" if errors == 1 else f"{errors} things break" if errors else "nothing surely breaks"


def _unreadable(reasons: Sequence[str]) -> str:
    shown = list(reasons[:_MOST_UNREADABLE])
    if len(reasons) > len(shown):
        shown.append(f"and {len(reasons) - len(shown)} more")
    return "\n".join(shown)
