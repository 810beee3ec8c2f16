"""Stores to test: each over a real file, memory, or a real server."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from blockbuster import BlockBuster, blockbuster_ctx

from prefix_store.redis_store import RedisStore
from prefix_store.sqlite_store import SqliteStore
from prefix_store.store import SharedState
from tests.state.servers import HandClock, RedisServer

BACKENDS = ("file", "memory", "redis")
_prefixes = (f"t{number}:" for number in itertools.count())


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    """Yield a server that many tests share, each under a prefix of its own."""
    with tempfile.TemporaryDirectory(prefix="kw") as folder:
        server = RedisServer(Path(folder))
        yield server
        server.kill()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Yield a server that a test may stop and kill."""
    with tempfile.TemporaryDirectory(prefix="kw") as folder:
        server = RedisServer(Path(folder))
        yield server
        server.resume()
        server.kill()


@pytest.fixture
def prefix() -> str:
    """Return a key prefix that no other test uses."""
    return next(_prefixes)


@pytest.fixture
def clock() -> HandClock:
    """Return the wall clock of the SQLite stores."""
    return HandClock()


@pytest.fixture
def never_blocked() -> Iterator[BlockBuster]:
    """Fail a test that blocks the event loop."""
    with blockbuster_ctx("prefix_store") as detector:
        yield detector


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Return which kind of store this run is over."""
    return str(request.param)


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Callable[[Awaitable[SharedState]], Awaitable[SharedState]]]:
    """Yield a function that awaits a store and closes it after the test."""
    stores: list[SharedState] = []

    async def opened(opening: Awaitable[SharedState]) -> SharedState:
        stores.append(await opening)
        return stores[-1]

    yield opened
    for store in reversed(stores):
        await store.close()


@pytest.fixture
def opening(
    backend: str, tmp_path: Path, clock: HandClock, prefix: str, request: pytest.FixtureRequest
) -> Callable[[], Awaitable[SharedState]]:
    """Return how to open this run's store; opened again, all but memory hold what they held."""
    if backend == "redis":
        settings = request.getfixturevalue("shared_server").settings(prefix=prefix)
        return lambda: RedisStore.open(settings)
    path = ":memory:" if backend == "memory" else tmp_path / "state.db"
    return lambda: SqliteStore.open(path, clock=clock)


@pytest_asyncio.fixture
async def store(opening, opened):
    """Return an empty store of this run's kind."""
    return await opened(opening())


@pytest.fixture
def let_pass(backend: str, clock: HandClock, prefix: str, request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Return how to let time pass for this run's store, each kind by the clock that it goes by."""
    if backend == "redis":
        shared = request.getfixturevalue("shared_server")
        return lambda seconds: shared.age(seconds, f"{prefix}*")

    def turn(seconds: float) -> None:
        clock.now += seconds

    return turn
