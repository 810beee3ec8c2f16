"""The latest exchanges on aiohttp: a page of them, and one.

Rule: hashes, counts, times and words; never text. What is no longer remembered is said to be so.
"""

from __future__ import annotations

import time

from aiohttp import web

from gateway.admin import shapes
from gateway.admin.answers import NotRemembered, json_answer, told
from gateway.admin.queries import NoQuery, RequestsQuery, span
from gateway.admin.shapes import AdminRefused
from gateway.admin.view import view
from gateway.keys import RECENT
from gateway.recent import UnknownPlace


def add_routes(app: web.Application) -> None:
    """Put the endpoints on the admin application."""
    app.router.add_get("/admin/v1/requests", told(list_requests))
    app.router.add_get("/admin/v1/requests/{id}", told(get_request))


async def list_requests(request: web.Request) -> web.Response:
    """GET /admin/v1/requests: the latest first; all that are remembered where no range is given."""
    wanted = shapes.query(request.query, RequestsQuery)
    wanted.check()
    begin, end = span(wanted.from_, wanted.to, now=time.time(), otherwise=float("inf"))
    end = float("inf") if wanted.to is None else end
    recent = request.app[RECENT]
    try:
        page = recent.page(lambda record: wanted.accepts(record, begin, end), limit=wanted.limit, before=wanted.before)
    except UnknownPlace as error:
        fits = "the `next` of an answer of this gateway, since it started"
        raise AdminRefused("before: is no place among these requests", field="before", allowed=fits) from error
    shown = [view(record) for record in page.records]
    return json_answer({"requests": shown, "next": page.next, "kept": len(recent), "since": recent.since})


async def get_request(request: web.Request) -> web.Response:
    """GET /admin/v1/requests/{id}."""
    shapes.query(request.query, NoQuery)
    record = request.app[RECENT].get(request.match_info["id"])
    if record is None:
        raise NotRemembered("no request of this id is remembered, or not any more", field="id")
    return json_answer(view(record))
