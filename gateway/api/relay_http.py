"""Requests for models that upstreams serve, on aiohttp: the same addresses, the upstream's own answer.

Rule: a model's name decides who answers. Where no upstream serves it, the handler of the API itself does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final

import msgspec
from aiohttp import web

from gateway.api.http import body_of, parsed
from gateway.errors import BadRequest, Problem, UnknownModel
from gateway.keys import DRAIN, EXCHANGES, FAILURE, IDENTITY, RELAY, REQUEST_ID, ROUTE, STREAM
from gateway.relay.attempt import Attempt
from gateway.relay.call import Call, call_of
from gateway.relay.here import Here
from gateway.relay.upstream import Endpoint

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

UPSTREAM_HEADER: Final = "x-keepwarm-upstream"
SPLIT_INLINE_BYTES: Final = 1 << 20  # a millisecond, where only the outermost fields are told apart


def relayed(endpoint: Endpoint, handler: Handler) -> Handler:
    """Let upstreams answer for the models that they serve, and `handler` for every other."""

    @wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        request.app[DRAIN].admit()
        relay, engine = request.app[RELAY], EXCHANGES in request.app
        if engine and not relay.fleet.models:
            return await handler(request)
        identity = request[IDENTITY]

        def read(body: bytes) -> Call:
            return call_of(
                endpoint,
                body,
                call_id=request[REQUEST_ID],
                tenant=identity.tenant,
                key=identity.key_id,
                headers=request.headers,
            )

        call = await parsed(request, read, await body_of(request), inline_bytes=SPLIT_INLINE_BYTES)
        if call.model not in relay.fleet.models:
            if not engine:
                raise _unknown(call.model, relay.fleet.models)
            return await handler(request)
        async with relay.answer(call) as attempt:
            if isinstance(attempt, Here):
                request[ROUTE] = attempt
                return await handler(request)
            return await _passed_on(request, attempt)

    return answer


def _unknown(model: str, served: frozenset[str]) -> BadRequest:
    """Say that nobody here serves a model, and what is served."""
    if model:
        return UnknownModel(model, served)
    return BadRequest("Missing required field 'model'.", param="model", code="missing_field")


async def _passed_on(request: web.Request, attempt: Attempt) -> web.StreamResponse:
    headers = attempt.headers | {UPSTREAM_HEADER: attempt.replica.name}
    if attempt.body is not None:
        return web.Response(body=attempt.body, headers=headers)
    response = web.StreamResponse(headers=headers | {"X-Accel-Buffering": "no"})
    request[STREAM] = response
    if attempt.call.endpoint == "responses":
        request[FAILURE] = _responses_failure(attempt)
    await response.prepare(request)
    async for data in attempt.chunks():
        await response.write(data)
    if attempt.tap.error is None or attempt.tap.told:
        await response.write_eof()
    return response


def _responses_failure(attempt: Attempt) -> Callable[[Problem], bytes]:
    """Return what shapes an error as the Responses API's last event, numbered on from what the upstream sent."""

    def shaped(problem: Problem) -> bytes:
        told = {
            "type": "error",
            "code": problem.code,
            "message": problem.message,
            "param": problem.param,
            "sequence_number": attempt.tap.sequence + 1,
        }
        return b"event: error\ndata: " + msgspec.json.encode(told) + b"\n\n"

    return shaped
