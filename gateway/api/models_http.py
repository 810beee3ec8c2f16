"""The models that are served, in the shape of the API that the caller speaks."""

from __future__ import annotations

from aiohttp import web

from gateway.api import anthropic_models
from gateway.api.envelopes import speaks_anthropic
from gateway.api.http import json_response
from gateway.errors import UnknownModel
from gateway.keys import BACKEND


async def models(request: web.Request) -> web.Response:
    """GET /v1/models: the models that are served."""
    if speaks_anthropic(request.path, request.headers):
        return json_response(anthropic_models.model_page([_served(request)]))
    return web.json_response({"object": "list", "data": [_card(request)]})


async def model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}: one model.

    Raises UnknownModel.
    """
    wanted = request.match_info["id"]
    if wanted != request.app[BACKEND].model:
        raise UnknownModel(wanted)
    if speaks_anthropic(request.path, request.headers):
        return json_response(anthropic_models.model_info(*_served(request)))
    return web.json_response(_card(request))


def _served(request: web.Request) -> tuple[str, int | None]:
    """Return the model's name and its window in tokens, None while the engine starts."""
    backend = request.app[BACKEND]
    return backend.model, None if backend.card is None else backend.card.max_model_len


def _card(request: web.Request) -> dict[str, object]:
    name, window = _served(request)
    card: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "keepwarm"}
    return card if window is None else card | {"max_model_len": window}
