"""The metrics page of one gateway, on a registry of its own.

Owns every metric object, through the families beside it. Is told facts and reads snapshots, decides nothing. Rule: a
model is told by its name where the engine or some upstream serves it, at the latest from the next scrape on with every
series at 0; every other is `unknown`.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from engine.messages import ModelCard
from engine.operator_messages import EngineStats
from gateway.ask import Ask
from gateway.metrics.compat import Compat
from gateway.metrics.engine import EngineSeries, Reading
from gateway.metrics.fleet import FleetSeries
from gateway.metrics.genai import GenAi, GenAiOfModel
from gateway.metrics.own import OfModel, Own, Pricing, Worth
from gateway.metrics.shapes import Plain
from gateway.metrics.stream import Stream
from gateway.metrics.tenants import Tenants
from gateway.overhead import Phase
from gateway.record import UNKNOWN_MODEL, Record
from gateway.relay.fleet import Fleet
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
        fleet: Fleet | None = None,
        pricing: Pricing = _unpriced,
    ) -> None:
        """Make the families. `backend` names the engine, `fleet` has the upstreams; `pricing` says what is earned."""
        options = options or MetricsOptions()
        registry = CollectorRegistry()
        self._fleet = Fleet((), clock=time.monotonic) if fleet is None else fleet
        self._pricing, self._backend, self._bundled = pricing, backend, model
        self._own = Own(registry, options.classes)
        self._stream = Stream(model)
        registry.register(self._stream)
        self._genai = GenAi(registry)
        self._tenants = Tenants(registry, options.tenants)
        self._engine = EngineSeries(options.classes, self._tenants.names, self._tenants.fold)
        registry.register(self._engine)
        self._compat: Compat | None = None
        if options.compat == "on" or (options.compat == "auto" and backend == BUNDLED):
            self._compat = Compat(model, self._stream, self._engine)
            registry.register(self._compat)
        self.fleet = FleetSeries(registry, self._fleet)
        self._degraded = Gauge(
            "keepwarm_state_degraded", "Whether the shared state is on local knowledge only.", registry=registry
        )
        Gauge("keepwarm_build_info", "Which version runs.", ["version"], registry=registry).labels(_version()).set(1)
        self._page = Plain(registry)
        self._models: dict[str, tuple[OfModel, GenAiOfModel]] = {}
        self._begin(model)
        self._meet()

    def ended(self, record: Record, tokens: bytes) -> None:  # noqa: ARG002 - a witness; only the counts matter here
        """Count one exchange, once, under every name."""
        model = self._named(record.model)
        own, genai = self._models[model]
        own.ended(record)
        genai.ended(record)
        self._tenants.ended(record)
        if record.upstream != self._backend:
            self._stream.relayed(model, record.generated)
        elif self._compat is not None:
            self._compat.ended(record)
        if record.routed is not None:
            self.fleet.ended(record, record.routed, model)
        worth = self._pricing(record)
        if worth is not None:
            own.earned(worth)

    def _named(self, model: str) -> str:
        """Return a model's label. One that nobody serves has no series of its own, whatever a client calls it."""
        if model in self._models:
            return model
        if model in self._fleet.models:
            return self._begin(model)
        return UNKNOWN_MODEL if UNKNOWN_MODEL in self._models else self._begin(UNKNOWN_MODEL)

    def _begin(self, model: str) -> str:
        self._models[model] = OfModel(self._own, model, timed=model == self._bundled), GenAiOfModel(self._genai, model)
        return model

    def _meet(self) -> None:
        """Make the series of every model that upstreams serve by now."""
        for model in sorted(self._fleet.models):
            if model not in self._models:
                self._begin(model)
            self._stream.relayed(model, 0)
            self.fleet.begin(model)

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
        self._meet()
        self._degraded.set(degraded is not None)
        self._engine.reading = Reading(stats=stats, card=card, restarts=restarts)
        return generate_latest(self._page)


def _version() -> str:
    try:
        return importlib.metadata.version("keepwarm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
