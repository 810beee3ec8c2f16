"""The operators' side of a gateway with several workers, on aiohttp: every answer is that of all of them.

Owns nothing. What each worker has of its own is put together here; what lies in the state or the ledger that all share,
any one worker answers, once the others have handed over what they hold.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
from aiohttp import web

from gateway.admin import shapes
from gateway.admin.answers import json_answer, operator_of, told
from gateway.admin.guard import guards, harden
from gateway.admin.live import HELLO
from gateway.admin.queries import EventsQuery, NoQuery, RequestsQuery, span
from gateway.admin.scrape import PAGE_TYPE
from gateway.admin.shapes import AdminRefused
from gateway.admin.upstreams import HEALTHY
from gateway.dashboard import pages
from gateway.errors import ConfigError
from gateway.keys import METRICS, REQUEST_ID, STREAM
from gateway.live import event
from gateway.middleware import REQUEST_ID_HEADER, account, envelop, identify, write_request_id
from gateway.reload import APPLIES_TO
from gateway.workers import private, views
from gateway.workers.link import Answer
from gateway.workers.room import ROOM, Room

API: Final = "/admin/v1"
SENT: Final = ("Accept", "Content-Type", "X-Operator")
RETURNED: Final = ("Content-Type", "Content-Disposition", "Retry-After", "Allow")
COUNTED: Final = ("usage", "fleet", "stats")  # what workers hand over now and then


def build_front(room: Room) -> web.Application:
    """Build the application that operators reach."""
    settings = room.settings
    app = web.Application(
        middlewares=[identify, account, envelop, *guards(settings.admin_key)], client_max_size=settings.max_body
    )
    app[ROOM], app[METRICS] = room, room.metrics
    app.on_response_prepare.append(write_request_id)
    app.on_response_prepare.append(harden)
    app.on_shutdown.append(_end_streams)
    app.router.add_get("/metrics", metrics_page)
    app.router.add_get(f"{API}/workers", told(workers))
    app.router.add_get(f"{API}/requests", told(list_requests))
    app.router.add_get(f"{API}/requests/{{id}}", told(get_request))
    app.router.add_get(f"{API}/live", told(live), allow_head=False)
    app.router.add_get(f"{API}/events", told(list_events))
    app.router.add_get(f"{API}/about", told(about))
    app.router.add_get(f"{API}/upstreams", told(upstreams))
    app.router.add_post(f"{API}/upstreams/{{name}}/{{what:drain|undrain}}", told(steer))
    app.router.add_post(f"{API}/reload", told(reload))
    for name in COUNTED:
        app.router.add_get(f"{API}/{name}", told(counted))
    app.router.add_route("*", f"{API}/{{path:.+}}", told(others))
    pages.add_routes(app)
    return app


async def _end_streams(app: web.Application) -> None:
    app[ROOM].hub.close()


async def metrics_page(request: web.Request) -> web.Response:
    """GET /metrics: the page of all."""
    room = request.app[ROOM]
    await room.crew.read()
    page = await asyncio.to_thread(room.crew.pages.merged, room.own_page())
    return web.Response(body=page, headers={"Content-Type": PAGE_TYPE})


async def workers(request: web.Request) -> web.Response:
    """GET /admin/v1/workers: each with its process."""
    shapes.query(request.query, NoQuery)
    shown = [
        {
            "number": one.number,
            "state": one.state,
            "pid": None if one.life is None else one.life.process.pid,
            "restarts": one.restarts,
        }
        for one in request.app[ROOM].crew.workers
    ]
    return json_answer({"workers": shown})


async def list_requests(request: web.Request) -> web.Response:
    """GET /admin/v1/requests: the latest of all workers first."""
    wanted = shapes.query(request.query, RequestsQuery)
    answers = await request.app[ROOM].crew.every("GET", _with_query(private.REQUESTS, request))
    refused = next((answer for answer in answers if answer.status != 200), None)  # noqa: PLR2004 - none refuses alone
    if refused is not None:
        return _passed(refused)
    parts = [answer.json() for answer in answers]
    if wanted.before is not None and all(part["from"] is None for part in parts):
        fits = "the `next` of an answer of this gateway, since it started"
        raise AdminRefused("before: is no place among these requests", field="before", allowed=fits)
    return json_answer(views.requests(parts, wanted.limit))


async def get_request(request: web.Request) -> web.Response:
    """GET /admin/v1/requests/{id}: the latest where several had the id."""
    answers = await request.app[ROOM].crew.every("GET", request.path_qs)
    found = [answer for answer in answers if answer.status == 200]  # noqa: PLR2004 - it is there
    return _passed(max(found, key=lambda answer: answer.json()["at"], default=answers[0]))


async def live(request: web.Request) -> web.StreamResponse:
    """GET /admin/v1/live: `request`, `state`, `change` and `lost` of all workers."""
    shapes.query(request.query, NoQuery)
    room = request.app[ROOM]
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    async with room.streams.open():
        with room.hub.listen() as listener:
            request[STREAM] = response
            await response.prepare(request)
            state = room.streams.state
            await response.write(HELLO if state is None else HELLO + event("state", msgspec.Raw(state)))
            async for data in listener.events(room.settings.stream_ping):
                await response.write(data)
    await response.write_eof()
    return response


async def list_events(request: web.Request) -> web.Response:
    """GET /admin/v1/events?from&to: oldest first."""
    wanted, room = shapes.query(request.query, EventsQuery), request.app[ROOM]
    begin, end = span(wanted.from_, wanted.to, now=time.time())
    end = float("inf") if wanted.to is None else end
    answers = await room.crew.every("GET", request.path_qs)
    failed = next((answer for answer in answers if answer.status != 200), None)  # noqa: PLR2004 - they share a store
    if failed is not None:
        return _passed(failed)
    own = [msgspec.to_builtins(one) for one in room.seen if begin <= one.at < end]
    return json_answer(views.happenings([answer.json() for answer in answers], own))


async def about(request: web.Request) -> web.Response:
    """GET /admin/v1/about: what every worker says, and when the parent started."""
    answer = await _asked(request)
    if answer.status != 200:  # noqa: PLR2004 - refused
        return _passed(answer)
    return json_answer(answer.json() | {"started_at": request.app[ROOM].started_at})


async def upstreams(request: web.Request) -> web.Response:
    """GET /admin/v1/upstreams: each as all workers see it."""
    shapes.query(request.query, NoQuery)
    crew = request.app[ROOM].crew
    await crew.read()
    return json_answer(crew.upstreams.merged())


async def steer(request: web.Request) -> web.Response:
    """POST /admin/v1/upstreams/{name}/drain and undrain: every worker does it, and one of them audits it."""
    crew, name = request.app[ROOM].crew, request.match_info["name"]
    answer = await _asked(request)
    if answer.status != 200:  # noqa: PLR2004 - refused
        return _passed(answer)
    await crew.steer(name, draining=request.match_info["what"] == "drain")
    await crew.read()
    shown = {one["name"]: one for one in crew.upstreams.merged()["upstreams"]}
    return json_answer(answer.json() | shown.get(name, {}))


async def reload(request: web.Request) -> web.Response:
    """POST /admin/v1/reload: read the file once, for all workers."""
    shapes.query(request.query, NoQuery)
    try:
        changes = await request.app[ROOM].reload(by=operator_of(request))
    except ConfigError as error:
        raise AdminRefused(str(error), field="config", allowed=HEALTHY) from error
    return json_answer(changes | {"applies_to": APPLIES_TO})


async def counted(request: web.Request) -> web.Response:
    """GET what is summed from all: every worker hands over what it holds, then one answers."""
    await request.app[ROOM].crew.every("POST", private.FLUSH)
    return _passed(await _asked(request))


async def others(request: web.Request) -> web.Response:
    """Let one worker answer; after a change all of them look at the state that they share."""
    answer = await _asked(request)
    if request.method not in {"GET", "HEAD"}:
        await request.app[ROOM].crew.tell(private.LOOK)
    return _passed(answer)


async def _asked(request: web.Request) -> Answer:
    headers = {name: request.headers[name] for name in SENT if name in request.headers}
    headers[REQUEST_ID_HEADER] = request[REQUEST_ID]
    body = await request.read()
    return await request.app[ROOM].crew.any(request.method, request.path_qs, body=body, headers=headers)


def _with_query(path: str, request: web.Request) -> str:
    return f"{path}?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else path


def _passed(answer: Answer) -> web.Response:
    headers = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
