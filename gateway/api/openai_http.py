"""OpenAI's endpoints on aiohttp: bytes in, bytes out.

Shapes are the business of `openai_chat` and `openai_answers`, the work is the exchange's.
Rule: nothing is sent before the first event of the answer, so whatever is refused is refused by status; a handler that
is cancelled, because its client left, closes its exchange on the way out.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from gateway.api import openai_answers, openai_chat
from gateway.exchange import Ask, Done, Text
from gateway.keys import BACKEND, EXCHANGES, IDENTITY, SETTINGS, STREAM

INLINE_BYTES: Final = 1 << 18  # some milliseconds of parsing
KNOWN_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})  # what aiohttp always decodes


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    wanted = await _parsed(await _body(request))
    created = int(time.time())
    ask = openai_chat.ask_of(wanted, f"chatcmpl-{uuid.uuid4().hex}", tenant=request[IDENTITY].tenant)
    async with aclosing(request.app[EXCHANGES].answer(ask)) as events:
        if not wanted.stream:
            return await _whole(ask, created, events)
        shapes = openai_answers.Stream(ask, created, include_usage=wanted.include_usage)
        return await _streamed(request, shapes, events)


async def _parsed(body: bytes) -> openai_chat.ChatRequest:
    """Read a body; a large one in a thread, so that no other stream waits for it."""
    if len(body) <= INLINE_BYTES:
        return openai_chat.parse(body)
    return await asyncio.get_running_loop().run_in_executor(None, openai_chat.parse, body)


async def models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    backend = request.app[BACKEND]
    model: dict[str, object] = {"id": backend.model, "object": "model", "created": 0, "owned_by": "keepwarm"}
    if backend.card is not None:
        model["max_model_len"] = backend.card.max_model_len
    return web.json_response({"object": "list", "data": [model]})


async def _body(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "").strip().lower() not in KNOWN_ENCODINGS:
        raise web.HTTPUnsupportedMediaType(text="Send the body plain, or with Content-Encoding gzip or deflate.")
    limit = request.app[SETTINGS].max_body
    if (request.content_length or 0) > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=request.content_length or 0)
    return await request.read()


async def _whole(ask: Ask, created: int, events: AsyncGenerator[Text | Done]) -> web.Response:
    texts: list[str] = []
    done: Done | None = None
    async for event in events:
        match event:
            case Text(text=text):
                texts.append(text)
            case Done():
                done = event
    assert done is not None, "an exchange that ends without an error ends with Done"
    body = openai_answers.completion(ask, created, "".join(texts), done)
    return web.Response(body=body, content_type="application/json")


async def _streamed(
    request: web.Request, shapes: openai_answers.Stream, events: AsyncGenerator[Text | Done]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    async for event in events:
        opening = b""
        if not response.prepared:
            request[STREAM] = response
            await response.prepare(request)
            opening = shapes.opening()
        await response.write(opening + (shapes.text(event.text) if isinstance(event, Text) else shapes.closing(event)))
    await response.write_eof()
    return response
