"""The models that are served, in the shape of the API that the caller speaks."""

from __future__ import annotations

from aiohttp import web

from gateway.api import anthropic_models
from gateway.api.envelopes import speaks_anthropic
from gateway.api.http import json_response
from gateway.errors import UnknownModel
from gateway.keys import BACKEND, RELAY


async def models(request: web.Request) -> web.Response:
    """GET /v1/models: the models that are served."""
    if speaks_anthropic(request.path, request.headers):
        return json_response(anthropic_models.model_page(list(_served(request).items())))
    return web.json_response({"object": "list", "data": [_card(*one) for one in _served(request).items()]})


async def model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}: one model.

    Raises UnknownModel.
    """
    wanted, served = request.match_info["id"], _served(request)
    if wanted not in served:
        raise UnknownModel(wanted)
    if speaks_anthropic(request.path, request.headers):
        return json_response(anthropic_models.model_info(wanted, served[wanted]))
    return web.json_response(_card(wanted, served[wanted]))


def _served(request: web.Request) -> dict[str, int | None]:
    """Return each model's window in tokens, the engine's own first; None where nobody here knows it."""
    backend = request.app[BACKEND]
    served: dict[str, int | None] = {}
    if backend.model:
        served[backend.model] = None if backend.card is None else backend.card.max_model_len
    for name in sorted(request.app[RELAY].fleet.models):
        served.setdefault(name, None)
    return served


def _card(name: str, window: int | None) -> dict[str, object]:
    card: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "keepwarm"}
    return card if window is None else card | {"max_model_len": window}
