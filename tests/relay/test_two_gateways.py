"""Two gateways on one Redis before three upstreams, all on real sockets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.app import build_serving_app
from gateway.config import Settings
from gateway.house import House, build_house
from gateway.prompt import Renderer
from gateway.relay.upstream import Upstream
from prefix_store.redis_residency import RedisFeed
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.scripted import Script, ScriptedBackend
from tests.state.servers import RedisServer, eventually
from tests.tiny_model import save_tiny_tokenizer

SECRET = b"shared by both"
SYSTEM = "You answer in few words. " * 100


class Fake:
    """An upstream that has cached what it was sent, message by message; a token is a character."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._seen: set[str] = set()

    async def chat(self, request: web.Request) -> web.Response:
        """Answer with usage."""
        texts = [str(message["content"]) for message in (await request.json())["messages"]]
        self.asked.append(texts[-1])
        starts = ["".join(texts[:number]) for number in range(1, len(texts) + 1)]
        read = max((len(start) for start in starts if start in self._seen), default=0)
        self._seen.update(starts)
        usage = {
            "prompt_tokens": len(starts[-1]),
            "completion_tokens": 1,
            "total_tokens": len(starts[-1]) + 1,
            "prompt_tokens_details": {"cached_tokens": read},
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        return web.json_response({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage})


class Pair:
    """Both gateways, and what stands behind them."""

    def __init__(self, server: RedisServer, fakes: list[Fake], houses: list[House], clients: list[Any]) -> None:
        self.server, self.fakes, self.houses, self.clients = server, fakes, houses, clients

    async def ask(self, gateway: int, *texts: str) -> dict[str, Any]:
        """Send a conversation through one of them; return its usage."""
        roles = ["system", *["user", "assistant"] * 10]
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        answer = await self.clients[gateway].post("/v1/chat/completions", json={"model": "m", "messages": messages})
        assert answer.status == 200
        return dict((await answer.json())["usage"])

    async def settled(self) -> None:
        """Wait until what was learnt has been told and heard by both."""
        sharing = [house.sharing for house in self.houses if house.sharing is not None]
        heads = [one.outbox for one in sharing]
        await eventually(lambda: not any(map(len, heads)))
        nodes = [house.relay.fleet.router("m").residency for house in self.houses]
        await eventually(lambda: nodes[0].nodes == nodes[1].nodes)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that a test may kill."""
    with tempfile.TemporaryDirectory(prefix="kw") as folder:
        made = RedisServer(Path(folder))
        yield made
        made.kill()


@pytest.fixture
async def pair(server: RedisServer, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two gateways with one file, one secret and one Redis."""
    async with AsyncExitStack() as stack:
        fakes, upstreams = [Fake() for _ in range(3)], []
        for number, fake in enumerate(fakes):
            app = web.Application(client_max_size=1 << 24)
            app.router.add_post("/v1/chat/completions", fake.chat)
            behind = TestServer(app)
            await behind.start_server()
            stack.push_async_callback(behind.close)
            upstreams.append(Upstream(name=f"u{number}", base_url=str(behind.make_url("/v1")), models=("m",)))
        renderer = Renderer.load(save_tiny_tokenizer(tmp_path))
        houses, clients = [], []
        for name in ("one", "two"):
            house = build_house(
                Settings(),
                ScriptedBackend(Script(deltas=[])),
                renderer,
                await SqliteStore.open(":memory:"),
                ledger=await SqliteLedger.open(":memory:"),
                secret=SECRET,
                upstreams=upstreams,
                feed=RedisFeed(server.settings(), name),
            )
            client: TestClient[Any, Any] = TestClient(TestServer(build_serving_app(house)))
            await client.start_server()
            stack.push_async_callback(client.close)
            houses.append(house)
            clients.append(client)
        yield Pair(server, fakes, houses, clients)


async def test_a_conversation_stays_with_one_replica_whichever_gateway_it_comes_through(pair: Pair) -> None:
    """Turns that go through the two gateways in turn are all read by the replica that has the turns before."""
    texts, read = [SYSTEM, "one?"], []
    for turn in range(6):
        usage = await pair.ask(turn % 2, *texts)
        read.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert usage["prompt_tokens"] == len("".join(texts))
        await pair.settled()
        texts += ["yes", f"and {turn}?"]
    assert sorted(len(fake.asked) for fake in pair.fakes) == [0, 0, 6]
    assert read == [0, *(len("".join(texts[: 2 + 2 * turn])) for turn in range(5))]


async def test_equal_new_prompts_through_both_gateways_are_computed_once(pair: Pair) -> None:
    """Thirty prompts, each sent through both at once, are each seen by one replica."""
    for number in range(30):
        text = f"{number} is new"
        await asyncio.gather(*(pair.ask(gateway, SYSTEM + text, text) for gateway in (0, 1)))
    assert sorted(text for fake in pair.fakes for text in set(fake.asked)) == sorted(f"{n} is new" for n in range(30))


async def test_requests_are_answered_while_the_shared_server_is_gone(pair: Pair) -> None:
    """Without it each gateway goes on and `/ready` says so; once it is back, `/ready` is well again."""
    pair.server.kill()

    async def state() -> str:
        return str((await (await pair.clients[0].get("/ready")).json())["state"])

    sharing = pair.houses[0].sharing
    assert sharing is not None
    await eventually(lambda: sharing.degraded is not None)
    assert "does not answer" in await state()
    assert (await pair.ask(0, SYSTEM, "one?"))["prompt_tokens"] == len(SYSTEM) + 4
    pair.server.start()
    await eventually(lambda: sharing.degraded is None)
    assert await state() == "ok"
    await pair.settled()
    assert (await pair.ask(1, SYSTEM, "one?"))["prompt_tokens_details"]["cached_tokens"] == len(SYSTEM) + 4
