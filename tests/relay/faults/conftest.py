"""A gateway on real sockets in front of fakes: what its clients see, what it tells its witnesses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from gateway.app import build_serving_app
from gateway.config import Settings
from gateway.house import build_house
from gateway.prompt import Renderer
from gateway.record import Record
from gateway.relay.fleet import Fleet
from gateway.relay.relay import Relay
from gateway.relay.replica import Replica
from gateway.relay.upstream import Upstream
from gateway.routing.router import Policy
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.scripted import Script, ScriptedBackend
from tests.relay.faults.fakes import Fake
from tests.tiny_model import save_tiny_tokenizer

MODEL = "m"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SECRET = bytes(32)


@dataclass
class Kept:
    """A witness that keeps every record."""

    records: list[Record] = field(default_factory=list)
    told: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))  # one release per record

    def ended(self, record: Record, tokens: bytes) -> None:
        """Keep it."""
        assert tokens == b""
        self.records.append(record)
        self.told.release()


@dataclass(frozen=True, slots=True)
class Front:
    """The gateway under test."""

    client: TestClient[Any, Any]
    relay: Relay
    kept: Kept

    def replica(self, name: str) -> Replica:
        """What the gateway knows of an upstream."""
        return self.relay.fleet.replicas[name]

    async def ask(self, path: str = CHAT, *, headers: Mapping[str, str] | None = None, **fields: Any) -> ClientResponse:
        """POST a request; its prompt has a default."""
        return await self.client.post(path, json=asked(path, **fields), headers=headers)

    async def last(self) -> Record:
        """The record of the next exchange to end, or that has ended and was not looked at."""
        await asyncio.wait_for(self.kept.told.acquire(), 20)
        return self.kept.records[-1]


def asked(path: str, **fields: Any) -> dict[str, Any]:
    """A request's body."""
    said = [{"role": "user", "content": "hello"}]
    prompt = {COMPLETIONS: {"prompt": "hello"}, RESPONSES: {"input": "hello"}}.get(path, {"messages": said})
    return {"model": MODEL, **prompt, **fields}


def facing(fake: Fake, **fields: Any) -> Upstream:
    """What an operator would write of a fake."""
    known: dict[str, Any] = {"name": fake.name, "kind": "vllm", "base_url": fake.url, "models": (MODEL,), "salt": False}
    return Upstream(**(known | fields))


StartFront = Callable[..., Awaitable[Front]]


@pytest.fixture(scope="session")
def plain_renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """The bundled engine's prompts, which nothing here needs."""
    return Renderer.load(save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
async def start_front(plain_renderer: Renderer) -> AsyncIterator[StartFront]:
    """Start gateways; all of them are stopped when the test ends."""
    async with AsyncExitStack() as stack:

        async def start(
            *upstreams: Upstream,
            policy: Policy = "prefix",
            clock: Callable[[], float] | None = None,
            seed: int = 0,
            **environ: str,
        ) -> Front:
            state, ledger = await SqliteStore.open(":memory:"), await SqliteLedger.open(":memory:")
            house = build_house(Settings(), ScriptedBackend(Script(deltas=[])), plain_renderer, state, ledger=ledger)
            clock = clock or asyncio.get_running_loop().time
            fleet = Fleet(upstreams, clock=clock, policies={MODEL: policy}, chance=Random(seed))
            kept = Kept()
            relay = Relay(fleet, secret=SECRET, policies=house.policies, witnesses=[kept], environ=environ, clock=clock)
            server = TestServer(build_serving_app(replace(house, relay=relay)))
            await server.start_server(shutdown_timeout=1.0)
            client = TestClient(server)
            stack.push_async_callback(client.close)
            return Front(client, relay, kept)

        yield start


@pytest.fixture
async def start_fake() -> AsyncIterator[Callable[..., Awaitable[Fake]]]:
    """Start fakes; all of them are stopped when the test ends."""
    async with AsyncExitStack() as stack:

        async def start(*given: Any) -> Fake:
            return await stack.enter_async_context(Fake(*given))

        yield start


StartFake = Callable[..., Awaitable[Fake]]


def events_in(stream: bytes) -> list[bytes]:
    """The events of a stream, without their blank lines; nothing may be left over."""
    *events, rest = stream.split(b"\n\n")
    assert rest == b""
    return events


def error_in(event: bytes) -> Any:
    """The error that an event tells, in whichever API's shape; None: it tells none."""
    name, data = "", b""
    for line in event.split(b"\n"):
        if line.startswith(b"event: "):
            name = line.removeprefix(b"event: ").decode()
        elif line.startswith(b"data: "):
            data = line.removeprefix(b"data: ")
    if not data.startswith(b"{"):
        return None
    read = json.loads(data)
    if read.get("type") == "error":
        assert name == "error"
        return read.get("error", read)
    return read.get("error")
