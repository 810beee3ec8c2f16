"""Upstreams asked now and then whether they are well, in one task.

Owns when each is asked next. Rules: one that goes or comes back is believed to hold nothing, for it restarted; an
upstream that is slow to answer delays no request, and the task ends with its block.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import structlog

from gateway.relay.fleet import Fleet
from gateway.relay.replica import Replica
from gateway.relay.upstream import Upstream

TIMEOUT_S: Final = 2.0
ALIVE: Final = frozenset({404, 405, 429})  # it has no such address, or more to do than it likes: it is there

log = structlog.get_logger("gateway.relay")

Ask = Callable[[Upstream], Awaitable[int]]


class Probes:
    """Asks the upstreams of a fleet."""

    def __init__(self, fleet: Fleet, ask: Ask, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask by way of `ask`, which returns an HTTP status or raises OSError, TimeoutError."""
        self._fleet, self._ask, self._clock = fleet, ask, clock
        self._next: dict[str, float] = {}  # when each upstream is asked again

    def due(self, now: float) -> list[Replica]:
        """Return who is to be asked now, and note when each of them is next."""
        asked = {name: one for name, one in self._fleet.replicas.items() if one.engine is None}
        self._next = {name: self._next.get(name, now) for name in asked}
        due = [one for name, one in asked.items() if self._next[name] <= now]
        for one in due:
            self._next[one.name] = now + one.upstream.health_interval
        return due

    def wait_s(self, now: float) -> float:
        """Return how long nobody is due; a second at most, so that an upstream that is new is soon asked."""
        return max(0.0, min([1.0, *(at - now for at in self._next.values())]))

    def heard(self, replica: Replica, problem: str) -> None:
        """Hear how an upstream answered; `problem` is "" where it is well."""
        before = replica.health.well
        replica.health.probed(problem)
        if replica.health.well == before or self._fleet.replicas.get(replica.name) is not replica:
            return
        forgotten = self._fleet.lost(replica.name)
        what = "upstream_well" if replica.health.well else "upstream_unwell"
        log.warning(what, upstream=replica.name, why=problem, forgotten=forgotten)

    async def round(self) -> None:
        """Ask everyone who is due, side by side."""
        await asyncio.gather(*(self._probe(one) for one in self.due(self._clock())))

    @contextlib.asynccontextmanager
    async def probing(self) -> AsyncIterator[None]:
        """Ask for as long as the block runs."""
        task = asyncio.create_task(self._for_ever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _for_ever(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(self.wait_s(self._clock()))

    async def _probe(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._ask(replica.upstream)
        except TimeoutError:
            self.heard(replica, f"did not answer within {TIMEOUT_S:g} seconds")
        except OSError as error:
            self.heard(replica, f"cannot be reached ({type(error).__name__})")
        else:
            self.heard(replica, "" if status < 400 or status in ALIVE else f"answers with status {status}")  # noqa: PLR2004 - errors
