"""GET /metrics on aiohttp: the Prometheus page, with the engine's snapshot if it gives one in time."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from engine.errors import EngineUnavailable
from gateway.admin import live
from gateway.keys import BACKEND, DRAIN, EXCHANGES, METRICS, POLICIES, SHARING

PAGE_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def add_routes(app: web.Application) -> None:
    """Put the endpoint on the admin application."""
    app.router.add_get("/metrics", metrics_page)


async def metrics_page(request: web.Request) -> web.Response:
    """GET /metrics."""
    return web.Response(body=await page_of(request.app), headers={"Content-Type": PAGE_TYPE})


async def page_of(app: web.Application) -> bytes:
    """Return the page of an operators' application."""
    backend = app[BACKEND]
    try:
        stats = await asyncio.wait_for(backend.stats(), live.STATS_PATIENCE_S)
    except (EngineUnavailable, TimeoutError):
        stats = None
    restarts = backend.restarts if EXCHANGES in app else None
    app[METRICS].fleet.draining = DRAIN in app and app[DRAIN].draining
    return app[METRICS].exposition(stats, restarts, degraded=degraded(app), card=backend.card)


def degraded(app: web.Application) -> str | None:
    """Say why this gateway goes by what it knows alone, if it does."""
    return app[POLICIES].state.degraded or (app[SHARING].degraded if SHARING in app else None)
