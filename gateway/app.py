"""The two applications: what clients reach and what operators reach, over one house.

Owns their addresses, and start and stop of what the house has. Answers in flight get `--drain` to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.admin import about, api, events, live, requests, scrape, upstreams
from gateway.admin.guard import guards, harden
from gateway.admin.scrape import degraded
from gateway.api import anthropic_http, models_http, openai_http, openapi_http, responses_http
from gateway.api.relay_http import relayed
from gateway.api.responses_store import ResponseStore
from gateway.auth import keys_required
from gateway.cors import preflights, reveals
from gateway.dashboard import pages
from gateway.house import House, kept_up
from gateway.keys import (
    ADVICE,
    BACKEND,
    DRAIN,
    EXCHANGES,
    KEYRING,
    LEDGER,
    LIVE,
    METRICS,
    POLICIES,
    PRICES,
    RECALL,
    RECENT,
    RELAY,
    RELOADS,
    RENDERER,
    SETTINGS,
    SHARING,
    TALLY,
    TIMELINE,
)
from gateway.middleware import account, envelop, identify, write_request_id
from gateway.workers import private
from prefix_store.store import Json

log = structlog.get_logger("gateway")


def build_serving_app(house: House) -> web.Application:
    """Build the application that clients reach. It starts and stops the engine."""

    async def engine_room(_: web.Application) -> AsyncIterator[None]:
        await house.backend.start()
        await house.relay.start()
        async with kept_up(house):
            yield
        await house.relay.stop()
        await house.backend.stop()
        await house.policies.state.close()
        await house.ledger.store.close()
        if house.traces is not None:
            await asyncio.to_thread(house.traces.close)
        house.tokenised.close()
        if house.renderer is not None:
            house.renderer.close()

    async def wind_down(_: web.Application) -> None:
        await house.drain.out(house.settings.drain)
        await house.relay.stop()  # whoever is left is told so
        await house.backend.stop()

    origins = house.settings.cors_origins
    app = web.Application(
        middlewares=[identify, account, envelop, preflights(origins), keys_required(house.keyring)],
        client_max_size=house.settings.max_body,
    )
    _furnish(app, house)
    app.cleanup_ctx.append(engine_room)
    app.on_shutdown.append(wind_down)
    app.on_response_prepare.append(reveals(origins))
    app[responses_http.RESPONSES] = ResponseStore()
    _add_apis(app.router)
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/openapi.json", openapi_http.describe)
    return app


def _add_apis(router: web.UrlDispatcher) -> None:
    """Add every address of the APIs that are spoken."""
    router.add_post("/v1/chat/completions", relayed("chat", openai_http.chat_completions))
    router.add_post("/v1/completions", relayed("completions", openai_http.completions))
    router.add_post("/v1/responses", relayed("responses", responses_http.responses))
    router.add_post("/v1/responses/input_tokens", relayed("input_tokens", responses_http.input_tokens))
    router.add_get("/v1/responses/{id}", responses_http.retrieve)
    router.add_delete("/v1/responses/{id}", responses_http.delete)
    router.add_post("/v1/messages", relayed("messages", anthropic_http.messages))
    router.add_post("/v1/messages/count_tokens", relayed("count_tokens", anthropic_http.count_tokens))
    router.add_get("/v1/models", models_http.models)
    router.add_get("/v1/models/{id:.+}", models_http.model)


def build_admin_app(house: House) -> web.Application:
    """Build the application that operators reach."""
    app = _operators_app(house, [identify, account, envelop, *guards(house.settings.admin_key)])
    app.on_response_prepare.append(harden)
    pages.add_routes(app)
    return app


def build_worker_app(house: House) -> web.Application:
    """Build what one of several workers answers its parent, who stands at the door, counts and shows the page."""
    app = _operators_app(house, [identify, envelop])
    private.add_routes(app)
    return app


def _operators_app(house: House, middlewares: Sequence[Middleware]) -> web.Application:
    """Build the operators' side without its door."""

    async def pulse(_: web.Application) -> AsyncIterator[None]:
        async with house.hub.pulsing(tell):
            yield

    async def tell() -> Json:
        await house.timeline.look()  # what other gateways have done
        return await live.state(house.backend, house.policies.state)

    async def end_streams(_: web.Application) -> None:
        house.hub.close()

    app = web.Application(middlewares=middlewares, client_max_size=house.settings.max_body)
    _furnish(app, house)
    app.cleanup_ctx.append(pulse)
    app.on_shutdown.append(end_streams)
    for room in (scrape, api, requests, live, events, about, upstreams):
        room.add_routes(app)
    return app


def _furnish(app: web.Application, house: House) -> None:
    app[SETTINGS] = house.settings
    app[BACKEND] = house.backend
    if house.exchanges is not None:
        app[EXCHANGES] = house.exchanges
    app[METRICS] = house.metrics
    app[POLICIES] = house.policies
    app[TALLY] = house.tally
    app[KEYRING] = house.keyring
    app[RECALL] = house.recall
    app[RECENT] = house.recent
    app[LIVE] = house.hub
    app[TIMELINE] = house.timeline
    app[LEDGER] = house.ledger
    app[PRICES] = house.prices
    app[ADVICE] = house.office
    if house.renderer is not None:
        app[RENDERER] = house.renderer
    app[DRAIN] = house.drain
    app[RELOADS] = house.reloads
    app[RELAY] = house.relay
    if house.sharing is not None:
        app[SHARING] = house.sharing
    app.on_response_prepare.append(write_request_id)


async def health(_: web.Request) -> web.Response:
    """GET /health: the gateway itself answers."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """GET /ready: whether a request would be served now.

    A gateway with an engine of its own waits for its first start; once that has been there, a well upstream is enough.
    """
    backend, draining = request.app[BACKEND], request.app[DRAIN].draining
    well = [name for name, one in request.app[RELAY].fleet.replicas.items() if one.well]
    started = EXCHANGES not in request.app or backend.restarts > 0
    is_ready = not draining and (backend.card is not None or (started and bool(well)))
    return web.json_response(
        {
            "ready": is_ready,
            "model": backend.model or None,
            "detail": "The gateway is stopping." if draining else backend.detail,
            "upstreams": well,
            "restarts": backend.restarts,
            "state": degraded(request.app) or "ok",
        },
        status=200 if is_ready else 503,
        headers={} if is_ready else {"Retry-After": "1"},
    )
