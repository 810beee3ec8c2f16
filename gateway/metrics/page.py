"""The metrics page of one gateway, on a registry of its own.

Owns every metric object, through the families beside it. Is told facts and reads snapshots, decides nothing.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from engine.messages import EngineStats, ModelCard
from gateway.ask import Ask
from gateway.metrics.compat import Compat
from gateway.metrics.engine import EngineSeries, Reading
from gateway.metrics.genai import GenAi
from gateway.metrics.own import Own, Pricing, Worth
from gateway.metrics.shapes import Plain
from gateway.metrics.stream import Stream
from gateway.metrics.tenants import Tenants
from gateway.overhead import Phase
from gateway.record import Record
from prefix_store.classes import CLASSES

BUNDLED = "bundled"  # the backend whose engine has no metrics page of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """What operators choose about the page."""

    compat: Literal["auto", "on", "off"] = "auto"
    tenants: Collection[str] = ()
    classes: Collection[str] = tuple(CLASSES.lengths_s)


def _unpriced(_: Record) -> Worth | None:
    return None


class Metrics:
    """Everything `/metrics` shows. A `Witness`, the `Pulse` of exchanges and the `Stopwatch` of the gateway's time."""

    def __init__(
        self,
        model: str,
        options: MetricsOptions | None = None,
        *,
        backend: str = BUNDLED,
        pricing: Pricing = _unpriced,
    ) -> None:
        """Make the families. `backend` names who computes; `pricing` says what an exchange was worth."""
        options = options or MetricsOptions()
        registry = CollectorRegistry()
        self._pricing = pricing
        self._own = Own(registry, model, options.classes)
        self._stream = Stream(model)
        registry.register(self._stream)
        self._genai = GenAi(registry, model)
        self._tenants = Tenants(registry, options.tenants)
        self._engine = EngineSeries(options.classes, self._tenants.names, self._tenants.fold)
        registry.register(self._engine)
        self._compat: Compat | None = None
        if options.compat == "on" or (options.compat == "auto" and backend == BUNDLED):
            self._compat = Compat(model, self._own, self._stream, self._engine)
            registry.register(self._compat)
        self._degraded = Gauge(
            "keepwarm_state_degraded", "Whether the shared state is on local knowledge only.", registry=registry
        )
        Gauge("keepwarm_build_info", "Which version runs.", ["version"], registry=registry).labels(_version()).set(1)
        self._page = Plain(registry)

    def ended(self, record: Record, tokens: bytes) -> None:  # noqa: ARG002 - a witness; only the counts matter here
        """Count one exchange, once, under every name."""
        self._own.ended(record)
        self._genai.ended(record)
        self._tenants.ended(record)
        if self._compat is not None:
            self._compat.ended(record)
        worth = self._pricing(record)
        if worth is not None:
            self._own.earned(worth)

    def tokens(self, ask: Ask, count: int, waited_s: float, *, first: bool, read: int) -> None:  # noqa: ARG002
        """Count answer tokens as they come."""
        self._stream.tokens(count, waited_s, first=first)

    def spent(self, phase: Phase, seconds: float) -> None:
        """Count time that the gateway itself took."""
        self._own.spent(phase, seconds)

    def answered(self, route: str, method: str, status: int) -> None:
        """Count one HTTP answer. `route` must be one of ours."""
        self._own.answered(route, method, status)

    def exposition(
        self,
        stats: EngineStats | None,
        restarts: int | None,
        *,
        degraded: str | None = None,
        card: ModelCard | None = None,
    ) -> bytes:
        """Return the page for one scrape, with this snapshot of the engine and why the state is degraded, if it is.

        `restarts` is None where the gateway has no engine at all.
        """
        self._degraded.set(degraded is not None)
        self._engine.reading = Reading(stats=stats, card=card, restarts=restarts)
        return generate_latest(self._page)


def _version() -> str:
    try:
        return importlib.metadata.version("keepwarm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
