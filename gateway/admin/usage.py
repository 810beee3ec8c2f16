"""GET /admin/v1/usage: what was read, written and missed, over time and by who.

Reads the query, asks the ledger, hands the sums to `counts`. Rule: rows that are no longer kept are not shown as
nothing: buckets finer than what is kept so far back are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from aiohttp import web

from gateway.admin.counts import Table, as_csv
from gateway.admin.counts import usage as shaped
from gateway.admin.ranges import FILTERS, RANGE, Filters, Range, check_fields, parse_filters, parse_range
from gateway.admin.shapes import AdminRefused
from gateway.keys import LEDGER, PRICES
from prefix_store.ledger import DAY, FIVE, HOUR, MINUTE, Question, is_kept, spans, steps_of
from prefix_store.retention import format_duration, parse_duration

FIELDS: Final = (*RANGE, "bucket", "group_by", *FILTERS, "format")
BUCKETS: Final = (MINUTE, FIVE, 900, HOUR, 21_600, DAY)
GOOD = 200  # so many buckets at most where the answer may choose
MOST_BUCKETS = 2_000
MOST_LINES = 20_000
FILE = "keepwarm-usage.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A query that makes sense."""

    range: Range
    filters: Filters
    bucket: int | None
    group_by: tuple[str, ...]
    format: Literal["json", "csv"]


async def usage(request: web.Request) -> web.Response:
    """GET /admin/v1/usage?from&to&bucket&group_by&format and the filters."""
    ledger, prices, now = request.app[LEDGER], request.app[PRICES], time.time()
    asked = parse(request.query, now, ledger.store.retention_s)
    found = spans(
        asked.range.start, asked.range.end, bucket=asked.bucket, now=now, retention_s=ledger.store.retention_s
    )
    await ledger.flush()
    sums = await ledger.store.sums(
        Question(spans=found, bucket=asked.bucket, fields=(*asked.group_by, "model"), only=asked.filters.given)
    )
    if len(sums) > MOST_LINES:
        fits = f"at most {MOST_LINES:,} lines: a longer bucket, a shorter range or fewer fields"
        raise AdminRefused(f"group_by: the answer would have {len(sums):,} lines", field="group_by", allowed=fits)
    table = Table(
        start=found[0].start,
        end=found[-1].end,
        bucket=asked.bucket,
        group_by=asked.group_by,
        only=tuple(asked.filters.given),
        sums=sums,
    )
    answer = await asyncio.to_thread(shaped, table, prices)
    if asked.format == "csv":
        headers = {"Content-Disposition": f'attachment; filename="{FILE}"'}
        text = await asyncio.to_thread(as_csv, answer)
        return web.Response(text=text, content_type="text/csv", charset="utf-8", headers=headers)
    body = await asyncio.to_thread(msgspec.json.encode, answer)
    return web.Response(body=body, content_type="application/json")


def parse(query: Mapping[str, str], now: float, retention_s: float) -> Asked:
    """Read a query. Raises AdminRefused naming the field."""
    check_fields(query, FIELDS)
    wanted = parse_range(query, now)
    form = query.get("format", "json")
    if form not in {"json", "csv"}:
        raise AdminRefused(f"format: {form!r} is not known", field="format", allowed="json, csv")
    return Asked(
        range=wanted,
        filters=parse_filters(query),
        bucket=_bucket(query.get("bucket", "auto"), wanted, now, retention_s),
        group_by=_group_by(query.get("group_by", "")),
        format="csv" if form == "csv" else "json",
    )


def _group_by(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    for name in names:
        if name not in FILTERS or names.count(name) > 1:
            problem = "is named twice" if name in FILTERS else "is not a field to group by"
            raise AdminRefused(f"group_by: {name!r} {problem}", field="group_by", allowed=", ".join(FILTERS))
    return names


def _bucket(text: str, wanted: Range, now: float, retention_s: float) -> int | None:
    """Return the length of a bucket: the one asked for, or the shortest that is kept and gives not too many."""
    if text == "none":
        return None
    kept = [length for length in BUCKETS if _is_kept(length, wanted, now, retention_s)]
    if text == "auto":
        few = (length for length in kept if (wanted.end - wanted.start) / length <= GOOD)
        return next(few, BUCKETS[-1])
    lengths = ", ".join(map(format_duration, BUCKETS))
    length = _length(text)
    if length not in BUCKETS:
        raise AdminRefused(f"bucket: {text!r} is not known", field="bucket", allowed=f"auto, none, {lengths}")
    if length not in kept and kept:
        fits = ", ".join(map(format_duration, kept))
        raise AdminRefused(f"bucket: nothing as fine as {text} is kept so far back", field="bucket", allowed=fits)
    if (wanted.end - wanted.start) / length > MOST_BUCKETS:
        fits = f"at most {MOST_BUCKETS:,} buckets"
        raise AdminRefused(f"bucket: the range has too many of {text}", field="bucket", allowed=fits)
    return length


def _length(text: str) -> int | None:
    try:
        return int(text) if text.isdecimal() else round(parse_duration(text))
    except ValueError:
        return None


def _is_kept(length: int, wanted: Range, now: float, retention_s: float) -> bool:
    """Tell whether buckets of this length can be made from the range's start on."""
    return any(is_kept(step, wanted.start, now, retention_s) for step in steps_of(length))
