"""The engine's last snapshot as series.

Owns nothing but that snapshot. Rule: no snapshot means no engine; then only whether it is up and how often it was
started again is known, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.messages import ModelCard
from engine.operator_messages import EXTENTS, EngineStats
from gateway.metrics.own import OTHER
from gateway.metrics.shapes import buckets, spans

GAUGES: Final = {
    "waiting": "Requests that wait for room.",
    "running": "Sequences that are being computed.",
    "blocks_free": "Blocks that hold nothing.",
    "blocks_cached": "Blocks that hold a reusable prefix nobody uses now.",
    "blocks_held": "Blocks in use by some sequence.",
    "nodes": "Nodes of the prefix tree.",
    "blocks_promised": "Blocks kept by a promise, cached or in use.",
    "tombstones": "Runs of blocks that went and of which the reason is remembered.",
}
COUNTERS: Final = {
    "prompt_tokens": "Prompt tokens of admitted requests.",
    "read_tokens": "Prompt tokens whose keys and values were reused.",
    "write_tokens": "Prompt tokens computed and kept on request.",
    "generated_tokens": "Answer tokens.",
    "projected_tokens": "Tokens whose keys and values were computed, recomputing included.",
    "requests_finished": "Requests that ended with an answer.",
    "requests_cancelled": "Requests whose client left.",
    "requests_failed": "Requests that failed.",
    "preemptions": "Sequences stopped to make room and computed again.",
    "compacted_blocks": "Blocks that were copied next to each other, because their prefix lay in many pieces.",
    "coalesced_tokens": "Prompt tokens that a request read and that nobody had computed when it came.",
    "blocks_evicted": "Cached blocks given up under pressure.",
    "blocks_expired": "Cached blocks given up at their deadline.",
    "steps": "Forward passes.",
}
SPANS: Final = {
    "entry_age_at_read": ("age_at_read", "How old entries were when they were read."),
    "reuse_gap": ("reuse_gap", "Between one use of a block and the next."),
    "block_lifetime": ("lifetime", "From a block's being kept to its being given up."),
    "idle_before_evict": ("idle_before_evict", "How long blocks that went under pressure had not been used."),
}
EXTENTS_TEXT: Final = "Contiguous stretches in which a sequence's keys and values lay when it ended or was preempted."
KEPT: Final = ("promised", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read of the engine for one scrape. No `stats`: there is no engine now."""

    stats: EngineStats | None = None
    card: ModelCard | None = None
    restarts: int | None = 0  # None: the gateway has no engine at all


class EngineSeries(Collector):
    """Turns the reading of the moment into families."""

    def __init__(self, classes: Collection[str], tenants: Collection[str], fold: Callable[[str], str]) -> None:
        """Show these retention classes and tenants from the start; `fold` names the label of any tenant."""
        self.reading = Reading()
        self._classes = (*sorted(classes), OTHER)
        self._tenants, self._fold = tenants, fold

    def describe(self) -> Iterator[Metric]:
        """Nothing is known before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return every family that is known now."""
        stats, card = self.reading.stats, self.reading.card
        if self.reading.restarts is None:
            return
        yield GaugeMetricFamily("keepwarm_engine_up", "Whether the engine is ready.", float(stats is not None))
        yield CounterMetricFamily(
            "keepwarm_engine_restarts", "Times the engine was started again.", self.reading.restarts
        )
        if stats is None:
            return
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"keepwarm_engine_{name}", text, getattr(stats, name))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"keepwarm_engine_{name}", text, getattr(stats, f"{name}_total"))
        yield CounterMetricFamily("keepwarm_engine_blocks_purged", "Cached blocks purged.", stats.purged_total)
        extents = HistogramMetricFamily("keepwarm_engine_sequence_extents", EXTENTS_TEXT)
        extents.add_metric([], buckets(EXTENTS, stats.extents), stats.extents_total)
        yield extents
        yield from self._gone(stats)
        yield from self._kept(stats, 0 if card is None else card.kv_bytes_per_token)
        for name, (field, text) in SPANS.items():
            yield spans(f"keepwarm_cache_{name}_seconds", text, getattr(stats, field))

    def _gone(self, stats: EngineStats) -> Iterator[Metric]:
        evicted = CounterMetricFamily(
            "keepwarm_cache_evicted_blocks", "Cached blocks given up, by cause.", labels=["reason"]
        )
        evicted.add_metric(["expired"], stats.blocks_expired_total)
        evicted.add_metric(["evicted"], stats.blocks_evicted_total)
        evicted.add_metric(["purged"], stats.purged_total)
        yield evicted
        broken = CounterMetricFamily(
            "keepwarm_cache_promise_broken",
            "Promised blocks that went before their deadline.",
            labels=["class", "tenant"],
        )
        sums = {(klass, tenant): 0 for klass in self._classes for tenant in self._tenants}
        for key, blocks in stats.broken_promises.items():
            klass, _, tenant = key.partition("|")
            sums[self._class(klass), self._fold(tenant)] += blocks
        for labels, blocks in sums.items():
            broken.add_metric(labels, blocks)
        yield broken

    def _kept(self, stats: EngineStats, token_bytes: int) -> Iterator[Metric]:
        entries, tokens = self._sums(stats.entries_by), self._sums(stats.tokens_by)
        for name, text, sums, factor in (
            ("entries", "Entries that are kept.", entries, 1),
            ("tokens_held", "Tokens whose keys and values are kept.", tokens, 1),
            ("entry_bytes", "Memory of what is kept.", tokens, token_bytes),
        ):
            family = GaugeMetricFamily(f"keepwarm_cache_{name}", text, labels=["class", "kept"])
            for labels, count in sums.items():
                family.add_metric(labels, count * factor)
            yield family

    def _sums(self, by: Mapping[str, int]) -> dict[tuple[str, str], int]:
        sums = {(klass, kept): 0 for klass in self._classes for kept in KEPT}
        for key, count in by.items():
            klass, _, kept = key.partition("|")
            sums[self._class(klass), kept] += count
        return sums

    def _class(self, klass: str) -> str:
        return klass if klass in self._classes else OTHER
