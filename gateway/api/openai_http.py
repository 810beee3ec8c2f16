"""OpenAI's chat completions and completions on aiohttp: bytes in, bytes out.

Shapes are the business of the pure modules beside it, the work is the exchange's. Rule: a handler that is cancelled,
because its client left, closes its exchange on the way out.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from aiohttp import web

from gateway.api import openai_answers, openai_chat, openai_completions
from gateway.api.http import body_of, called, collected, json_response, parsed, stream
from gateway.ask import Ask
from gateway.events import Event
from gateway.exchange import Exchanges
from gateway.keys import EXCHANGES, IDENTITY, RENDERER


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions: answer a conversation."""
    wanted = await parsed(request, openai_chat.parse, await body_of(request))
    created = int(time.time())
    ask = openai_chat.ask_of(wanted, f"chatcmpl-{uuid.uuid4().hex}", tenant=request[IDENTITY].tenant)
    ask = called(request, ask, streamed=bool(wanted.stream))
    async with aclosing(request.app[EXCHANGES].answer(ask)) as events:
        if wanted.stream:
            shapes = openai_answers.Stream(ask, created, include_usage=wanted.include_usage)
            return await stream(request, events, shapes.shape)
        return json_response(openai_answers.completion(ask, created, await collected(events)))


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions: go on from texts or token ids."""
    wanted = await parsed(request, openai_completions.parse, await body_of(request))
    created = int(time.time())
    asks = openai_completions.asks_of(wanted, f"cmpl-{uuid.uuid4().hex}", tenant=request[IDENTITY].tenant)
    asks = [called(request, ask, streamed=bool(wanted.stream)) for ask in asks]
    exchanges = request.app[EXCHANGES]
    shapes = openai_completions.Answer(wanted, asks, created, request.app[RENDERER].spell)
    if not wanted.stream:
        return json_response(shapes.whole(await _gathered(exchanges, asks)))
    async with aclosing(_one_by_one(exchanges, asks, shapes)) as events:
        return await stream(request, events, shapes.shape)


async def _gathered(exchanges: Exchanges, asks: Sequence[Ask]) -> list[list[Event]]:
    """Answer several prompts at the same time; the first that fails ends the others."""

    async def whole(ask: Ask) -> list[Event]:
        async with aclosing(exchanges.answer(ask)) as events:
            return await collected(events)

    tasks = [asyncio.ensure_future(whole(ask)) for ask in asks]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one_by_one(
    exchanges: Exchanges, asks: Sequence[Ask], shapes: openai_completions.Answer
) -> AsyncGenerator[Event]:
    """Stream the answers of several prompts, each after the one before."""
    for place, ask in enumerate(asks):
        shapes.turn_to(place)
        async with aclosing(exchanges.answer(ask)) as events:
            async for event in events:
                yield event
