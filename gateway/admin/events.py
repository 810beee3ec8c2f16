"""What happened, on aiohttp: marks on the time axis, and a way to set one.

Rule: a mark is answered once it is in the audit trail.
"""

from __future__ import annotations

import time

from aiohttp import web

from gateway.admin import shapes
from gateway.admin.answers import json_answer, operator_of, told
from gateway.admin.queries import EventsQuery, MarkBody, span
from gateway.keys import TIMELINE


def add_routes(app: web.Application) -> None:
    """Put the endpoints on the admin application."""
    app.router.add_get("/admin/v1/events", told(list_events))
    app.router.add_post("/admin/v1/events", told(mark))


async def list_events(request: web.Request) -> web.Response:
    """GET /admin/v1/events?from&to: oldest first."""
    wanted = shapes.query(request.query, EventsQuery)
    begin, end = span(wanted.from_, wanted.to, now=time.time())
    end = float("inf") if wanted.to is None else end
    return json_answer(await request.app[TIMELINE].between(begin, end))


async def mark(request: web.Request) -> web.Response:
    """POST /admin/v1/events: {"title"}, a deploy mark."""
    by = operator_of(request)
    title = shapes.body(await request.read(), MarkBody).check()
    return json_answer(await request.app[TIMELINE].mark(title, by=by))
