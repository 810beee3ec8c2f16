"""What browsers ask before they let a page call the gateway.

Owns the list of allowed origins. Rule: a preflight needs no key and is answered before anyone is asked for one; an
origin that is not listed gets no headers, so its page reads nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

METHODS: Final = "GET, POST, DELETE, OPTIONS"
EXPOSED: Final = "x-request-id, request-id, retry-after"
REMEMBERED_S: Final = 600

Signal = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


def preflights(origins: frozenset[str]) -> Middleware:
    """Make a middleware that answers preflights for `origins`; `*` stands for every one."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return await handler(request)
        if not _allows(origins, request.headers.get("Origin")):
            raise web.HTTPForbidden(text="This origin is not among cors_origins.")
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": METHODS,
                "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "*"),
                "Access-Control-Max-Age": str(REMEMBERED_S),
            },
        )

    return answer


def reveals(origins: frozenset[str]) -> Signal:
    """Make a signal that lets pages of `origins` read answers, streams too."""

    async def reveal(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and _allows(origins, origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED
            response.headers.add("Vary", "Origin")

    return reveal


def _allows(origins: frozenset[str], origin: str | None) -> bool:
    return origin is not None and ("*" in origins or origin in origins)
