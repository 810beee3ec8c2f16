"""GET /admin/v1/fleet: what routing promised and what upstreams delivered, by upstream, from the ledger.

Rules: tokens are of answers that said what was read, so that the three can be compared, and how many did not say is
told beside; where none said anything they are null; what is lost may be less than nothing, where a replica held more
than was believed.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.admin.counts import STAGES
from gateway.admin.ranges import FILTERS, RANGE, check_fields, parse_filters, parse_range
from gateway.keys import LEDGER
from prefix_store.ledger import Counts, Question, merge, spans

Json = dict[str, Any]

FIELDS: Final = (*RANGE, *FILTERS)
ROUTED: Final = "routed|"


async def fleet(request: web.Request) -> web.Response:
    """GET /admin/v1/fleet?from&to and the filters."""
    check_fields(request.query, FIELDS)
    ledger, now = request.app[LEDGER], time.time()
    wanted, filters = parse_range(request.query, now), parse_filters(request.query)
    retention_s = ledger.store.retention_s
    found = spans(wanted.start, wanted.end, bucket=None, now=now, retention_s=retention_s)
    await ledger.flush()
    sums = await ledger.store.sums(Question(spans=found, fields=("upstream",), only=filters.given))
    answer = shaped({fields[0]: counts for (_, fields), counts in sums.items()})
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def shaped(by_upstream: dict[str, dict[str, int]]) -> Json:
    """Return totals, replicas with most prompt tokens first, and decisions by what they were made by."""
    routed = {name: counts for name, counts in by_upstream.items() if _requests(counts)}
    total: dict[str, int] = {}
    for counts in routed.values():
        merge(total, counts)
    ranked = sorted(routed.items(), key=lambda one: (-one[1].get("told_prompt", 0), one[0]))
    return {
        "data": bool(routed),
        "total": _told(total),
        "replicas": [{"name": name, **_told(counts), **_lost(counts)} for name, counts in ranked],
        "why": {name.removeprefix(ROUTED): count for name, count in sorted(total.items()) if name.startswith(ROUTED)},
    }


def _requests(counts: Counts) -> int:
    return sum(count for name, count in counts.items() if name.startswith(ROUTED))


def _told(counts: Counts) -> Json:
    requests, told = _requests(counts), counts.get("told", 0)
    return {
        "requests": requests,
        "prompt_tokens": counts.get("told_prompt", 0) if told else None,
        **{stage: counts.get(stage, 0) if told else None for stage in STAGES},
        "unreported_requests": requests - told,
    }


def _lost(counts: Counts) -> Json:
    if not counts.get("told", 0):
        return {"lost_in_routing": None, "lost_at_replica": None}
    available, captured, delivered = (counts.get(stage, 0) for stage in STAGES)
    return {"lost_in_routing": available - captured, "lost_at_replica": captured - delivered}
