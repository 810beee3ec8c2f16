"""What is handed over now and then while a gateway runs, and once more at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def flushing(flush: Callable[[], Awaitable[None]], every_s: float) -> AsyncIterator[None]:
    """Call `flush` every `every_s` seconds while the block runs, and once more when it is left."""
    over = asyncio.Event()
    task = asyncio.create_task(_keep(flush, every_s, over))
    try:
        yield
    finally:
        over.set()  # what is being handed over arrives: cancelled in the middle it would be lost
        await asyncio.gather(task, return_exceptions=True)
        await flush()


async def _keep(flush: Callable[[], Awaitable[None]], every_s: float, over: asyncio.Event) -> None:
    while not over.is_set():
        try:
            async with asyncio.timeout(every_s):
                await over.wait()
        except TimeoutError:
            await flush()
