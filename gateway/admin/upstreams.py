"""The upstreams as operators see and steer them, on aiohttp: the list, drain and undrain, the file read again.

Rule: what is not known is null; no address is shown with credentials and no key at all.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from gateway.admin import shapes
from gateway.admin.answers import NotRemembered, json_answer, operator_of, told
from gateway.admin.queries import NoQuery
from gateway.admin.shapes import AdminRefused
from gateway.errors import ConfigError
from gateway.keys import RELAY, RELOADS
from gateway.relay.fleet import Fleet
from gateway.relay.replica import Replica
from gateway.relay.upstream import BUNDLED
from gateway.reload import APPLIES_TO
from prefix_store.store import Json

HEALTHY: Final = "A file that `keepwarm config check` takes."


def add_routes(app: web.Application) -> None:
    """Put the endpoints on the admin application."""
    app.router.add_get("/admin/v1/upstreams", told(upstreams))
    app.router.add_post("/admin/v1/upstreams/{name}/drain", told(drain))
    app.router.add_post("/admin/v1/upstreams/{name}/undrain", told(undrain))
    app.router.add_post("/admin/v1/reload", told(reload))


async def upstreams(request: web.Request) -> web.Response:
    """GET /admin/v1/upstreams: each with its state, load, residency and what it delivered."""
    shapes.query(request.query, NoQuery)
    return json_answer(listing(request.app[RELAY].fleet))


def listing(fleet: Fleet) -> Json:
    """Show every upstream, and how each model is routed."""
    shown = [_shown(fleet, one) for _, one in sorted(fleet.replicas.items())]
    routing = {model: fleet.router(model).policy for model in sorted(fleet.models)}
    return {"upstreams": shown, "routing": routing}


async def drain(request: web.Request) -> web.Response:
    """POST /admin/v1/upstreams/{name}/drain: it is sent nothing new, and what it answers ends."""
    return await _steered(request, draining=True)


async def undrain(request: web.Request) -> web.Response:
    """POST /admin/v1/upstreams/{name}/undrain: it is asked again."""
    return await _steered(request, draining=False)


async def reload(request: web.Request) -> web.Response:
    """POST /admin/v1/reload: read upstreams and routing from the file again."""
    shapes.query(request.query, NoQuery)
    try:
        changes, audited = await request.app[RELOADS].reload(by=operator_of(request))
    except ConfigError as error:
        raise AdminRefused(str(error), field="config", allowed=HEALTHY) from error
    return json_answer(msgspec.to_builtins(changes) | {"applies_to": APPLIES_TO, "audited": audited})


async def _steered(request: web.Request, *, draining: bool) -> web.Response:
    shapes.query(request.query, NoQuery)
    fleet, name, by = request.app[RELAY].fleet, request.match_info["name"], operator_of(request)
    replica = fleet.replicas.get(name)
    if replica is None:
        raise NotRemembered(f"There is no upstream {name!r}.", field="name")
    replica.draining = draining
    what = "upstream.drain" if draining else "upstream.undrain"
    audited = await request.app[RELOADS].audited(what, name, {"draining": draining}, by=by)
    return json_answer(_shown(fleet, replica) | {"audited": audited})


def _shown(fleet: Fleet, replica: Replica) -> Json:
    upstream, engine = replica.upstream, replica.engine is not None
    return {
        "name": replica.name,
        "kind": BUNDLED if engine else upstream.kind,
        "base_url": upstream.base_url or None,
        "models": list(upstream.models),
        "apis": list(upstream.endpoints),
        "weight": upstream.weight,
        "state": replica.state,
        "why": replica.health.why,
        "open": replica.open,
        "load_tokens": fleet.load_tokens(replica.name),
        "requests": replica.requests,
        "failures": replica.failures,
        "resident_tokens": fleet.resident_tokens(replica.name),
        "available_tokens": replica.available_tokens,
        "captured_tokens": replica.captured_tokens,
        "delivered_tokens": replica.read_tokens,
        "prompt_tokens": replica.prompt_tokens,
        "delivered_ratio": replica.read_tokens / replica.prompt_tokens if replica.prompt_tokens else None,
    }
