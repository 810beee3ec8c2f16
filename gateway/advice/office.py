"""Advice while a gateway serves: the sample is read in short slices, so that answers go on meanwhile.

Owns the latest reading. Rules: a reading is made when somebody asks, by one for all who ask, and stands for `STANDS_S`;
alerts are always of now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gateway.advice.advise import Adviser, Pool, Rates, Trial, Unpriced, pass_over
from gateway.advice.trace import Group
from gateway.advice.traffic import Slot, Traffic

STANDS_S = 30.0
SLICE = 128  # sampled blocks read before others get their turn


class Office:
    """Answers who wants advice."""

    def __init__(
        self,
        traffic: Traffic,
        *,
        ttl_s: Callable[[Group], float],
        pool: Callable[[], Pool],
        rates: Rates | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read `traffic`. `ttl_s` and `pool` say what is in force now."""
        self._traffic, self._ttl_s, self._pool, self._clock = traffic, ttl_s, pool, clock
        self._rates = rates or Unpriced()
        self._lock = asyncio.Lock()
        self._reading: tuple[float, Adviser] | None = None

    async def told(self, tenant: str | None, model: str | None) -> dict[str, Any]:
        """Return advice, curves and alerts of that tenant and model."""
        adviser = await self._adviser()
        alerts = self._traffic.watch.alerts(self._clock())
        shown = [one for one in alerts if tenant in {None, one.tenant} and model in {None, one.model}]
        return {**adviser.told(tenant, model), "alerts": [asdict(one) for one in shown]}

    async def _adviser(self) -> Adviser:
        async with self._lock:
            now = self._clock()
            if self._reading is None or not 0 <= now - self._reading[0] < STANDS_S:
                self._reading = now, await self._read()
            return self._reading[1]

    async def _read(self) -> Adviser:
        pool, limit, slots = self._pool(), self._traffic.limit, _copies(self._traffic.slots())
        groups = {use.group for slot in slots for use in slot.uses}
        reuse = pass_over(pool, {self._ttl_s(group) for group in groups if isinstance(group, Group)})
        reuse.thin(limit)
        trial = Trial(pool, reuse.rate)
        done = 0
        for slot in slots:
            for group, (requests, tokens, covered) in slot.rest.items():
                reuse.total(group, requests, tokens, covered)
            for use in slot.uses:
                reuse.observe(use)
                trial.feed(use)
                done += len(use.blocks)
                if done >= SLICE:
                    done = 0
                    await asyncio.sleep(0)
        assert reuse.limit == limit, "the curves know every block of the sample"
        return Adviser(reuse, self._ttl_s, pool, self._rates, trial)


def _copies(slots: tuple[Slot, ...]) -> list[Slot]:
    """Return what there is now: more comes while it is read."""
    return [
        Slot(slot.start, list(slot.uses), {group: list(counts) for group, counts in slot.rest.items()})
        for slot in slots
    ]
