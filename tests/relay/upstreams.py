"""Servers that stand for upstreams in tests: they answer in one word and remember what they were sent."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.relay.upstream import Upstream


@dataclass(slots=True)
class Fake:
    """One upstream under a test's control."""

    name: str
    server: TestServer = field(init=False)
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)  # headers, lower case, and body
    entered: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    go_on: asyncio.Event = field(default_factory=asyncio.Event)  # a stream waits for it before its last word
    health: int = 200  # the status of its health address
    cached: int = 0

    def __post_init__(self) -> None:
        """Make the server; `start` starts it."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/{path:.+}", self._answer)
        app.router.add_get("/health", self._health)
        self.server = TestServer(app)
        self.go_on.set()

    def upstream(self, *models: str, **fields: Any) -> Upstream:
        """What a file says of it."""
        url = str(self.server.make_url("/v1"))
        return Upstream(name=self.name, kind="vllm", base_url=url, models=models or ("m",), **fields)

    def toml(self, *models: str, more: str = "") -> str:
        """Spell the same as a configuration file does."""
        one = self.upstream(*models)
        return (
            f'[[upstreams]]\nname = "{one.name}"\nkind = "vllm"\nbase_url = "{one.base_url}"\n'
            f"models = {json.dumps(list(one.models))}\n{more}\n"
        )

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(({name.lower(): value for name, value in request.headers.items()}, body))
        self.entered.release()
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        if not json.loads(body).get("stream"):
            await self.go_on.wait()
            choice = {"index": 0, "message": {"role": "assistant", "content": self.name}, "finish_reason": "stop"}
            return web.json_response({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event({"choices": [{"index": 0, "delta": {"content": self.name}}]}))
        await self.go_on.wait()
        await response.write(_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
