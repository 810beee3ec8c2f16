"""What is looked at while the traffic runs: the two processes' memory, and what the engine says of pool and tree.

Owns nothing: a sample is a value. Rule: it reads `/metrics` as an operator's Prometheus does, and memory as the system
counts it.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final

import aiohttp
import psutil

SERIES: Final = re.compile(r"^keepwarm_engine_(\w+) (\S+)$", re.MULTILINE)
PATIENCE: Final = 60  # looks in a row at which the engine may be too busy to answer
GAUGES: Final = ("blocks_free", "blocks_cached", "blocks_held", "nodes", "tombstones", "waiting", "running")
COUNTERS: Final = (
    "requests_finished",
    "requests_cancelled",
    "requests_failed",
    "preemptions",
    "coalesced_tokens",
    "blocks_evicted",
    "blocks_expired",
    "blocks_purged",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One moment."""

    at_s: float  # since the traffic began
    gateway_bytes: int  # resident
    engine_bytes: int
    gateway_files: int  # open, sockets included
    engine_files: int
    engine: dict[str, float]  # gauges and counters by name

    @property
    def idle(self) -> bool:
        """Whether nothing is computed and nobody waits."""
        return not (self.engine["running"] or self.engine["waiting"])


class Watcher:
    """Looks at one server, a child of this process."""

    def __init__(self, session: aiohttp.ClientSession, admin_url: str) -> None:
        """Find the server's two processes. Raises RuntimeError when there are none."""
        self._session, self._admin_url = session, admin_url
        self._gateway, self._engine = _child("gateway.cli"), _child("engine.worker")

    async def sample(self, at_s: float) -> Sample:
        """Look now. Raises RuntimeError when the engine says nothing for a minute."""
        told: dict[str, str] = {}
        for _ in range(PATIENCE):  # an engine in a long step is left out of the answer
            async with self._session.get(f"{self._admin_url}/metrics") as response:
                told = dict(SERIES.findall(await response.text()))
            if told.keys() >= set(GAUGES):
                break
            await asyncio.sleep(1)
        else:
            raise RuntimeError("the engine says nothing about itself")
        gauges = {name: float(told[name]) for name in GAUGES}
        return Sample(
            at_s=round(at_s, 1),
            gateway_bytes=self._gateway.memory_info().rss,
            engine_bytes=self._engine.memory_info().rss,
            gateway_files=self._gateway.num_fds(),
            engine_files=self._engine.num_fds(),
            engine=gauges | {name: float(told[f"{name}_total"]) for name in COUNTERS},
        )


def _child(module: str) -> psutil.Process:
    for process in psutil.Process().children(recursive=True):
        if module in process.cmdline():
            return process
    raise RuntimeError(f"the server has no process that runs {module}")
