"""What is handed over now and then, and once more at the end."""

from __future__ import annotations

import asyncio

from gateway.flushing import flushing


async def test_a_flush_under_way_arrives_before_the_last_one() -> None:
    """When the block is left, the flush that runs ends well, and one more follows it."""
    began, let_go = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def flush() -> None:
        told.append("begins")
        began.set()
        await let_go.wait()
        told.append("arrives")

    async with flushing(flush, 0.001):
        await began.wait()
        asyncio.get_running_loop().call_later(0.01, let_go.set)
    assert told == ["begins", "arrives", "begins", "arrives"]


async def test_a_block_that_is_left_at_once_flushes_once() -> None:
    """Before the time is up nothing is handed over but at the end."""
    told: list[str] = []

    async def flush() -> None:
        told.append("flush")

    async with flushing(flush, 3600.0):
        pass
    assert told == ["flush"]
