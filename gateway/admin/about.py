"""What this gateway is and which words its answers use, on aiohttp: what a page needs before it shows anything."""

from __future__ import annotations

import importlib.metadata
from functools import cache

from aiohttp import web

from engine.messages import ModelCard
from gateway.admin import shapes
from gateway.admin.answers import json_answer, told
from gateway.admin.queries import APIS, NoQuery
from gateway.keys import BACKEND, KEYRING, POLICIES, PRICES, RELAY, TIMELINE
from gateway.miss import REASONS
from gateway.relay.upstream import BUNDLED
from prefix_store.store import Json


def add_routes(app: web.Application) -> None:
    """Put the endpoint on the admin application."""
    app.router.add_get("/admin/v1/about", told(about))


async def about(request: web.Request) -> web.Response:
    """GET /admin/v1/about."""
    shapes.query(request.query, NoQuery)
    app = request.app
    backend, keyring, fleet = app[BACKEND], app[KEYRING], app[RELAY].fleet
    classes = app[POLICIES].classes.lengths_s
    return json_answer(
        {
            "version": version(),
            "started_at": app[TIMELINE].started_at,
            "model": backend.model or None,
            "detail": backend.detail,
            "card": None if backend.card is None else _card(backend.card),
            "tenants": list(keyring.tenants),
            "keys": sorted(keyring.ids),
            "models": sorted(fleet.models | ({backend.model} if backend.model else set())),
            "upstreams": [*([backend.name] if backend.model else []), *sorted(fleet.replicas.keys() - {BUNDLED})],
            "apis": list(APIS),
            "classes": [{"class": name, "ttl_s": ttl_s} for name, ttl_s in classes.items()],
            "reasons": list(REASONS),
            "currency": app[PRICES].currency,
        }
    )


@cache
def version() -> str | None:
    """Return the installed version, None where the program only lies there."""
    try:
        return importlib.metadata.version("keepwarm")
    except importlib.metadata.PackageNotFoundError:
        return None


def _card(card: ModelCard) -> Json:
    return {
        "max_model_len": card.max_model_len,
        "block_tokens": card.block_tokens,
        "blocks": card.blocks,
        "kv_bytes": card.kv_bytes,
        "kv_bytes_per_token": card.kv_bytes_per_token,
        "dtype": card.dtype,
        "kv_dtype": card.kv_dtype,
        "device": card.device,
    }
