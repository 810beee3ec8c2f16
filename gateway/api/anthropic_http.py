"""Anthropic's endpoints: read the body, ask, shape the answer. Everything that decides is in the modules beside."""

from __future__ import annotations

import uuid
from contextlib import aclosing

from aiohttp import web

from gateway.api import anthropic_answers, anthropic_messages
from gateway.api.http import body_of, called, parsed, stream
from gateway.keys import EXCHANGES, IDENTITY


async def messages(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages: answer a conversation."""
    wanted = await parsed(request, anthropic_messages.parse, await body_of(request))
    ask = anthropic_messages.ask_of(wanted, f"msg_{uuid.uuid4().hex}", tenant=request[IDENTITY].tenant)
    ask = called(request, ask, streamed=bool(wanted.stream))
    async with aclosing(request.app[EXCHANGES].answer(ask)) as events:
        if wanted.stream:
            return await stream(request, events, anthropic_answers.Stream(ask, wanted).shape)
        body = anthropic_answers.message(ask, [event async for event in events], wanted)
    return web.Response(body=body, content_type="application/json")


async def count_tokens(request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens: how many tokens the prompt has."""
    wanted = await parsed(request, anthropic_messages.parse_count, await body_of(request))
    ask = anthropic_messages.prompt_of(wanted, f"msg_{uuid.uuid4().hex}", tenant=request[IDENTITY].tenant)
    body = anthropic_answers.counted(await request.app[EXCHANGES].count(ask))
    return web.Response(body=body, content_type="application/json")
