"""One worker: its process, started, started again with back-off when it dies, and ended in time.

Owns the process and the way to it. Knows nothing of what it answers. Rules: a worker is asked only once it has answered
and until it has died; one that refuses its orders at its first start is not tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import structlog

from gateway.workers import private
from gateway.workers.link import SLOW_S, Link, Silent
from gateway.workers.orders import Orders

REFUSED: Final = 2  # the exit code of a configuration that cannot work
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0  # a life so long is forgiven all that was before it

State = Literal["starting", "up", "waiting", "ended"]
log = structlog.get_logger("gateway.workers")


class Refused(Exception):
    """The worker cannot work as it was told to; it has said why."""


class Owner(Protocol):
    """Who is told what becomes of a worker, and gives it its orders."""

    def orders(self, number: int, listener: int) -> tuple[int, Orders]:
        """Return the orders of the moment, with their version."""

    def version(self) -> int:
        """Return which orders are in force."""

    def up(self, worker: Worker) -> None:
        """Hear that it answers."""

    def died(self, worker: Worker, life: int) -> None:
        """Hear that it is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of a worker. `number` is no other life's."""

    number: int
    version: int  # of its orders
    process: asyncio.subprocess.Process
    link: Link


def pause_s(failures: int) -> float:
    """Return how long to wait after so many deaths in a row, the first of which is 1."""
    return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S))


def failures_after(failures: int, lived_s: float) -> int:
    """Count one more death in a row; after a steady life it is the first."""
    return 1 if lived_s >= STEADY_S else failures + 1


class Worker:
    """One of the workers."""

    def __init__(
        self, number: int, owner: Owner, folder: Path, *, lives: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """Begin nothing yet. Sockets lie in `folder`, `lives` numbers processes, `clock` is monotonic."""
        self.number, self.restarts = number, 0
        self.state: State = "starting"
        self.life: Life | None = None  # of the process that runs, up or not
        self._owner, self._folder, self._lives, self._clock = owner, folder, lives, clock
        self._ending = asyncio.Event()
        self._came_up = asyncio.Event()
        self._was_up = False

    @property
    def link(self) -> Link | None:
        """The way to it while it answers."""
        return self.life.link if self.life is not None and self.state == "up" else None

    async def keep(self) -> None:
        """Run it, life after life, until it is ended. Raises Refused."""
        failures = 0
        while not self._ending.is_set():
            began = self._clock()
            code = await self._live()
            if self._ending.is_set():
                break
            if code == REFUSED and not self._was_up:
                raise Refused
            failures = failures_after(failures, self._clock() - began)
            self.state = "waiting"
            log.warning("worker_died", worker=self.number, code=code, again_in_s=pause_s(failures))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s(failures))
            if not self._ending.is_set():
                self.restarts += 1
        self.state = "ended"

    async def came_up(self) -> Link:
        """Wait until it answers; return the way to it."""
        while (link := self.link) is None:
            await self._came_up.wait()
        return link

    def end(self) -> None:
        """Tell it to stop: it drains first. It is not started again."""
        self._ending.set()
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End its process at once."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.life is not None and self.life.process.returncode is None:
            self.life.process.send_signal(number)

    async def _live(self) -> int:
        """Run one process from its start to its end; return how it ended."""
        self.state = "starting"
        self.life = life = await self._begin()
        greeting = asyncio.create_task(self._greet(life))
        try:
            if self._ending.is_set():  # told while it was being made
                self._send(signal.SIGTERM)
            return await life.process.wait()
        finally:
            if life.process.returncode is None:
                life.process.kill()
            greeting.cancel()
            await asyncio.gather(greeting, return_exceptions=True)
            self.life = None
            self._came_up.clear()
            self._owner.died(self, life.number)
            await life.link.close()

    async def _begin(self) -> Life:
        number = self._lives()
        path = self._folder / f"{number}.sock"
        with private.listener(path) as listener:
            version, orders = self._owner.orders(self.number, listener.fileno())
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.workers.child",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(orders.serving, orders.private),
                start_new_session=True,  # a Ctrl-C in the terminal is the parent's to hand on
            )
        assert process.stdin is not None, "a pipe was asked for"
        process.stdin.write(msgspec.json.encode(orders) + b"\n")  # and it stays open: its end is the parent's
        return Life(number=number, version=version, process=process, link=Link(path))

    async def _greet(self, life: Life) -> None:
        """Wait until it answers, and see that its orders still stand."""
        try:
            await life.link.call("GET", private.WORD, patience_s=SLOW_S)
        except Silent as silence:
            log.warning("worker_silent", worker=self.number, reason=str(silence))
            self.kill()
            return
        if life.version != self._owner.version():
            log.info("worker_outdated", worker=self.number)
            self.kill()
            return
        self.state, self._was_up = "up", True
        self._came_up.set()
        log.info("worker_up", worker=self.number, pid=life.process.pid)
        self._owner.up(self)
