"""The house, wired once: settings in, two applications on two listeners out.

Owns start and stop of everything. Nothing is built at import and nothing is global. Order of stopping: no new
connections, then answers in flight get `GRACE_S` to end, then the engine ends and whoever is left is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog
from aiohttp import web

from engine.errors import EngineUnavailable
from gateway.admin import about, api, events, live, requests
from gateway.admin.guard import guards, harden
from gateway.admin.view import view
from gateway.advice.advise import Pool
from gateway.advice.office import Office
from gateway.advice.trace import Group
from gateway.advice.traffic import Traffic
from gateway.api import anthropic_http, models_http, openai_http, openapi_http, responses_http
from gateway.api.responses_store import ResponseStore
from gateway.auth import keys_required
from gateway.backends import Backend
from gateway.config import Settings
from gateway.cors import preflights, reveals
from gateway.dashboard import pages
from gateway.diagnosis import Diagnosis
from gateway.errors import ConfigError
from gateway.exchange import Exchanges
from gateway.keyring import Keyring
from gateway.keys import (
    ADVICE,
    BACKEND,
    EXCHANGES,
    KEYRING,
    LEDGER,
    LIVE,
    METRICS,
    POLICIES,
    PRICES,
    RECALL,
    RECENT,
    RENDERER,
    SETTINGS,
    TALLY,
    TIMELINE,
)
from gateway.ledger import Ledger
from gateway.live import Hub
from gateway.metrics import Metrics
from gateway.middleware import account, envelop, identify, write_request_id
from gateway.money import Prices
from gateway.policies import Policies
from gateway.prompt import Renderer
from gateway.recall import Recall
from gateway.recent import Recent
from gateway.tally import Tally
from gateway.timeline import Timeline
from prefix_store.classes import CLASSES, RetentionClasses
from prefix_store.ledger import LedgerStore
from prefix_store.store import Json, SharedState

GRACE_S = 10.0  # for answers in flight when the gateway is told to stop
LAST_WORDS_S = 2.0  # for telling those that are left

log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What both applications share."""

    settings: Settings
    backend: Backend
    renderer: Renderer
    exchanges: Exchanges
    metrics: Metrics
    policies: Policies
    keyring: Keyring
    tally: Tally
    ledger: Ledger
    prices: Prices
    recall: Recall
    recent: Recent
    hub: Hub
    timeline: Timeline
    traffic: Traffic
    office: Office


def build_house(
    settings: Settings,
    backend: Backend,
    renderer: Renderer,
    state: SharedState,
    *,
    ledger: LedgerStore,
    prices: Prices | None = None,
    classes: RetentionClasses = CLASSES,
    keyring: Keyring | None = None,
    secret: bytes | None = None,
) -> House:
    """Wire the rooms. Starts nothing. Without a `secret`, what is remembered of requests ends with the process."""
    metrics = Metrics(backend.model)
    policies = Policies(state, backend, classes=classes, now=time.time)
    keyring = keyring or Keyring(())
    tally = Tally(state, keyring.tenants)
    book = Ledger(ledger, policies, backend)
    secret = secret or secrets.token_bytes(32)
    recall = Recall(state, secret=secret)
    traffic, office = _advice(settings, backend, policies, secret)
    diagnosis = Diagnosis(recall, rendering=renderer.identity)
    recent, hub = Recent(most=settings.recent_requests), Hub(view)
    return House(
        settings=settings,
        backend=backend,
        renderer=renderer,
        exchanges=Exchanges(
            backend, renderer, metrics, policies, diagnosis, witnesses=(metrics, tally, book, recent, hub, traffic)
        ),
        metrics=metrics,
        policies=policies,
        keyring=keyring,
        tally=tally,
        ledger=book,
        prices=prices or Prices(),
        recall=recall,
        recent=recent,
        hub=hub,
        timeline=Timeline(state, hub, now=time.time),
        traffic=traffic,
        office=office,
    )


def _advice(settings: Settings, backend: Backend, policies: Policies, secret: bytes) -> tuple[Traffic, Office]:
    def pool() -> Pool:
        card = backend.card
        if card is None:
            return Pool()
        return Pool(blocks=card.blocks, block_tokens=card.block_tokens, bytes_per_token=card.kv_bytes_per_token)

    def kept(group: Group) -> tuple[str | None, float]:
        policy = policies.known.govern(model=group.model, tenant=group.tenant)
        return policy.default_ttl, policy.default_s or 0.0

    traffic = Traffic(secret=secret, block_tokens=lambda: pool().block_tokens, ttl=kept, file=settings.traffic_log)
    return traffic, Office(traffic, ttl_s=lambda group: kept(group)[1], pool=pool)


def build_serving_app(house: House) -> web.Application:
    """Build the application that clients reach. It starts and stops the engine."""

    async def engine_room(_: web.Application) -> AsyncIterator[None]:
        await house.backend.start()
        async with _kept_up(house):
            yield
        await house.backend.stop()
        await house.policies.state.close()
        await house.ledger.store.close()
        house.renderer.close()

    async def wind_down(_: web.Application) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(house.exchanges.drained(), GRACE_S)
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


@contextlib.asynccontextmanager
async def _kept_up(house: House) -> AsyncIterator[None]:
    """Follow the policies, and hand over now and then what was counted and remembered."""
    async with (
        house.policies.following(),
        house.timeline.following(house.backend),
        house.tally.flushing(),
        house.ledger.flushing(),
        house.recall.flushing(),
        house.traffic.flushing(),
    ):
        yield


def _add_apis(router: web.UrlDispatcher) -> None:
    """Add every address of the APIs that are spoken."""
    router.add_post("/v1/chat/completions", openai_http.chat_completions)
    router.add_post("/v1/completions", openai_http.completions)
    router.add_post("/v1/responses", responses_http.responses)
    router.add_post("/v1/responses/input_tokens", responses_http.input_tokens)
    router.add_get("/v1/responses/{id}", responses_http.retrieve)
    router.add_delete("/v1/responses/{id}", responses_http.delete)
    router.add_post("/v1/messages", anthropic_http.messages)
    router.add_post("/v1/messages/count_tokens", anthropic_http.count_tokens)
    router.add_get("/v1/models", models_http.models)
    router.add_get("/v1/models/{id:.+}", models_http.model)


def build_admin_app(house: House) -> web.Application:
    """Build the application that operators reach."""

    async def pulse(_: web.Application) -> AsyncIterator[None]:
        async with house.hub.pulsing(tell):
            yield

    async def tell() -> Json:
        await house.timeline.look()  # what other gateways have done
        return await live.state(house.backend, house.policies.state)

    async def end_streams(_: web.Application) -> None:
        house.hub.close()

    app = web.Application(
        middlewares=[identify, account, envelop, *guards(house.settings.admin_key)],
        client_max_size=house.settings.max_body,
    )
    _furnish(app, house)
    app.cleanup_ctx.append(pulse)
    app.on_shutdown.append(end_streams)
    app.on_response_prepare.append(harden)
    app.router.add_get("/metrics", metrics_page)
    for room in (api, requests, live, events, about, pages):
        room.add_routes(app)
    return app


def _furnish(app: web.Application, house: House) -> None:
    app[SETTINGS] = house.settings
    app[BACKEND] = house.backend
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
    app[RENDERER] = house.renderer
    app.on_response_prepare.append(write_request_id)


async def health(_: web.Request) -> web.Response:
    """GET /health: the gateway itself answers."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """GET /ready: whether a request would be served now."""
    backend = request.app[BACKEND]
    is_ready = backend.card is not None
    return web.json_response(
        {
            "ready": is_ready,
            "model": backend.model,
            "detail": backend.detail,
            "restarts": backend.restarts,
            "state": request.app[POLICIES].state.degraded or "ok",
        },
        status=200 if is_ready else 503,
        headers={} if is_ready else {"Retry-After": "1"},
    )


async def metrics_page(request: web.Request) -> web.Response:
    """GET /metrics: the Prometheus page, with the engine's snapshot if it gives one in time."""
    backend = request.app[BACKEND]
    try:
        stats = await asyncio.wait_for(backend.stats(), live.STATS_PATIENCE_S)
    except (EngineUnavailable, TimeoutError):
        stats = None
    page = request.app[METRICS].exposition(stats, backend.restarts, degraded=request.app[POLICIES].state.degraded)
    return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Take a port before anything else is done, so that one in use is said at once. Listens to nothing yet."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"{host} is no address of this machine: {error.strerror}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error, f"; choose another with {flag}") from error
    return listener


def _taken(host: str, port: int, error: OSError, advice: str = "") -> ConfigError:
    reason = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be taken ({error.strerror})"
    return ConfigError(f"port {port} on {host} {reason}{advice}")


async def serve(house: House, serving: socket.socket, admin: socket.socket) -> None:
    """Serve until told to stop by SIGINT or SIGTERM. Raises ConfigError when the engine refuses the model."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with (
        _listening(build_admin_app(house), admin, "admin"),
        _listening(build_serving_app(house), serving, "serving"),
    ):
        stopped = asyncio.create_task(stop.wait())
        refused = asyncio.create_task(house.backend.refused())
        await asyncio.wait({stopped, refused}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping", in_flight_grace_s=GRACE_S)
        reason = refused.result() if refused.done() else None
        stopped.cancel()
        refused.cancel()
    if reason is not None:
        raise ConfigError(reason)


@contextlib.asynccontextmanager
async def _listening(app: web.Application, listener: socket.socket, name: str) -> AsyncIterator[None]:
    # handler_cancellation: a handler whose client has left is cancelled, which frees what it holds in the engine
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=LAST_WORDS_S)
    await runner.setup()
    host, port = listener.getsockname()[:2]
    try:
        try:
            await web.SockSite(runner, listener).start()
        except OSError as error:  # someone else began to listen since `bind`
            raise _taken(host, port, error) from error
        log.info("listening", side=name, host=host, port=port)
        yield
    finally:
        await runner.cleanup()
