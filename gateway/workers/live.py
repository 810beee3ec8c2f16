"""What happens in all workers, told at once to everyone who listens at the parent.

Owns the streams from the workers, which are open while somebody listens and no longer. Rules: what every worker reads
in the audit trail is told once; the state is that of the first worker that answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from gateway.live import Hub
from gateway.workers.crew import Crew
from gateway.workers.link import Link, Silent
from gateway.workers.views import Once
from gateway.workers.worker import Worker

PATH = "/admin/v1/live"
AGAIN_S = 0.5  # a stream that ended while its worker goes on is opened again after
READY_S = 2.0  # a listener waits no longer for the streams of all workers


class Streams:
    """Workers' events on their way to the hub."""

    def __init__(self, crew: Crew, hub: Hub) -> None:
        """Listen to `crew`, tell `hub`."""
        self.state: bytes | None = None  # the newest that was told
        self._crew, self._hub = crew, hub
        self._listeners = 0
        self._following: list[asyncio.Task[None]] = []
        self._once = Once()
        self._heard: dict[int, Link] = {}  # whose stream has begun, by worker
        self._news = asyncio.Event()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen to every worker while the block runs; it begins once each that answers is listened to."""
        self._listeners += 1
        if self._listeners == 1:
            self._following = [asyncio.create_task(self._follow(worker)) for worker in self._crew.workers]
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_heard(), READY_S)
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self.state = None
                self._heard.clear()
                for task in self._following:
                    task.cancel()

    async def _all_heard(self) -> None:
        while any(self._heard.get(worker.number) is not link for worker, link in self._crew.links):
            self._news.clear()
            await self._news.wait()

    async def _follow(self, worker: Worker) -> None:
        while True:
            link = await worker.came_up()
            with contextlib.suppress(Silent):
                async for kind, data in link.events(PATH):
                    if self._heard.get(worker.number) is not link:
                        self._heard[worker.number] = link
                        self._news.set()
                    self._tell(worker, kind, data)
            await asyncio.sleep(AGAIN_S)

    def _tell(self, worker: Worker, kind: str, data: bytes) -> None:
        if kind == "state":
            first = next((one for one, _ in self._crew.links), None)
            if worker is not first:
                return
            self.state = data
        if kind == "change":
            told = msgspec.json.decode(data)
            if told["kind"] in {"start", "restart"} or not self._once.new(told):
                return
        self._hub.publish(kind, lambda: msgspec.Raw(data))
