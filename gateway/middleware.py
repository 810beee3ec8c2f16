"""What every request passes through: an id, the error envelope, the access log, the count.

This is the gateway's one root that catches everything: whatever a handler raises becomes an answer in the shape of the
API that was called, or, once a stream has begun, its last event. Rule: the log says who, what, when and how long, never
what was said; a client that left is not an error.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.api.envelopes import Envelope, envelope_of
from gateway.errors import CLIENT_LEFT, BadRequest, Problem, UpstreamError, problem_of, problem_of_status
from gateway.keys import FAILURE, METRICS, REQUEST_ID, STREAM

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("gateway")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID_HEADER: Final = "x-request-id"
_ACCEPTABLE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


async def write_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id on its response; a signal, so that streams have it too."""
    if REQUEST_ID in request:
        response.headers[REQUEST_ID_HEADER] = response.headers["request-id"] = request[REQUEST_ID]


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id: the client's own if it is short and plain."""
    offered = request.headers.get(REQUEST_ID_HEADER, "")
    request[REQUEST_ID] = offered if _ACCEPTABLE_ID.fullmatch(offered) else uuid.uuid4().hex
    with structlog.contextvars.bound_contextvars(request_id=request[REQUEST_ID]):
        return await handler(request)


@web.middleware
async def account(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Log and count the answer, whatever it is. Routes are ours, so odd paths make no new series."""
    began = time.monotonic()
    status = CLIENT_LEFT
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        resource = request.match_info.route.resource
        route = "unknown" if resource is None else resource.canonical
        request.app[METRICS].answered(route, request.method, status)
        log.info(
            "request",
            method=request.method,
            route=route,
            status=status,
            seconds=round(time.monotonic() - began, 4),
            peer=request.remote,
        )


@web.middleware
async def envelop(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn everything that was raised into an answer."""
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        allow = {"Allow": refusal.headers["Allow"]} if "Allow" in refusal.headers else {}
        return _answer(request, problem_of_status(refusal.status, _words(request, refusal)), allow)
    except (HttpProcessingError, web.RequestPayloadError):  # such as broken gzip
        problem = problem_of(BadRequest("The body could not be read in its content encoding.", code="invalid_body"))
        answer = _answer(request, problem, {})
        answer.force_close()  # aiohttp cannot find the next request behind such a body
        return answer
    except ConnectionError:
        log.info("client_left")
        raise asyncio.CancelledError from None
    except Exception as error:
        problem = problem_of(error)
        if problem.status == 500 and not isinstance(error, UpstreamError):  # noqa: PLR2004 - a bug of ours
            log.exception("bug")
        stream: web.StreamResponse | None = request.get(STREAM)
        if stream is None or not stream.prepared:
            return _answer(request, problem, {})
        log.warning("stream_failed", code=problem.code)
        await stream.write(_last_event(request, problem))
        await stream.write_eof()
        return stream


def _envelope(request: web.Request) -> Envelope:
    return envelope_of(request.path, request.headers)


def _last_event(request: web.Request, problem: Problem) -> bytes:
    """End a stream that has begun, in its API's own way."""
    failure = request.get(FAILURE)
    return failure(problem) if failure is not None else _envelope(request).event(problem, request[REQUEST_ID])


def _answer(request: web.Request, problem: Problem, headers: Mapping[str, str]) -> web.Response:
    extra = dict(headers)
    if problem.retry_after_s is not None:
        extra["Retry-After"] = str(problem.retry_after_s)
    if problem.status == 401:  # noqa: PLR2004 - the status that asks for a key
        extra["WWW-Authenticate"] = "Bearer"
    body = _envelope(request).body(problem, request[REQUEST_ID])
    return web.Response(body=body, status=problem.status, content_type="application/json", headers=extra)


def _words(request: web.Request, refusal: web.HTTPException) -> str:
    match refusal:
        case web.HTTPNotFound():
            return f"There is nothing at {request.method} {request.path}."
        case web.HTTPMethodNotAllowed(allowed_methods=allowed):
            return f"{request.method} is not allowed at {request.path}; use {', '.join(sorted(allowed))}."
        case _:
            return refusal.text or refusal.reason
