"""The operators' answers as tables for a person. Pure: an answer in, something `rich` prints out.

Rule: what came from elsewhere (names of tenants, models, policies) is shown as text, never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from prefix_store.retention import format_duration

Json = Mapping[str, Any]

POLICY_COLUMNS = (
    "name",
    "model",
    "tenant",
    "default_ttl",
    "max_ttl",
    "mode",
    "min_tokens",
    "promise_budget",
    "pool_share",
    "priority",
    "version",
)
NUMBERS = frozenset({"min_tokens", "promise_budget", "pool_share", "priority", "version"})
ANY = {"model": "any", "tenant": "any", "default_ttl": "none"}
USAGE_COLUMNS = (
    "requests",
    "hits",
    "read\n%",
    "prompt\ntokens",
    "read",
    "written",
    "uncached",
    "output",
    "first token\non a hit",
    "on a miss",
)
COUNTS = ("entries", "tokens", "bytes")


def policies(answer: Json) -> Table:
    """Show one policy a line; `allowed_ttls`, which is long, is in the view of one policy."""
    table = Table()
    for column in POLICY_COLUMNS:
        table.add_column(column, justify="right" if column in NUMBERS else "left", overflow="fold")
    for policy in answer["policies"]:
        table.add_row(
            *(_text(ANY.get(column, "") if policy[column] is None else policy[column]) for column in POLICY_COLUMNS)
        )
    return table


def policy(answer: Json) -> Table:
    """Show one policy, one field a line."""
    return _pairs((field, ", ".join(value) if isinstance(value, list) else value) for field, value in answer.items())


def changed(answer: Json, *, gone: str, kept: str, head: str = "") -> Table:
    """Show per tenant what goes and what stays, with a last line of sums; `head` replaces the first part's name."""
    table = Table("tenant", caption=_in_use(answer))
    for what in (gone, kept):
        for count in COUNTS:
            table.add_column(f"{(head or gone) if what == gone else what}\n{count}", justify="right")
    rows = {
        tenant: [tally[what][count] for what in (gone, kept) for count in COUNTS]
        for tenant, tally in answer["tenants"].items()
    }
    for tenant, row in rows.items():
        table.add_row(_text(tenant), *map(_number, row))
    table.add_section()
    sums = [sum(column) for column in zip(*rows.values(), strict=True)] or [0] * 2 * len(COUNTS)
    table.add_row("all", *map(_number, sums))
    return table


def entries(answer: Json) -> Table:
    """Show one entry a line."""
    first, shown = answer["offset"], len(answer["entries"])
    span = f"{first + 1} to {first + shown}" if shown else "none"
    table = Table(caption=f"{span} of {answer['total']}")
    for column in ("entry", "tenant", "model", "class", "kept"):
        table.add_column(column, overflow="fold")
    for column in ("tokens", "own", "left", "age", "idle", "reads", "leases"):
        table.add_column(column, justify="right")
    for entry in answer["entries"]:
        words = (entry["id"][:12], entry["tenant"], entry["model"], entry["class"], entry["kept"])
        counts = (entry["tokens"], entry["own_tokens"])
        times = (entry["left_s"], entry["age_s"], entry["idle_s"])
        uses = (entry["reads"], entry["leases"])
        table.add_row(*map(_text, words), *map(_number, counts), *map(_seconds, times), *map(_number, uses))
    return table


def stats(answer: Json) -> Table:
    """Show the engine's numbers and the store's state, one a line; numbers by tenant or class are indented."""
    lines: list[tuple[str, object]] = []
    for name, value in answer["engine"].items():
        if isinstance(value, Mapping) and "counts" in value:
            lines.append((name, _mean(value)))
        elif isinstance(value, list):  # a histogram whose sum stands beside it
            sequences, total = sum(value), answer["engine"][f"{name}_total"]
            told = f"{sequences:,} sequences, {total / sequences:.1f} on average" if sequences else "none"
            lines.append((name, told))
        elif isinstance(value, Mapping):
            lines.append((name, "" if value else "none"))
            lines.extend((f"  {part}", _number(count)) for part, count in value.items())
        else:
            lines.append((name, _number(value)))
    lines.append(("policies", answer["state"]["policies"]))
    lines.append(("state", answer["state"]["degraded"] or "ok"))
    return _pairs(lines)


def upstreams(answer: Json) -> Table:
    """Show one upstream a line."""
    table = Table(caption="; ".join(f"{model}: {policy}" for model, policy in answer["routing"].items()))
    for column in ("upstream", "kind", "models", "state"):
        table.add_column(column, overflow="fold")
    for column in (
        "open",
        "load\ntokens",
        "requests",
        "failures",
        "resident\ntokens",
        "prompt\ntokens",
        "delivered\n%",
    ):
        table.add_column(column, justify="right")
    for one in answer["upstreams"]:
        state = f"{one['state']}: {one['why']}" if one["why"] else one["state"]
        words = (one["name"], one["kind"], ", ".join(one["models"]), state)
        counts = (one["open"], one["load_tokens"], one["requests"], one["failures"], one["resident_tokens"])
        ratio = one["delivered_ratio"]
        delivered = "-" if ratio is None else f"{100 * ratio:.1f}"
        table.add_row(*map(_text, words), *map(_number, counts), _number(one["prompt_tokens"]), delivered)
    return table


def reloaded(answer: Json) -> Table:
    """Show what became of each upstream."""
    return _pairs((what, ", ".join(answer[what]) or "none") for what in ("added", "removed", "changed", "unchanged"))


def happening(answer: Json) -> Table:
    """Show one mark on the time axis."""
    at = datetime.fromtimestamp(answer["at"], UTC).isoformat(sep=" ", timespec="seconds")
    return _pairs([("at", at), ("kind", answer["kind"]), ("title", answer["title"])])


def _mean(histogram: Json) -> str:
    blocks = sum(histogram["counts"])
    return f"{_number(blocks)} blocks, {_seconds(histogram['sum'] / blocks)} on average" if blocks else "none"


def usage(answer: Json) -> Table:
    """Show what was asked for, one bucket and group a line; what is unknown is shown as `-`."""
    fields, currency = answer["group_by"], answer["currency"]
    span = f"{_when(answer['from'])} to {_when(answer['to'])}"
    table = Table(caption=span if answer["data"] else f"{span}: no data")
    for column in (*(("from",) if answer["buckets"] else ()), *fields):
        table.add_column(column, overflow="fold")
    for column in USAGE_COLUMNS:
        table.add_column(column, justify="right")
    if currency:
        table.add_column(f"net\n{currency}", justify="right")
    whole = {"start": answer["from"], "groups": answer["groups"], "total": answer["total"]}
    for part in answer["buckets"] or [whole]:
        for group in part["groups"] if fields else [{"by": {}, "total": part["total"]}]:
            when = [_when(part["start"])] if answer["buckets"] else []
            names = [_text(group["by"][field] or "-") for field in fields]
            table.add_row(*when, *names, *_used(group["total"], priced=bool(currency)))
    if fields or answer["buckets"]:
        table.add_section()
        blank = [""] * (len(fields) + bool(answer["buckets"]) - 1)
        table.add_row("all", *blank, *_used(answer["total"], priced=bool(currency)))
    return table


def _used(total: Json, *, priced: bool) -> list[str]:
    ratio, first, money = total["read_ratio"], total["first_token"], total["money"]
    counts = (total["prompt_tokens"], total["read_tokens"], sum(total["write_tokens"].values()))
    rest = (total["uncached_tokens"], total["output_tokens"])
    return [
        _number(total["requests"]),
        *(_percent(ratio[way]) for way in ("by_requests", "by_tokens")),
        *map(_number, counts + rest),
        *("-" if first[way] is None else f"{first[way]['p50'] * 1000:,.0f} ms" for way in ("hit", "miss")),
        *([] if not priced else ["-" if money is None else f"{money['net']:,.4f}"]),
    ]


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%MZ")


def _pairs(lines: Iterable[tuple[str, object]]) -> Table:
    table = Table(show_header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(_text(name), _text(ANY.get(name, "") if value is None else value))
    return table


def _in_use(answer: Json) -> str | None:
    tokens = answer["leased_tokens"]
    return f"{_number(tokens)} of these tokens are still in use and follow when their requests end" if tokens else None


def _seconds(value: float) -> str:
    """Show a span to the second, below one to the millisecond; negative is a deadline that a lease outlives."""
    whole = round(abs(value)) if abs(value) >= 1 else round(abs(value), 3)
    return f"{'-' if value < 0 else ''}{format_duration(whole)}" if whole else "0s"


def _number(value: float) -> str:
    return f"{value:,}"


def _text(value: object) -> Text:
    return Text(str(value))
