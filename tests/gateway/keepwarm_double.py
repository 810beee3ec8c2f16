"""A server that speaks Keepwarm's wire shapes and remembers what it was sent; its cache is a set of texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

MODEL = "double"
ANSWER = ("A", " white", " light")


class KeepwarmDouble:
    """One token is one character of the messages; a prefix is cached once it was sent."""

    def __init__(self, *, ready: int = 200, error_after: int | None = None, extension: bool = True) -> None:
        self.ready = ready
        self.error_after = error_after  # break the stream after so many pieces
        self.extension = extension
        self.refusal: web.Response | None = None
        self.requests: list[dict[str, Any]] = []
        self.seen: list[str] = []

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application()
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _ready(self, _: web.Request) -> web.Response:
        return web.json_response({}, status=self.ready)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self.refusal is not None:
            return self.refusal
        body = await request.json()
        self.requests.append(body)
        text = "".join(message["content"] for message in body["messages"])
        cached = max((_shared(text, earlier) for earlier in self.seen), default=0)
        self.seen.append(text + "".join(ANSWER))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await _send(response, {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
        for index, piece in enumerate(ANSWER):
            if index == self.error_after:
                await _send(response, {"error": {"message": "the engine stopped", "type": "server_error"}})
                return response
            await _send(response, {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        await _send(response, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        await _send(response, self._last(len(text), min(cached, len(text) - 1)))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _last(self, prompt: int, cached: int) -> dict[str, Any]:
        generated = len(ANSWER)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if not self.extension:
            return {"choices": [], "usage": usage}
        timings = {"queue_ms": 1.0, "prefill_ms": 50.0, "decode_ms": 40.0, "time_to_first_token_ms": 51.0}
        projections = {
            "done": prompt - cached + generated - 1,
            "without_prefix_cache": prompt + generated - 1,
            "without_kv_cache": sum(prompt + k for k in range(generated)),
        }
        extension = {"computed_tokens": prompt - cached, "timings": timings, "projections": projections}
        return {"choices": [], "usage": usage, "keepwarm": extension}


@asynccontextmanager
async def running(double: KeepwarmDouble) -> AsyncIterator[str]:
    """Serve the double on a free port and yield its address."""
    async with TestServer(double.app()) as server:
        yield str(server.make_url("")).rstrip("/")


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")


def _shared(left: str, right: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def main(port: int) -> None:
    """Serve the double as a process of its own."""

    async def forever() -> None:
        runner = web.AppRunner(KeepwarmDouble().app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    asyncio.run(forever())
