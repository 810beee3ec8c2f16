"""OpenAI's Responses API on aiohttp: bytes in, bytes out.

Shapes are the business of `responses_request` and `responses_answers`, memory is the store's, the work the exchange's.
Rule: a response that is to be kept is kept before its end is sent, so that the client may go on from it at once; one
that failed or was left is not kept.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from gateway.api.http import body_of, called, parsed, stream
from gateway.api.responses_answers import Answer, Stream
from gateway.api.responses_request import ask_of, items_of, parse, parse_count
from gateway.api.responses_store import ResponseStore, Stored
from gateway.errors import BadRequest, NotStored
from gateway.events import Done, Event
from gateway.keys import BACKEND, EXCHANGES, FAILURE, IDENTITY

RESPONSES: Final = web.AppKey("responses", ResponseStore)


async def responses(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses: answer a conversation, and keep the answer for a later one to go on from."""
    body = await body_of(request)
    wanted = await parsed(request, parse, body)
    store, tenant = request.app[RESPONSES], request[IDENTITY].tenant
    earlier = store.earlier(tenant, wanted.previous_response_id, wanted.references, time.monotonic())
    ask = ask_of(wanted, f"resp_{uuid.uuid4().hex}", tenant=tenant, earlier=earlier)
    ask = called(request, ask, streamed=bool(wanted.stream))
    answer = Answer(wanted, ask.id, wall=time.time)

    def keep() -> bytes:
        whole = answer.body()
        if wanted.stores:
            outputs = answer.items()
            items = (*items_of(wanted, earlier), *outputs)
            size = earlier.size + len(body) + len(whole)
            store.put(tenant, ask.id, Stored(items=items, outputs=outputs, answer=whole, size=size), time.monotonic())
        return whole

    async with aclosing(request.app[EXCHANGES].answer(ask)) as events:
        if wanted.stream:
            shapes = Stream(answer)
            request[FAILURE] = shapes.failure
            return await stream(request, events, _keeping(shapes.shape, keep))
        async for event in events:
            answer.take(event)
    return web.Response(body=keep(), content_type="application/json")


def _keeping(shape: Callable[[Event], bytes], keep: Callable[[], bytes]) -> Callable[[Event], bytes]:
    """Shape events, and keep the response once its last one is shaped."""

    def shaped(event: Event) -> bytes:
        data = shape(event)
        if isinstance(event, Done):
            keep()
        return data

    return shaped


async def input_tokens(request: web.Request) -> web.Response:
    """POST /v1/responses/input_tokens: how many tokens the prompt has."""
    wanted = await parsed(request, parse_count, await body_of(request))
    if wanted.model is None:
        wanted = msgspec.structs.replace(wanted, model=request.app[BACKEND].model)
    tenant = request[IDENTITY].tenant
    earlier = request.app[RESPONSES].earlier(tenant, wanted.previous_response_id, wanted.references, time.monotonic())
    ask = ask_of(wanted, f"resp_{uuid.uuid4().hex}", tenant=tenant, earlier=earlier)
    count = await request.app[EXCHANGES].count(ask)
    return web.json_response({"object": "response.input_tokens", "input_tokens": count})


async def retrieve(request: web.Request) -> web.Response:
    """GET /v1/responses/{id}: a response that was kept."""
    if request.query.get("stream", "").lower() == "true":
        raise BadRequest("A kept response cannot be streamed again.", param="stream", code="unsupported_value")
    response_id = request.match_info["id"]
    stored = request.app[RESPONSES].get(request[IDENTITY].tenant, response_id, time.monotonic())
    if stored is None:
        raise _not_found(response_id)
    return web.Response(body=stored.answer, content_type="application/json")


async def delete(request: web.Request) -> web.Response:
    """DELETE /v1/responses/{id}: forget a response. What went on from it stays."""
    response_id = request.match_info["id"]
    if not request.app[RESPONSES].delete(request[IDENTITY].tenant, response_id):
        raise _not_found(response_id)
    return web.json_response({"id": response_id, "object": "response", "deleted": True})


def _not_found(response_id: str) -> NotStored:
    return NotStored(f"Response with id '{response_id}' not found.", param="id", code="response_not_found")
