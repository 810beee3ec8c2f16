"""The door of the operators' side: which pages may write, by which names it is reached, who holds the key.

Owns the checks that stand before every handler of the admin listener. Rules: a web page of another origin changes
nothing here, key or not; without a key only this machine gets in, and a name that only pretends to be this machine
(DNS rebinding) does not; the page's own files hold no data and are open; the key travels in a header and nowhere else.
"""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.config import is_loopback
from gateway.errors import Forbidden, Unauthorized

OPEN_PATHS: Final = frozenset({"/"})
OPEN_PREFIX: Final = "/static/"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES: Final = frozenset({"same-origin", "none"})  # `none`: the person at the browser, not a page
API: Final = "/admin/v1/"


def guards(key: str | None) -> list[Middleware]:
    """Return the middlewares of the admin side, outermost first. They raise, so they stand inside `envelop`."""
    return [own_pages_write, named_as_loopback if key is None else key_required(key)]


@web.middleware
async def own_pages_write(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let no page of another origin change anything. A browser says where a page is from; a program says nothing."""
    if request.method not in READING:
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        foreign = origin is not None and (_authority(origin) or None) != request.headers.get("Host", "").lower()
        if foreign or (site is not None and site not in OWN_SITES):
            message = "A web page of another origin may not change anything here."
            raise Forbidden(message, param="Origin" if foreign else "Sec-Fetch-Site", code="cross_origin")
    return await handler(request)


@web.middleware
async def named_as_loopback(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let nobody in who reached this machine by a name that is not its own."""
    if not is_loopback(_host(request.headers.get("Host", ""))):
        message = (
            "Without an admin key this listener is reached as localhost, 127.0.0.1 or [::1] only. "
            "Set KEEPWARM_ADMIN_KEY to reach it by another name."
        )
        raise Forbidden(message, param="Host", code="host_not_allowed")
    return await handler(request)


def key_required(key: str) -> Middleware:
    """Make a middleware that lets only the holder of `key` pass, except to the page's own files."""
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not (is_open(request.path) or hmac.compare_digest(given, expected)):
            raise Unauthorized
        return await handler(request)

    return check


def is_open(path: str) -> bool:
    """Whether an address is part of the page, which holds no data."""
    return path in OPEN_PATHS or (path.startswith(OPEN_PREFIX) and ".." not in path)


async def harden(request: web.Request, response: web.StreamResponse) -> None:
    """Keep answers out of other pages' frames, scripts and caches; a signal, so that streams have it too."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if request.path.startswith(API):
        response.headers["Cache-Control"] = "no-store"


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
