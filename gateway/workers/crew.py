"""All workers together: what they are told and what they have told.

Owns the orders of the moment, and the newest word of every worker. Rules: one reading of all at a time, so that what is
shown never goes back; a worker that cannot be told what all must know is ended, and begins again with the orders of the
moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gateway.admin.answers import Unanswered
from gateway.workers import private, views
from gateway.workers.link import PATIENCE_S, SLOW_S, Answer, Link, Silent
from gateway.workers.orders import Orders
from gateway.workers.pages import Pages
from gateway.workers.worker import Worker

READ_S: Final = 5.0  # what a worker that is killed counted since it was last read is lost

log = structlog.get_logger("gateway.workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every worker is given at its start, whatever happens later."""

    flags: dict[str, str | None]
    file: str | None
    secret: bytes
    serving: int  # a socket's descriptor


class Crew:
    """The workers of one gateway."""

    def __init__(
        self,
        plan: Plan,
        count: int,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        noted: Callable[[Worker], None] = lambda _: None,
    ) -> None:
        """Begin nothing yet; `noted` hears of each worker that is up again."""
        lives = itertools.count(1)
        self.workers = [
            Worker(number, self, folder, lives=lives.__next__, clock=clock) for number in range(1, count + 1)
        ]
        self.pages, self.upstreams = Pages(), views.Upstreams()
        self._plan, self._noted = plan, noted
        self._version = 0
        self._reloaded: str | None = None
        self._drained: set[str] = set()
        self._reading = asyncio.Lock()

    # what a worker asks of its owner

    def orders(self, number: int, listener: int) -> tuple[int, Orders]:
        """Return the orders of the moment, with their version."""
        return self._version, Orders(
            number=number,
            flags=self._plan.flags,
            file=self._plan.file,
            reloaded=self._reloaded,
            drained=tuple(sorted(self._drained)),
            secret=self._plan.secret.hex(),
            serving=self._plan.serving,
            private=listener,
        )

    def version(self) -> int:
        """Return which orders are in force."""
        return self._version

    def up(self, worker: Worker) -> None:
        """Hear that a worker answers."""
        if worker.restarts:
            self._noted(worker)

    def died(self, worker: Worker, life: int) -> None:  # noqa: ARG002 - which worker it was does not matter
        """Hear that a worker's process is no more."""
        self.pages.ended(life)
        self.upstreams.ended(life)

    # running

    async def run(self) -> None:
        """Run all workers until they are ended. Raises Refused when one cannot work as it is told."""
        reading = asyncio.create_task(self._keep_reading())
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self.workers:
                    group.create_task(worker.keep())
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def end(self, patience_s: float, running: asyncio.Future[None]) -> None:
        """Tell all to stop, wait so long for them at most, then end them. `running` is what `run` does."""
        for worker in self.workers:
            worker.end()
        await asyncio.wait({running}, timeout=patience_s)
        for worker in self.workers:
            worker.kill()

    @property
    def restarts(self) -> int:
        """How often a worker was started again."""
        return sum(worker.restarts for worker in self.workers)

    @property
    def links(self) -> list[tuple[Worker, Link]]:
        """Those that can be asked now."""
        return [(worker, link) for worker in self.workers if (link := worker.link) is not None]

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(READ_S)
            with contextlib.suppress(Unanswered):
                await self.read()

    # asking

    async def read(self) -> None:
        """Ask every worker for its newest word. One that does not answer in time keeps its last one."""
        async with self._reading:
            await asyncio.gather(*(self._read(worker) for worker, _ in self.links))

    async def _read(self, worker: Worker) -> None:
        life = worker.life
        assert life is not None, "it has a link"
        with contextlib.suppress(Silent):
            told = (await life.link.call("GET", private.WORD)).json()
            if worker.life is life:
                self.pages.told(life.number, told["metrics"])
                self.upstreams.told(life.number, told["upstreams"])

    async def every(self, method: str, path: str, *, body: bytes = b"", patience_s: float = PATIENCE_S) -> list[Answer]:
        """Ask every worker; return what those answer that do. Raises Unanswered where none does."""

        async def one(link: Link) -> Answer | None:
            with contextlib.suppress(Silent):
                return await link.call(method, path, body=body, patience_s=patience_s)
            return None

        asked = await asyncio.gather(*(one(link) for _, link in self.links))
        answers = [answer for answer in asked if answer is not None]
        if not answers:
            raise Unanswered("No worker answers now.")
        return answers

    async def any(self, method: str, path: str, *, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Ask one worker; where that harms nothing, the next one if it does not answer. Raises Unanswered."""
        for _, link in self.links:
            try:
                return await link.call(method, path, body=body, headers=headers, patience_s=SLOW_S)
            except Silent as silence:
                if method not in {"GET", "HEAD"}:
                    raise Unanswered("The worker that was asked did not answer; it may be done.") from silence
        raise Unanswered("No worker answers now.")

    # telling

    async def tell(self, path: str, *, body: bytes = b"") -> None:
        """See that every worker has heard this."""

        async def one(worker: Worker, link: Link) -> None:
            try:
                answer = await link.call("POST", path, body=body, patience_s=PATIENCE_S)
            except Silent as silence:
                log.warning("worker_not_told", worker=worker.number, path=path, reason=str(silence))
            else:
                if answer.status < 500:  # noqa: PLR2004 - it has heard
                    return
            if worker.link is link:
                worker.kill()

        await asyncio.gather(*(one(worker, link) for worker, link in self.links))

    async def reload(self, text: str) -> None:
        """Let every worker go on with the upstreams of a file that was checked."""
        self._reloaded, self._version = text, self._version + 1
        await self.tell(private.RELOAD, body=text.encode())

    async def steer(self, name: str, *, draining: bool) -> None:
        """Let every worker drain an upstream, or ask it again."""
        (self._drained.add if draining else self._drained.discard)(name)
        self._version += 1
        await self.tell(f"{private.STEER}/{name}/{'drain' if draining else 'undrain'}")
