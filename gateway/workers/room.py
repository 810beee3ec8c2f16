"""What the parent of several workers has: the workers, its own counts, and what it saw happen.

Owns the parent's own metrics and happenings, and the reading of the configuration file for all. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gateway.backends.absent import Absent
from gateway.config import Settings
from gateway.config_file import parse_file, read_text
from gateway.errors import ConfigError
from gateway.live import Hub
from gateway.metrics import Metrics, MetricsOptions
from gateway.metrics.shapes import Plain
from gateway.relay.upstream import require_keys
from gateway.timeline import SEEN, Happening
from gateway.workers import private
from gateway.workers.crew import Crew, Plan
from gateway.workers.live import Streams
from gateway.workers.views import Json
from gateway.workers.worker import Worker

RESULTS: Final = ("done", "refused")

log = structlog.get_logger("gateway.workers")


class Figures:
    """Series that only the parent knows."""

    def __init__(self) -> None:
        """Begin at 0."""
        registry = CollectorRegistry()
        self._workers = Gauge("keepwarm_workers", "Gateway processes that answer now.", registry=registry)
        self._restarts = Counter(
            "keepwarm_worker_restarts", "Times a gateway process died and was started again.", registry=registry
        )
        self.reloads = Counter(
            "keepwarm_config_reload", "Times the configuration file was read again.", ["result"], registry=registry
        )
        for result in RESULTS:
            self.reloads.labels(result)
        self._registry, self._seen = Plain(registry), 0

    def page(self, *, up: int = 0, restarts: int = 0) -> str:
        """Return them as a page."""
        self._workers.set(up)
        self._restarts.inc(restarts - self._seen)
        self._seen = restarts
        return generate_latest(self._registry).decode()


class Room:
    """What the parent's two sides share: the workers and the operators."""

    def __init__(
        self, settings: Settings, plan: Plan, folder: Path, *, classes: Collection[str], environ: Mapping[str, str]
    ) -> None:
        """Wire it. Starts nothing."""
        self.settings = settings
        self.crew = Crew(plan, settings.workers, folder, noted=self._note)
        self.hub = Hub(lambda record: record)
        self.streams = Streams(self.crew, self.hub)
        options = MetricsOptions(
            compat=settings.compat_metrics, tenants=settings.metrics_tenants, classes=tuple(classes)
        )
        self.metrics = Metrics(Absent.name, options, backend=Absent.name)
        self.figures = Figures()
        self.started_at = time.time()
        self.seen: deque[Happening] = deque(maxlen=SEEN)
        self._environ = environ
        self._reloading = asyncio.Lock()
        self.seen.append(Happening(at=self.started_at, kind="start", title="The gateway started"))

    def own_page(self) -> str:
        """Return what the parent itself has counted."""
        counted = self.metrics.exposition(None, None).decode()
        return counted + self.figures.page(up=len(self.crew.links), restarts=self.crew.restarts)

    async def reload(self, *, by: str) -> Json:
        """Read the file and let every worker go on with what it says; one of them audits it.

        Raises ConfigError with the line that `keepwarm config check` would say, and Unanswered.
        """
        async with self._reloading:
            try:
                text = await asyncio.to_thread(self._read)
            except ConfigError as error:
                self.figures.reloads.labels("refused").inc()
                log.warning("reload_refused", by=by, reason=str(error))
                raise
            self.figures.reloads.labels("done").inc()
            try:
                answer = await self.crew.any(
                    "POST", f"{private.RELOAD}?audit=on", body=text.encode(), headers={"X-Operator": by}
                )
            finally:
                await self.crew.reload(text)
            said: Json = answer.json()
            if answer.status != 200:  # noqa: PLR2004 - what the parent took, the worker did not
                raise ConfigError(said["error"]["message"])
            return said

    def _read(self) -> str:
        path = self.settings.config
        if path is None:
            raise ConfigError("this gateway was started without --config, so there is nothing to read again")
        text = read_text(path)
        require_keys(parse_file(text, path).upstreams, self._environ)
        return text

    def _note(self, worker: Worker) -> None:
        title = f"Worker {worker.number} died and was started again (restart {worker.restarts})"
        happening = Happening(at=time.time(), kind="restart", title=title)
        self.seen.append(happening)
        self.hub.publish("change", lambda: happening)


ROOM: Final = web.AppKey("room", Room)
