"""What is handed over now and then while a gateway runs, and once more at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def flushing(flush: Callable[[], Awaitable[None]], every_s: float) -> AsyncIterator[None]:
    """Call `flush` every `every_s` seconds while the block runs, and once more when it is left."""
    task = asyncio.create_task(_keep(flush, every_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await flush()


async def _keep(flush: Callable[[], Awaitable[None]], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await flush()
