"""The engine that all gateways are measured before: OpenAI's chat completions, answered at once, in sixteen tokens.

`python -m benchmarks.gateway_peers.upstream PORT`. Rule: it costs as little as a Python server can, and the same for
everyone; what it says is made once, before the first request.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from aiohttp import web

MODEL: Final = "mock"
TOKENS: Final = 16
WORD: Final = "tick "
USAGE: Final = {
    "prompt_tokens": 1024,
    "completion_tokens": TOKENS,
    "total_tokens": 1024 + TOKENS,
    "prompt_tokens_details": {"cached_tokens": 960},
}


def _event(choices: list[dict[str, Any]], **more: object) -> bytes:
    chunk = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": choices}
    return b"data: " + json.dumps(chunk | more).encode() + b"\n\n"


def _delta(finish: str | None = None, **delta: str) -> bytes:
    return _event([{"index": 0, "delta": delta, "finish_reason": finish}])


EVENTS: Final = (_delta(role="assistant", content=""), *[_delta(content=WORD)] * TOKENS, _delta("stop"))
USAGE_EVENT: Final = _event([], usage=USAGE)
DONE: Final = b"data: [DONE]\n\n"
_CHOICE: Final = {
    "index": 0,
    "message": {"role": "assistant", "content": WORD * TOKENS},
    "finish_reason": "stop",
}
WHOLE: Final = json.dumps(
    {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [_CHOICE]}
    | {"usage": USAGE}
).encode()


async def chat(request: web.Request) -> web.StreamResponse:
    """Answer; a stream one event at a time, as an engine does."""
    body = json.loads(await request.read())
    if not body.get("stream"):
        return web.Response(body=WHOLE, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in EVENTS:
        await response.write(event)
    if (body.get("stream_options") or {}).get("include_usage"):
        await response.write(USAGE_EVENT)
    await response.write(DONE)
    return response


async def models(_: web.Request) -> web.Response:
    """List the one model."""
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


async def health(_: web.Request) -> web.Response:
    """Be well."""
    return web.Response(text="ok")


def application() -> web.Application:
    """Make the server."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
