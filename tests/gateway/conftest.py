"""A gateway on real sockets over a scripted backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.app import build_admin_app, build_serving_app
from gateway.config import Settings
from gateway.house import House, build_house
from gateway.keyring import Keyring
from gateway.money import Prices
from gateway.prompt import Renderer
from prefix_store.ledger import LedgerStore
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore
from prefix_store.store import SharedState
from tests.gateway.scripted import MODEL, Script, ScriptedBackend
from tests.tiny_model import save_tiny_tokenizer


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway as a test sees it."""

    serving: TestClient[Any, Any]
    admin: TestClient[Any, Any]
    backend: ScriptedBackend
    renderer: Renderer
    house: House

    def chat(self, **fields: Any) -> Any:
        """POST a chat completion; `messages` and `model` have defaults."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **fields}
        return self.serving.post("/v1/chat/completions", json=body)

    def script(self, pieces: Sequence[str | tuple[int, ...]], **rest: Any) -> None:
        """Answer with these deltas from now on; a text stands for its tokens."""
        deltas = [piece if isinstance(piece, tuple) else self.tokens(piece) for piece in pieces]
        self.backend.script = Script(deltas=deltas, **rest)

    def tokens(self, text: str) -> tuple[int, ...]:
        """Ids of a text."""
        ids = self.renderer.spelling._tokenizer.encode(text, add_special_tokens=False).ids
        return tuple(ids)


StartGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the tiny tokenizer."""
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def renderer(tokenizer_folder: Path) -> Renderer:
    """The tiny tokenizer's prompts."""
    return Renderer.load(tokenizer_folder)


@pytest.fixture
async def start_gateway(renderer: Renderer) -> AsyncIterator[StartGateway]:
    """Start gateways; all of them are stopped when the test ends."""
    clients: list[TestClient[Any, Any]] = []

    async def start(
        *,
        state: SharedState | None = None,
        speaking: Renderer = renderer,
        keyring: Keyring | None = None,
        secret: bytes | None = None,
        ledger: LedgerStore | None = None,
        prices: Prices | None = None,
        **settings: Any,
    ) -> Gateway:
        backend = ScriptedBackend(Script(deltas=[]))
        state = state or await SqliteStore.open(":memory:")
        house = build_house(
            Settings(**settings),
            backend,
            speaking,
            state,
            ledger=ledger or await SqliteLedger.open(":memory:"),
            prices=prices,
            keyring=keyring,
            secret=secret,
        )
        for app in (build_serving_app(house), build_admin_app(house)):
            server = TestServer(app)
            await server.start_server(shutdown_timeout=1.0)
            clients.append(TestClient(server))
        gateway = Gateway(clients[-2], clients[-1], backend, speaking, house)
        gateway.script(["hi"])
        return gateway

    yield start
    for client in clients:
        await client.close()


@pytest.fixture
async def gateway(start_gateway: StartGateway) -> Gateway:
    """A gateway with default settings that answers `hi`."""
    return await start_gateway()


def events_of(stream: str) -> list[str]:
    """The data of each event of a stream, in order."""
    return [line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: ")]
