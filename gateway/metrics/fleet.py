"""Relayed requests as series: where they were sent, what was promised and delivered, how each upstream does.

Owns what is counted from records; what upstreams are now, and what only they count, is read from the fleet at each
scrape. Rules: names are the operator's: configured upstreams, and models that some upstream has served; available,
captured and delivered are sums over the same answers, those that said what was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.record import Record, Routed
from gateway.relay.fleet import Fleet
from gateway.routing.router import Policy, Why
from prefix_store.breaker import Circuit

STAGES: Final = ("available", "captured", "delivered")
REASONS: Final[dict[Policy, tuple[Why, ...]]] = {  # what each policy can decide by
    "prefix": ("prefix", "load", "chance"),
    "least_load": ("load",),
    "round_robin": ("turn",),
    "session": ("session", "prefix", "load", "chance"),
}
CIRCUITS: Final = {Circuit.CLOSED: 0, Circuit.TRIAL: 1, Circuit.OPEN: 2}
RELOADS: Final = ("done", "refused")


class FleetSeries(Collector):
    """What routing did, from records, and the state of the moment, from the fleet."""

    def __init__(self, registry: CollectorRegistry, fleet: Fleet) -> None:
        """Watch this fleet."""
        self._fleet = fleet
        self.draining = False
        self._prefix = Counter(
            "keepwarm_prefix_tokens",
            "Prompt tokens that some upstream was believed to hold, that the chosen one was, and that were read.",
            ["model", "stage"],
            registry=registry,
        )
        self._stages: dict[str, list[Counter]] = {}
        self._decisions = Counter(
            "keepwarm_route_decisions",
            "Requests that were sent to an upstream, by what decided which.",
            ["policy", "outcome"],
            registry=registry,
        )
        self._reloads = Counter(
            "keepwarm_config_reload", "Times the configuration file was read again.", ["result"], registry=registry
        )
        for result in RELOADS:
            self._reloads.labels(result)
        self._why: dict[tuple[str, str], Counter] = {
            (policy, why): self._decisions.labels(policy, why) for policy in REASONS for why in REASONS[policy]
        }
        registry.register(self)

    def begin(self, model: str) -> None:
        """Make a model's series."""
        self._stages[model] = [self._prefix.labels(model, stage) for stage in STAGES]

    def ended(self, record: Record, routed: Routed, model: str) -> None:
        """Count one request for which an upstream was chosen."""
        decision = self._why.get((self._fleet.policy(record.model), routed.why))
        if decision is not None:
            decision.inc()
        if routed.delivered is not None:
            if model not in self._stages:
                self.begin(model)
            available, captured, delivered = self._stages[model]
            available.inc(routed.available)
            captured.inc(routed.captured)
            delivered.inc(routed.delivered)

    def reloaded(self, *, done: bool) -> None:
        """Count that the configuration file was read again; not `done`: it was refused and changed nothing."""
        self._reloads.labels("done" if done else "refused").inc()

    def describe(self) -> Iterator[Metric]:
        """Return the families, so that nobody else takes their names."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Return what each upstream is now, and what it has counted."""
        yield GaugeMetricFamily(
            "keepwarm_draining", "Whether this gateway takes no new requests, as it is about to stop.", self.draining
        )
        requests = CounterMetricFamily(
            "keepwarm_upstream_requests",
            "Requests to an upstream, those sent again to another included, by how they ended.",
            labels=["upstream", "outcome"],
        )
        retries = _counter("retries", "Requests that went on to another upstream.")
        aborts = _counter("upstream_aborts", "Requests to an upstream that ended because their client left.")
        health = _gauge("upstream_health", "Whether an upstream is well, by its probes.")
        circuit = _gauge("circuit_state", "Whether an upstream is asked: 0 yes, 1 one request tries, 2 no.")
        load = _gauge("upstream_load_tokens", "Prompt tokens that wait at an upstream, and a share for each answer.")
        resident = _gauge("upstream_resident_tokens", "Prompt tokens that an upstream is believed to hold.")
        for name, replica in self._fleet.replicas.items():
            for outcome, count in replica.outcomes.items():
                requests.add_metric([name, outcome], count)
            retries.add_metric([name], replica.retries)
            aborts.add_metric([name], replica.outcomes["cancelled"])
            health.add_metric([name], float(replica.health.well))
            circuit.add_metric([name], CIRCUITS[replica.health.breaker.circuit])
            load.add_metric([name], self._fleet.load_tokens(name))
            resident.add_metric([name], self._fleet.resident_tokens(name))
        yield from (requests, retries, aborts, health, circuit, load, resident)


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"keepwarm_{name}", text, labels=["upstream"])


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"keepwarm_{name}", text, labels=["upstream"])
