"""The door of the serving side: whoever passes has an identity.

Owns the middleware that asks for a key; what a key means is `gateway.keyring`'s.
Rule: a handler finds `request[IDENTITY]` on every address but the open ones, and logs carry the key's id, never the
key.
"""

from __future__ import annotations

from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.keyring import Identity, Key, Keyring
from gateway.keys import IDENTITY, METRICS
from gateway.overhead import timed

__all__ = ["OPEN_PATHS", "Identity", "Key", "Keyring", "keys_required"]

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/openapi.json"})  # whoever probes or looks has no key


def keys_required(keyring: Keyring) -> Middleware:
    """Make a middleware that identifies every caller by this ring. It raises, so it stands inside `envelop`."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            with timed(request.app[METRICS], "auth"):
                identity = keyring.identify(request.headers.get("Authorization"), request.headers.get("x-api-key"))
            request[IDENTITY] = identity
            if identity.key_id is not None:  # until the request ends: aiohttp gives each one a context of its own
                structlog.contextvars.bind_contextvars(key_id=identity.key_id)
        return await handler(request)

    return check
