"""What every API's handlers do with aiohttp: read a body, stream an answer. Knows no wire format.

Rules: nothing is sent before the answer begins, so whatever is refused is refused by status; only when nothing has
come for a while do comment lines go out, which keep the connection open. A body is read in any content encoding that
is listed, or refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

from aiohttp import web

from gateway.ask import Ask
from gateway.events import Event
from gateway.keys import IDENTITY, METRICS, ROUTE, SETTINGS, STREAM
from gateway.overhead import timed

T = TypeVar("T")

INLINE_BYTES: Final = 1 << 18  # some milliseconds of parsing
KNOWN_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate", "zstd"})  # what aiohttp decodes here
COMMENT: Final = b": keepwarm is still working\n\n"


async def body_of(request: web.Request) -> bytes:
    """Read the body, decoded. Raises the HTTP refusal for an unknown encoding or one that is too large."""
    if request.headers.get("Content-Encoding", "").strip().lower() not in KNOWN_ENCODINGS:
        raise web.HTTPUnsupportedMediaType(text="Send the body plain, or with Content-Encoding gzip, deflate or zstd.")
    limit = request.app[SETTINGS].max_body
    if (request.content_length or 0) > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=request.content_length or 0)
    return await request.read()


async def parsed(
    request: web.Request, parse: Callable[[bytes], T], body: bytes, *, inline_bytes: int = INLINE_BYTES
) -> T:
    """Parse a body; a large one in a thread, so that no other stream waits for it."""
    with timed(request.app[METRICS], "parse"):
        if len(body) <= inline_bytes:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(None, parse, body)


def called(request: web.Request, ask: Ask, *, streamed: bool) -> Ask:
    """Note for whoever counts by which key and in which trace a request came, and whether it is streamed.

    Of several prompts of one request the first alone is told to who routed it: the request was one choice.
    """
    route = request.get(ROUTE)
    if route is not None:
        del request[ROUTE]
    return replace(
        ask,
        key=request[IDENTITY].key_id,
        streamed=streamed,
        traceparent=request.headers.get("traceparent", ""),
        tracestate=",".join(request.headers.getall("tracestate", ())),
        route=route,
    )


def json_response(body: bytes) -> web.Response:
    """Answer with JSON that is bytes already."""
    return web.Response(body=body, content_type="application/json")


async def collected(events: AsyncGenerator[Event]) -> list[Event]:
    """Wait for a whole answer."""
    return [event async for event in events]


async def stream(
    request: web.Request, events: AsyncGenerator[Event], shape: Callable[[Event], bytes]
) -> web.StreamResponse:
    """Send an answer as server-sent events while it comes."""
    response = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    wire = _Wire(request, response)
    async with _kept_open(wire, request.app[SETTINGS].stream_ping):
        async for event in events:
            data = shape(event)
            if data:
                await wire.send(data)
    await response.write_eof()
    return response


class _Wire:
    """One response under way; whole events only, one after another."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._lock = asyncio.Lock()
        self.quiet_since = asyncio.get_running_loop().time()

    async def send(self, data: bytes) -> None:
        """Send; the first time with the headers before."""
        async with self._lock:
            if not self._response.prepared:
                self._request[STREAM] = self._response
                await self._response.prepare(self._request)
            await self._response.write(data)
            self.quiet_since = asyncio.get_running_loop().time()


@asynccontextmanager
async def _kept_open(wire: _Wire, every_s: float) -> AsyncIterator[None]:
    """Send a comment line whenever nothing was sent for `every_s` seconds; 0 for never."""
    if not every_s:
        yield
        return
    task = asyncio.create_task(_comment(wire, every_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # a client that left is noticed by the handler itself


async def _comment(wire: _Wire, every_s: float) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        left_s = wire.quiet_since + every_s - clock()
        if left_s <= 0:
            await wire.send(COMMENT)
        else:
            await asyncio.sleep(left_s)
