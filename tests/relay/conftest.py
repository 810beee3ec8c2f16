"""Gateways without an engine, before servers that stand for upstreams."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.app import build_admin_app, build_serving_app
from gateway.backends import Backend
from gateway.backends.absent import Absent
from gateway.config import Settings
from gateway.house import House, build_house
from gateway.keyring import Keyring
from gateway.prompt import Renderer
from gateway.relay.upstream import Upstream
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.scripted import Script, ScriptedBackend
from tests.relay.upstreams import Fake
from tests.tiny_model import save_tiny_tokenizer


@dataclass(frozen=True, slots=True)
class Front:
    """A running gateway as these tests see it."""

    serving: TestClient[Any, Any]
    admin: TestClient[Any, Any]
    house: House
    backend: Backend

    async def chat(self, model: str = "m", text: str = "hello", **fields: Any) -> Any:
        """POST a chat completion."""
        body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
        return await self.serving.post("/v1/chat/completions", json=body)

    async def post(self, path: str, data: bytes, **headers: str) -> Any:
        """Send these bytes as they are."""
        return await self.serving.post(path, data=io.BytesIO(data), headers=headers)

    async def asked(self, method: str, path: str) -> tuple[int, Any]:
        """Ask the admin API; return status and answer."""
        response = await self.admin.request(method, f"/admin/v1/{path}")
        return response.status, await response.json()

    async def upstreams(self) -> dict[str, Any]:
        """What the admin API says of each upstream, by name."""
        _, answer = await self.asked("GET", "upstreams")
        return {one["name"]: one for one in answer["upstreams"]}


StartFake = Callable[..., Awaitable[Fake]]
StartFront = Callable[..., Awaitable[Front]]


@pytest.fixture
async def fake() -> AsyncIterator[StartFake]:
    """Start upstreams; all are stopped when the test ends."""
    started: list[Fake] = []

    async def start(name: str = "a") -> Fake:
        one = Fake(name)
        await one.server.start_server(shutdown_timeout=0.1)
        started.append(one)
        return one

    yield start
    for one in started:
        one.go_on.set()
        await one.server.close()


@pytest.fixture(scope="session")
def tiny_renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """The tiny tokenizer's prompts."""
    return Renderer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
async def front(tiny_renderer: Renderer) -> AsyncIterator[StartFront]:
    """Start gateways; all are stopped when the test ends."""
    clients: list[TestClient[Any, Any]] = []

    async def start(
        upstreams: Sequence[Upstream] = (),
        *,
        engine: bool = False,
        keyring: Keyring | None = None,
        environ: Mapping[str, str] | None = None,
        config: Path | None = None,
        routing: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Front:
        backend: Backend = ScriptedBackend(Script(deltas=[(5,)])) if engine else Absent()
        house = build_house(
            Settings(engine=engine, config=config, **settings),
            backend,
            tiny_renderer if engine else None,
            await SqliteStore.open(":memory:"),
            ledger=await SqliteLedger.open(":memory:"),
            keyring=keyring,
            upstreams=upstreams,
            routing=routing or {},
            environ=environ or {},
        )
        for app in (build_serving_app(house), build_admin_app(house)):
            server = TestServer(app)
            await server.start_server(shutdown_timeout=1.0)
            clients.append(TestClient(server))
        return Front(clients[-2], clients[-1], house, backend)

    yield start
    for client in clients:
        await client.close()
