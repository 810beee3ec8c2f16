"""Prometheus metrics of one gateway, on a registry of its own.

Owns every metric object; is told facts and reads snapshots, decides nothing. Label values come from fixed sets or from
the operator, never from a client, so the number of series is bounded.
Rule: counts and times only. A ratio is the reader's to make, over the window the reader wants.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.messages import EngineStats
from gateway.ask import Ask
from gateway.miss import REASONS
from gateway.record import Record

FIRST_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 120.0)
INTER_TOKEN_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)

METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})

GAUGES = {
    "waiting": "Requests that wait for room.",
    "running": "Sequences that are being computed.",
    "blocks_free": "Blocks that hold nothing.",
    "blocks_cached": "Blocks that hold a reusable prefix nobody uses now.",
    "blocks_held": "Blocks in use by some sequence.",
    "nodes": "Nodes of the prefix tree.",
    "blocks_promised": "Blocks kept by a promise, cached or in use.",
    "tombstones": "Runs of blocks that went and of which the reason is remembered.",
}
COUNTERS = {
    "prompt_tokens": "Prompt tokens of admitted requests.",
    "read_tokens": "Prompt tokens whose keys and values were reused.",
    "write_tokens": "Prompt tokens computed and kept on request.",
    "generated_tokens": "Answer tokens.",
    "projected_tokens": "Tokens whose keys and values were computed, recomputing included.",
    "requests_finished": "Requests that ended with an answer.",
    "requests_cancelled": "Requests whose client left.",
    "requests_failed": "Requests that failed.",
    "preemptions": "Sequences stopped to make room and computed again.",
    "blocks_evicted": "Cached blocks given up under pressure.",
    "blocks_expired": "Cached blocks given up at their deadline.",
    "steps": "Forward passes.",
}


class _EngineReading(Collector):
    """The engine's last snapshot as metrics. No snapshot means no engine: only `up` and the restarts are known then."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None
        self.restarts = 0

    def describe(self) -> Iterator[Metric]:
        """Nothing is known before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("keepwarm_engine_up", "Whether the engine is ready.", float(self.stats is not None))
        yield CounterMetricFamily("keepwarm_engine_restarts", "Times the engine was started again.", self.restarts)
        if self.stats is None:
            return
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"keepwarm_engine_{name}", text, getattr(self.stats, name))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"keepwarm_engine_{name}", text, getattr(self.stats, f"{name}_total"))
        yield CounterMetricFamily("keepwarm_engine_blocks_purged", "Cached blocks purged.", self.stats.purged_total)
        broken = CounterMetricFamily(
            "keepwarm_cache_promise_broken",
            "Promised blocks that went before their deadline.",
            labels=["class", "tenant"],
        )
        for key, blocks in self.stats.broken_promises.items():
            broken.add_metric(key.split("|", 1), blocks)
        yield broken


class Metrics:
    """Everything `/metrics` shows. Also a `Witness` and the `Pulse` of exchanges."""

    def __init__(self, model: str) -> None:
        """Make every series that can be made at once, so that a counter starts at 0 and not at its first event."""
        self.registry = CollectorRegistry()
        self._responses = Counter(
            "keepwarm_requests", "HTTP answers.", ["route", "method", "status"], registry=self.registry
        )
        exchanges = Counter("keepwarm_exchanges", "Model requests.", ["model", "outcome"], registry=self.registry)
        prompt = Counter("keepwarm_prompt_tokens", "Prompt tokens.", ["model", "cache"], registry=self.registry)
        self._outcomes = {
            outcome: exchanges.labels(model, outcome) for outcome in ("finished", "failed", "refused", "cancelled")
        }
        self._prompt = {kind: prompt.labels(model, kind) for kind in ("read", "write", "uncached")}
        self._missed = Counter(
            "keepwarm_missed_tokens",
            "Prompt tokens that were not read, by reason.",
            ["model", "reason"],
            registry=self.registry,
        )
        for reason in REASONS:
            self._missed.labels(model, reason)
        self._model = model
        self._prewarms = Counter(
            "keepwarm_prewarms", "Requests that only made the cache warm.", ["model"], registry=self.registry
        ).labels(model)
        self._output = Counter("keepwarm_output_tokens", "Answer tokens.", ["model"], registry=self.registry).labels(
            model
        )
        self._first_token = Histogram(
            "keepwarm_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            ["model"],
            buckets=FIRST_TOKEN_BUCKETS_S,
            registry=self.registry,
        ).labels(model)
        self._inter_token = Histogram(
            "keepwarm_inter_token_seconds",
            "Between one answer token and the next.",
            ["model"],
            buckets=INTER_TOKEN_BUCKETS_S,
            registry=self.registry,
        ).labels(model)
        self._degraded = Gauge(
            "keepwarm_state_degraded", "Whether the shared state is on local knowledge only.", registry=self.registry
        )
        self._engine = _EngineReading()
        self.registry.register(self._engine)

    def ended(self, record: Record, tokens: bytes) -> None:  # noqa: ARG002 - a witness; only the counts matter here
        """Count one exchange by its outcome, and its prompt by what the cache did for it.

        A pre-warm is no hit and no miss.
        """
        self._outcomes[record.outcome].inc()
        if record.prompt is None:
            return
        if record.prewarm:
            self._prewarms.inc()
            return
        self._prompt["read"].inc(record.prompt.read)
        self._prompt["write"].inc(record.prompt.write)
        self._prompt["uncached"].inc(record.prompt.uncached)
        for miss in record.prompt.misses:
            self._missed.labels(self._model, miss.reason).inc(miss.tokens)

    def tokens(self, ask: Ask, count: int, waited_s: float, *, first: bool, read: int) -> None:  # noqa: ARG002
        """Count answer tokens and time them; tokens that came together shared the wait."""
        self._output.inc(count)
        if first:
            self._first_token.observe(waited_s)
            return
        for _ in range(count):
            self._inter_token.observe(waited_s / count)

    def answered(self, route: str, method: str, status: int) -> None:
        """Count one HTTP answer. `route` must be one of ours; an odd method is folded."""
        self._responses.labels(route, method if method in METHODS else "other", str(status)).inc()

    def exposition(self, stats: EngineStats | None, restarts: int, *, degraded: str | None = None) -> bytes:
        """Return the page for one scrape, with this snapshot of the engine and why the state is degraded, if it is."""
        self._degraded.set(degraded is not None)
        self._engine.stats, self._engine.restarts = stats, restarts
        return generate_latest(self.registry)
