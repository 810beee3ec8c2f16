"""What happens, as server-sent events on aiohttp; and the state that is told every two seconds.

Rule: a stream ends when its client leaves or the gateway stops, whichever comes first, and costs nothing afterwards.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
from aiohttp import web

from engine.errors import EngineUnavailable
from gateway.admin import shapes
from gateway.admin.answers import told
from gateway.admin.queries import NoQuery
from gateway.backends import Backend
from gateway.keys import BACKEND, LIVE, POLICIES, SETTINGS, STREAM, TIMELINE
from gateway.live import event
from prefix_store.store import Json, SharedState

STATS_PATIENCE_S: Final = 2.0  # a state waits no longer for the engine's snapshot
HELLO: Final = b": keepwarm\nretry: 2000\n\n"  # a browser that lost the stream comes back after two seconds


def add_routes(app: web.Application) -> None:
    """Put the endpoint on the admin application."""
    app.router.add_get("/admin/v1/live", told(live), allow_head=False)


async def live(request: web.Request) -> web.StreamResponse:
    """GET /admin/v1/live: `request`, `state`, `change` and `lost`."""
    shapes.query(request.query, NoQuery)
    app = request.app
    await app[TIMELINE].look(quietly=not app[LIVE].heard)
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    with app[LIVE].listen() as listener:
        request[STREAM] = response
        await response.prepare(request)
        await response.write(HELLO + event("state", await state(app[BACKEND], app[POLICIES].state)))
        async for data in listener.events(app[SETTINGS].stream_ping):
            await response.write(data)
    await response.write_eof()
    return response


async def state(backend: Backend, shared: SharedState) -> Json:
    """Say how engine and shared state are; the engine's numbers are null while it gives none."""
    try:
        stats = await asyncio.wait_for(backend.stats(), STATS_PATIENCE_S)
    except (EngineUnavailable, TimeoutError):
        stats = None
    return {
        "at": time.time(),
        "engine": None if stats is None else msgspec.structs.asdict(stats),
        "ready": backend.card is not None,
        "detail": backend.detail,
        "restarts": backend.restarts,
        "state": shared.degraded or "ok",
    }
