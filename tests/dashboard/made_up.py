"""A server with the real page and made-up answers behind it, in the shapes of the operators' API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.dashboard import pages

Json = dict[str, Any]
NOW = 1_800_000_000
MINUTE = 60
CLASSES = [{"class": "5m", "ttl_s": 300}, {"class": "1h", "ttl_s": 3600}]


def dist(count: int, p50: float) -> Json | None:
    """Quantiles of a distribution; none of nothing."""
    return {"count": count, "p50": p50, "p95": p50 * 2, "p99": p50 * 3} if count else None


def counts(requests: int = 0, *, read: int = 0, rest: int = 0, hits: int | None = None, money: bool = False) -> Json:
    """What so many requests came to: of what was not read, half was written and a quarter is unknown."""
    hits = requests if hits is None else hits
    write = {"5m": rest // 4, "1h": rest // 4} if requests else {}
    unknown = rest // 4
    prompt = read + rest
    return {
        "requests": requests,
        "hits": hits,
        "reported": requests,
        "outcomes": {"finished": requests, "failed": 0, "refused": 0, "cancelled": 0},
        "prewarms": 0,
        "prompt_tokens": prompt,
        "read_tokens": read,
        "write_tokens": write,
        "uncached_tokens": rest - sum(write.values()) - unknown,
        "unknown_tokens": unknown,
        "output_tokens": requests * 10,
        "projections": {"done": rest, "without_prefix_cache": prompt},
        "missed_tokens": {"new": rest},
        "missed_requests": {"new": requests},
        "broken_promises": {},
        "evictions": {"expired": 0, "evicted": 0, "purged": 0},
        "first_token": {"hit": dist(hits, 0.2), "miss": dist(requests - hits, 1.4)},
        "seconds": dist(requests, 2.0),
        "queue": dist(requests, 0.01),
        "prefill": dist(requests, 0.2),
        "read_ratio": {
            "by_tokens": read / prompt if prompt else None,
            "by_requests": hits / requests if requests else None,
        },
        "money": _money(read, sum(write.values())) if money else None,
    }


def _money(read: int, written: int) -> Json:
    saved, paid = read / 1000, written / 4000
    return {
        "currency": "USD",
        "saved_by_reads": saved,
        "paid_for_writes": paid,
        "net": saved - paid,
        "reads_per_written": read / written if written else None,
        "break_even": 0.25,
    }


def usage(per_bucket: list[Json], *, group: str | None = None) -> Json:
    """Shape an answer of /admin/v1/usage: a minute for each of these counts, all of one tenant called acme."""
    total = _sum(per_bucket) if per_bucket else counts()
    by = {group: "acme"}
    start = NOW - MINUTE * len(per_bucket)
    return {
        "from": start,
        "to": NOW,
        "bucket_s": MINUTE,
        "group_by": [group] if group else [],
        "data": total["requests"] > 0,
        "currency": total["money"] and total["money"]["currency"],
        "total": total,
        "groups": [{"by": by, "total": total}] if group and total["requests"] else [],
        "buckets": [
            {"start": start + place * MINUTE, "total": each, "groups": [{"by": by, "total": each}] if group else []}
            for place, each in enumerate(per_bucket)
        ],
    }


def _sum(parts: list[Json]) -> Json:
    read = sum(each["read_tokens"] for each in parts)
    rest = sum(each["prompt_tokens"] for each in parts) - read
    requests, hits = sum(each["requests"] for each in parts), sum(each["hits"] for each in parts)
    return counts(requests, read=read, rest=rest, hits=hits, money=parts[0]["money"] is not None)


def about() -> Json:
    """Shape what the gateway says of itself."""
    names = {"tenants": ["acme", "globex"], "keys": [], "models": ["tiny"], "upstreams": ["bundled"], "apis": ["chat"]}
    return {"version": "1", "model": "tiny", "classes": CLASSES, "currency": None, "reasons": ["new"], **names}


def retention(tokens: int = 0) -> Json:
    """Shape what the cache holds: so many promised tokens of five minutes, of 16,000 that it can."""
    tally = {"entries": 1, "tokens": tokens, "bytes": tokens * 64}
    nothing = {"entries": 0, "tokens": 0, "bytes": 0}
    return {
        "classes": [
            {**CLASSES[0], "promised": tally, "held": nothing},
            {**CLASSES[1], "promised": nothing, "held": nothing},
        ],
        "capacity": {"blocks": 1000, "free": 1000 - tokens // 16, "block_tokens": 16, "kv_bytes_per_token": 64},
    }


def state(**more: Any) -> Json:
    """Shape the live state."""
    engine = {"running": 2, "waiting": 1}
    return {"at": NOW, "engine": engine, "ready": True, "detail": "", "restarts": 0, "state": "ok", **more}


REQUEST: Json = {
    "id": "r1",
    "at": NOW,
    "tenant": "acme",
    "key": "k",
    "model": "tiny",
    "api": "chat",
    "upstream": "bundled",
    "outcome": "finished",
    "prompt": 100,
    "read": 60,
    "queue_s": 1.0,
    "prefill_s": 2.0,
    "first_token_s": 3.5,
    "decode_s": 4.0,
    "seconds": 10.0,
    "misses": [
        {
            "reason": "system",
            "tokens": 30,
            "where": {"message": "system", "token": 60, "character": 9, "looks_like": "time"},
        },
        {"reason": "new", "tokens": 10, "where": None},
    ],
    "strip": [
        {"kind": "read", "tokens": 60, "class": None},
        {"kind": "write", "tokens": 30, "class": "5m"},
        {"kind": "uncached", "tokens": 10, "class": None},
    ],
    "marks": [{"tokens": 90, "asked": "1h", "applied": "5m", "kept": "promised", "until": None, "reason": "lowered"}],
}

NO_ADVICE: Json = {"sample": None, "advice": [], "curve": [], "capacity_curve": [], "alerts": []}


@dataclass
class MadeUp:
    """Answers that a test may change at any time, and the questions that came."""

    answers: Json = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    key: str | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: list[tuple[str, Json]] = field(default_factory=list)
    streams: list[asyncio.Queue[tuple[str, Json]]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        empty = {"usage": usage([]), "about": about(), "events": {"events": []}, "retention": retention()}
        self.answers = {**empty, "advice": NO_ADVICE, **self.answers}

    def questions(self, name: str) -> list[dict[str, str]]:
        """Return the parameters of every call of this name."""
        return [params for asked, params in self.asked if asked == name]

    def tell(self, event: str, data: Mapping[str, Any]) -> None:
        """Send an event to every live stream that is open."""
        for stream in self.streams:
            stream.put_nowait((event, dict(data)))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer any call below /admin/v1/; one that is no GET by its method and name, such as "POST purge"."""
        name = request.match_info["name"]
        if request.method != "GET":
            return await self._done(f"{request.method} {name}", await request.json() if request.can_read_body else {})
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "A key is asked for."}}, status=401)
        if name == "live":
            return await self._live(request)
        self.asked.append((name, dict(request.query)))
        if name in self.statuses:
            return web.json_response({"error": {"message": f"{name} is gone."}}, status=self.statuses[name])
        if request.query.get("format") == "csv":
            return web.Response(text="start,requests\r\n", content_type="text/csv")
        return web.json_response(self.answers[name])

    async def _done(self, call: str, body: Json) -> web.Response:
        self.sent.append((call, body))
        answer = self.answers[call]
        return web.json_response(answer, status=400 if "error" in answer else 200)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        queue: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
        queue.put_nowait(("state", state()))
        self.streams.append(queue)
        try:
            while True:
                event, data = await queue.get()
                await stream.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())
        except ConnectionError:
            return stream
        finally:
            self.streams.remove(queue)


async def serve(made: MadeUp) -> TestServer:
    """Serve the page with these answers."""
    app = web.Application()
    pages.add_routes(app)
    app.router.add_route("*", "/admin/v1/{name:.+}", made.answer)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.1)
    made.url = str(server.make_url("/"))
    return server
