"""What a worker answers its parent alone, on a Unix socket that nobody else can open.

Owns nothing. Rules: what is done here is not audited and not counted as an answer; the parent sees to the first, and to
who may ask.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from gateway.admin import shapes
from gateway.admin.answers import NotRemembered, json_answer, operator_of, told
from gateway.admin.queries import RequestsQuery, span
from gateway.admin.scrape import page_of
from gateway.admin.shapes import AdminRefused
from gateway.admin.upstreams import listing
from gateway.admin.view import view
from gateway.errors import ConfigError
from gateway.keys import LEDGER, POLICIES, RECENT, RELAY, RELOADS, TALLY, TIMELINE
from gateway.recent import UnknownPlace
from gateway.workers import views

BASE: Final = "/worker/v1"
WORD: Final = f"{BASE}/word"
FLUSH: Final = f"{BASE}/flush"
LOOK: Final = f"{BASE}/look"
REQUESTS: Final = f"{BASE}/requests"
RELOAD: Final = f"{BASE}/reload"
STEER: Final = f"{BASE}/upstreams"
BACKLOG: Final = 128


@contextlib.contextmanager
def listener(path: Path) -> Iterator[socket.socket]:
    """Give a socket that listens at `path`, for its owner alone; this process's copy closes with the block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        before = os.umask(0o177)
        try:
            made.bind(str(path))
        except OSError as error:
            raise ConfigError(f"the workers' socket {path} cannot be made ({error}); set TMPDIR to another") from error
        finally:
            os.umask(before)
        made.listen(BACKLOG)
        yield made


def add_routes(app: web.Application) -> None:
    """Put the parent's addresses on a worker's application."""
    app.router.add_get(WORD, word)
    app.router.add_post(FLUSH, told(flush))
    app.router.add_post(LOOK, told(look))
    app.router.add_get(REQUESTS, told(requests))
    app.router.add_post(RELOAD, told(reload))
    app.router.add_post(f"{STEER}/{{name}}/{{what:drain|undrain}}", told(steer))


async def word(request: web.Request) -> web.Response:
    """GET word: all that is counted here, and what upstreams are like from here."""
    page = await page_of(request.app)
    return json_answer({"metrics": page.decode(), "upstreams": listing(request.app[RELAY].fleet)})


async def flush(request: web.Request) -> web.Response:
    """POST flush: hand over what was counted."""
    await request.app[LEDGER].flush()
    await request.app[TALLY].flush()
    return json_answer({})


async def look(request: web.Request) -> web.Response:
    """POST look: read the shared state, which another worker may have changed."""
    await request.app[POLICIES].state.read()
    await request.app[TIMELINE].look()
    return json_answer({})


async def requests(request: web.Request) -> web.Response:
    """GET requests: as operators ask for them, and each with its place; `before` holds a place for every worker."""
    wanted = shapes.query(request.query, RequestsQuery)
    wanted.check()
    begin, end = span(wanted.from_, wanted.to, now=time.time(), otherwise=float("inf"))
    end = float("inf") if wanted.to is None else end
    recent = request.app[RECENT]
    try:
        known = None if wanted.before is None else views.places(wanted.before)
        border = recent.top if known is None else known.get(recent.life)
        if border is None:  # all that is here is younger than that answer
            return json_answer(_part([], [], more=False, border=None, recent_kept=len(recent), since=recent.since))
        page = recent.page(lambda one: wanted.accepts(one, begin, end), limit=wanted.limit, before=border)
    except (UnknownPlace, ValueError) as error:
        fits = "the `next` of an answer of this gateway, since it started"
        raise AdminRefused("before: is no place among these requests", field="before", allowed=fits) from error
    shown = [view(record) for record in page.records]
    more = page.next is not None
    return json_answer(
        _part(shown, list(page.places), more=more, border=border, recent_kept=len(recent), since=recent.since)
    )


def _part(
    shown: list[dict[str, object]],
    places: list[str],
    *,
    more: bool,
    border: str | None,
    recent_kept: int,
    since: float | None,
) -> dict[str, object]:
    return {
        "requests": shown,
        "places": places,
        "more": more,
        "from": border,
        "kept": recent_kept,
        "since": since,
    }


async def reload(request: web.Request) -> web.Response:
    """POST reload: go on with the upstreams and the routing of the file that is sent."""
    audited = request.query.get("audit") == "on"
    try:
        text = (await request.read()).decode()
        changes, done = await request.app[RELOADS].reload(by=operator_of(request), text=text, audit=audited)
    except ConfigError as error:
        raise AdminRefused(str(error), field="config") from error
    return json_answer(msgspec.to_builtins(changes) | {"audited": done})


async def steer(request: web.Request) -> web.Response:
    """POST upstreams/{name}/drain or undrain."""
    replica = request.app[RELAY].fleet.replicas.get(request.match_info["name"])
    if replica is None:
        raise NotRemembered("There is no such upstream.", field="name")
    replica.draining = request.match_info["what"] == "drain"
    return json_answer({})
