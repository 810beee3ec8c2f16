"""GET /admin/v1/advice on aiohttp.

Rule: advice is for a tenant and a model, as policies are; the page's other filters are taken and named as `ignored`.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from gateway.admin import shapes
from gateway.keys import ADVICE


class AdviceQuery(msgspec.Struct, frozen=True, kw_only=True, rename={"begin": "from"}):
    """Whose advice is wanted."""

    tenant: str | None = None
    model: str | None = None
    key: str | None = None
    api: str | None = None
    upstream: str | None = None
    begin: str | None = None
    to: str | None = None


async def advice(request: web.Request) -> web.Response:
    """GET /admin/v1/advice?tenant&model: what another TTL, capacity or order would have given, and what is wrong."""
    wanted = shapes.query(request.query, AdviceQuery)
    told = await request.app[ADVICE].told(wanted.tenant, wanted.model)
    ignored = [name for name in request.query if name not in {"tenant", "model"}]
    return web.json_response({**told, "ignored": ignored})
