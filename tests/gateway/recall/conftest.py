"""Gateways' memories over one store."""

from __future__ import annotations

import pytest
import pytest_asyncio

from gateway.recall import Recall
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.recall.recalled import NOON, SECRET
from tests.state.servers import HandClock


@pytest.fixture
def clock() -> HandClock:
    """Return the clock that gateways and store go by."""
    return HandClock(NOON)


@pytest_asyncio.fixture
async def state(clock):
    """Yield a store in memory."""
    opened = await SqliteStore.open(":memory:", clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def gateway(state, clock):
    """Return how to make a gateway's memory over the one store."""

    def make(**options) -> Recall:
        return Recall(state, **{"secret": SECRET, "clock": clock, "wait_s": 10.0} | options)

    return make
