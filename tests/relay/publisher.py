"""A publisher of cache events on real sockets, on the wire as vLLM's: numbered messages, and the last ones again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


def stored(*hashes: int | bytes, size: int = 16, medium: str | None = "GPU") -> list[Any]:
    """A BlockStored event as older versions write it."""
    return ["BlockStored", list(hashes), None, list(range(size * len(hashes))), size, None, medium]


def removed(*hashes: int | bytes, medium: str | None = "GPU") -> list[Any]:
    """A BlockRemoved event as older versions write it."""
    return ["BlockRemoved", list(hashes), medium]


CLEARED = ["AllBlocksCleared"]


def payload(*events: Any, ts: float = 1.0) -> bytes:
    """A batch of events as an array."""
    return msgspec.msgpack.encode([ts, list(events), 0])


class Publisher:
    """Publishes, and plays again what it has kept."""

    def __init__(self, context: zmq.asyncio.Context, where: str, again: str, *, kept: int = 1000) -> None:
        self.number = 0
        self.asked: list[int] = []
        self.kept: list[tuple[int, bytes]] = []
        self._most = kept
        self.socket = context.socket(zmq.XPUB)
        self.socket.bind(where)
        self.router = context.socket(zmq.ROUTER)
        self.router.bind(again)
        self.task = asyncio.create_task(self._play())

    async def joined(self) -> None:
        """Wait until someone has subscribed."""
        await asyncio.wait_for(self.socket.recv(), 10.0)

    def keep(self, *events: Any, data: bytes | None = None) -> bytes:
        """Number a batch and keep it, as if its message were lost on the way."""
        data = payload(*events, ts=float(id(self))) if data is None else data
        self.kept = [*self.kept, (self.number, data)][-self._most :]
        self.number += 1
        return data

    async def publish(self, *events: Any, data: bytes | None = None) -> None:
        """Publish a batch."""
        data = self.keep(*events, data=data)
        await self.raw(b"", (self.number - 1).to_bytes(8, "big"), data)

    async def raw(self, *frames: bytes) -> None:
        """Publish these frames."""
        await self.socket.send_multipart(list(frames))

    async def close(self) -> None:
        """Go away at once."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.socket.close(linger=0)
        self.router.close(linger=0)

    async def _play(self) -> None:
        while True:
            who, empty, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number, data in self.kept:
                if number >= self.asked[-1]:
                    await self.router.send_multipart([who, empty, number.to_bytes(8, "big"), data])
            await self.router.send_multipart([who, empty, END, b""])


@asynccontextmanager
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    """Yield a context of which nothing is left."""
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)
