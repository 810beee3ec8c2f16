"""Sums of the ledger as operators read them: one object for each bucket and group, or one line of CSV. Pure.

Rules: a ratio without a denominator, a spread of nothing and what was not counted for this group are null, never 0; the
lines of a table add up to its totals.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.money import Prices, Used
from prefix_store.ledger import Counts, Sums, merge, quantiles

Json = dict[str, Any]
Models = dict[str, dict[str, int]]  # counts by model, which is what has a price

OUTCOMES: Final = ("finished", "failed", "refused", "cancelled")
CAUSES: Final = ("expired", "evicted", "purged")
STAGES: Final = ("available", "captured", "delivered")
SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
UNTOLD_BY: Final = frozenset({"tenant", "key", "api"})  # the engine does not say for whom a block went
COUNTED: Final = frozenset(
    {"write_tokens", "prewarm_tokens.write", "routed.by", "missed_tokens", "missed_requests", "broken_promises"}
)  # objects with a number for each reason or class that there was
PENNY_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Table:
    """What was asked for: sums by bucket and group, apart by model last."""

    start: int
    end: int
    bucket: int | None
    group_by: tuple[str, ...]
    only: tuple[str, ...]  # fields that a filter narrows
    sums: Sums  # cells' fields are `group_by`, then `model`


def usage(table: Table, prices: Prices) -> Json:
    """Return the whole answer: total, groups, and every bucket of the range, oldest first."""
    whole: Models = {}
    groups: defaultdict[tuple[str, ...], Models] = defaultdict(dict)
    buckets: defaultdict[int, dict[tuple[str, ...], Models]] = defaultdict(dict)
    for (begin, fields), counts in table.sums.items():
        group, model = fields[:-1], fields[-1]
        merge(whole.setdefault(model, {}), counts)
        merge(groups[group].setdefault(model, {}), counts)
        if begin is not None:
            merge(buckets[begin].setdefault(group, {}).setdefault(model, {}), counts)
    begins = () if table.bucket is None else range(table.start - table.start % table.bucket, table.end, table.bucket)
    return {
        "from": table.start,
        "to": table.end,
        "bucket_s": table.bucket,
        "group_by": list(table.group_by),
        "data": bool(table.sums),
        "currency": prices.currency,
        "total": _counts(whole, table, prices),
        "groups": _groups(groups, table, prices),
        "buckets": [
            {
                "start": begin,
                "total": _counts(_together(buckets[begin].values()), table, prices),
                "groups": _groups(buckets[begin], table, prices),
            }
            for begin in begins
        ],
    }


def as_csv(answer: Json) -> str:
    """Return one line for each bucket and group; without buckets, one for each group."""
    fields: list[str] = answer["group_by"]
    buckets = answer["buckets"] or [{"start": answer["from"], **{key: answer[key] for key in ("total", "groups")}}]
    lines: list[dict[str, object]] = []
    for bucket in buckets:
        end = min(bucket["start"] + answer["bucket_s"], answer["to"]) if answer["bucket_s"] else answer["to"]
        times = {"start": _iso(max(bucket["start"], answer["from"])), "end": _iso(end)}
        shown = bucket["groups"] if fields else [{"by": {}, "total": bucket["total"]}]
        lines += [times | group["by"] | dict(_flat(group["total"])) for group in shown]
    head = {"start": None, "end": None} | dict.fromkeys(fields) | dict(_flat(answer["total"]))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(head), restval="", extrasaction="ignore", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(_nought(line, head) for line in lines)
    return text.getvalue()


def _groups(groups: Mapping[tuple[str, ...], Models], table: Table, prices: Prices) -> list[Json]:
    """Return the groups, those with the most prompt tokens first."""
    if not table.group_by:
        return []
    shaped = [
        {
            "by": {name: value or None for name, value in zip(table.group_by, group, strict=True)},
            "total": _counts(models, table, prices, dict(zip(table.group_by, group, strict=True))),
        }
        for group, models in sorted(groups.items())
    ]
    return sorted(shaped, key=lambda one: -one["total"]["prompt_tokens"])


def _together(groups: Iterable[Models]) -> Models:
    models: Models = {}
    for group in groups:
        for model, counts in group.items():
            merge(models.setdefault(model, {}), counts)
    return models


def _counts(models: Models, table: Table, prices: Prices, group: Mapping[str, str] | None = None) -> Json:
    counts: dict[str, int] = {}
    for one in models.values():
        merge(counts, one)
    families = _families(counts)
    narrowed = {*table.only, *(name for name, value in (group or {}).items() if value)}
    money = prices.money(_used(model, one) for model, one in models.items())
    return {
        "requests": counts.get("requests", 0),
        "hits": counts.get("hits", 0),
        "outcomes": {outcome: families["outcome"].get(outcome, 0) for outcome in OUTCOMES},
        "prewarms": counts.get("prewarms", 0),
        "prompt_tokens": counts.get("prompt", 0),
        "read_tokens": counts.get("read", 0),
        "write_tokens": families["write"],
        "uncached_tokens": counts.get("uncached", 0),
        "unknown_tokens": counts.get("unknown", 0),
        "output_tokens": counts.get("output", 0),
        "reported": counts.get("reported", 0),
        "prewarm_tokens": {
            "read": counts.get("warm_read", 0),
            "write": families["warm_write"],
            "uncached": counts.get("warm_uncached", 0),
        },
        "projections": {"done": counts.get("done", 0), "without_prefix_cache": counts.get("without", 0)},
        "missed_tokens": families["missed"],
        "missed_requests": families["misses"],
        "broken_promises": None if narrowed & {"key", "api"} else families["broken"],
        "evictions": None if narrowed & UNTOLD_BY else {cause: families["gone"].get(cause, 0) for cause in CAUSES},
        "first_token": {"hit": _spread(families["first_hit"]), "miss": _spread(families["first_miss"])},
        "seconds": _spread(families["seconds"]),
        "queue": _spread(families["queue"]),
        "prefill": _spread(families["prefill"]),
        "read_ratio": {
            "by_tokens": _ratio(counts.get("read", 0), counts.get("prompt", 0) - counts.get("unknown", 0)),
            "by_requests": _ratio(counts.get("hits", 0), counts.get("reported", 0)),
        },
        "routed": routed(counts),
        "money": None if money is None else _rounded(asdict(money)),
    }


def routed(counts: Counts) -> Json | None:
    """Return what routing promised and what was delivered; None where nothing was routed, tokens null where none told.

    All three are of the same answers: those that said what was read.
    """
    by = _families(counts)["routed"]
    if not by:
        return None
    told = counts.get("told", 0)
    return {stage: counts.get(stage, 0) if told else None for stage in STAGES} | {"by": by}


def _families(counts: Counts) -> defaultdict[str, dict[str, int]]:
    """Sort counts whose names have two parts by the first one; nothing is left out but zeros."""
    families: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name in sorted(counts):
        family, parted, member = name.partition("|")
        if parted and counts[name]:
            families[family][member] = counts[name]
    return families


def _used(model: str, counts: Counts) -> Used:
    families = _families(counts)
    return Used(
        model=model,
        prompt=counts.get("prompt", 0),
        read=counts.get("read", 0),
        written=families["write"],
        warm_read=counts.get("warm_read", 0),
        warm_written=families["warm_write"],
        warm_uncached=counts.get("warm_uncached", 0),
    )


def _spread(slots: Mapping[str, int]) -> Json | None:
    if not slots:
        return None
    found = quantiles({int(slot): count for slot, count in slots.items()}, SHARES.values())
    return {"count": sum(slots.values()), **dict(zip(SHARES, found, strict=True))}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _rounded(money: Json) -> Json:
    return {name: round(value, PENNY_DIGITS) if isinstance(value, float) else value for name, value in money.items()}


def _flat(counts: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, object]]:
    """Go over an object's numbers under dotted names."""
    for name, value in counts.items():
        path = f"{within}.{name}" if within else name
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        else:
            yield path, "" if value is None else value


def _nought(line: Mapping[str, object], head: Iterable[str]) -> dict[str, object]:
    """Return a line with 0 for each reason and class that counts elsewhere and not here."""
    absent = {name: name.rpartition(".")[0] for name in head if name not in line}
    return dict(line) | {name: 0 for name, family in absent.items() if family in COUNTED and family not in line}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
