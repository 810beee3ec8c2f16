"""The OpenAPI document on aiohttp: of whatever routes the application has."""

from __future__ import annotations

from aiohttp import hdrs, web

from gateway.api import openapi
from gateway.api.http import json_response


async def describe(request: web.Request) -> web.Response:
    """GET /openapi.json: this description of every address."""
    return json_response(openapi.document(routes_of(request.app)))


def routes_of(app: web.Application) -> tuple[openapi.Route, ...]:
    """Return method, path and summary of each route; HEAD goes with every GET and is not told."""
    return tuple(
        (route.method, route.resource.canonical, _summary(route.handler.__doc__ or ""))
        for route in app.router.routes()
        if route.resource is not None and route.method != hdrs.METH_HEAD
    )


def _summary(docstring: str) -> str:
    """Return what a handler's docstring says of its address: all that stands behind `GET /x: ` in its first line."""
    line = docstring.partition("\n")[0].partition(": ")[2]
    return line[:1].upper() + line[1:]
