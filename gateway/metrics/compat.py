"""The bundled engine under vLLM's names, so that boards and endpoint pickers made for vLLM work over it.

Owns its histograms; the rest is told once more from the stream and the engine's snapshot. Rules: only for the engine
that is bundled and for what it answered, as a vLLM elsewhere is scraped by itself; tokens are counted from records, so
that they are the sums of what the answers said, whatever scheduling did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.messages import ModelCard
from engine.operator_messages import EngineStats
from gateway.metrics.engine import EngineSeries
from gateway.metrics.shapes import LENGTH_BUCKETS_S, TOKEN_BUCKETS, WAIT_BUCKETS_S, renamed, spans
from gateway.metrics.stream import Stream
from gateway.record import Record

ENGINE: Final = "0"  # the number of the one engine
ENDS: Final = {"stop": "stop", "length": "length", "cancelled": "abort"}  # how answers end, in vLLM's words
BLOCKS: Final = {
    "lifetime": ("lifetime", "From a block's being kept to its being given up."),
    "idle_before_evict": ("idle_before_evict", "How long blocks that went under pressure had not been used."),
    "reuse_gap": ("reuse_gap", "Between one use of a block and the next."),
}


class Compat(Collector):
    """Families under vLLM's names."""

    def __init__(self, model: str, stream: Stream, engine: EngineSeries) -> None:
        """Tell these series once more."""
        self._stream, self._engine = stream, engine
        self._labels = {"model_name": model, "engine": ENGINE}
        self._prompt = self._read = 0
        registry = CollectorRegistry()
        self._histograms = registry

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, list(self._labels), buckets=buckets, registry=registry)
            return made.labels(*self._labels.values())

        self._first = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", WAIT_BUCKETS_S
        )
        self._length = histogram(
            "e2e_request_latency_seconds",
            "From a request's arrival to its end, of those that finished.",
            LENGTH_BUCKETS_S,
        )
        self._queue = histogram("request_queue_time_seconds", "How long a request waited for room.", WAIT_BUCKETS_S)
        self._prefill = histogram("request_prefill_time_seconds", "Computing what was not read.", WAIT_BUCKETS_S)
        self._tokens = histogram("request_prompt_tokens", "Prompt tokens of one request.", TOKEN_BUCKETS)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens of one request that were computed.", TOKEN_BUCKETS
        )

    def describe(self) -> Iterator[Metric]:
        """Nothing is known before the first scrape."""
        return iter(())

    def ended(self, record: Record) -> None:
        """Count one exchange of the bundled engine; a pre-warm's prompt is a prompt too."""
        if record.outcome == "finished":
            self._length.observe(record.seconds)
        facts = record.prompt
        if facts is None:
            return
        self._prompt += facts.prompt
        self._read += facts.read
        self._tokens.observe(facts.prompt)
        self._computed.observe(facts.computed)
        if record.prewarm:
            return
        self._queue.observe(facts.queue_s)
        self._prefill.observe(facts.prefill_s)
        if record.first_token_s is not None:
            self._first.observe(record.first_token_s)

    def collect(self) -> Iterator[Metric]:
        """Return every family; what the engine alone knows only while there is one."""
        yield from self._counted()
        yield renamed(self._stream.gaps(), "vllm:inter_token_latency_seconds", self._labels)
        yield from self._histograms.collect()
        if self._engine.reading.stats is not None:
            yield from self._snapshot(self._engine.reading.stats, self._engine.reading.card)

    def _counted(self) -> Iterator[Metric]:
        for name, text, count in (
            ("prefix_cache_queries", "Prompt tokens that were looked up.", self._prompt),
            ("prefix_cache_hits", "Prompt tokens that were found.", self._read),
            ("prompt_tokens", "Prompt tokens.", self._prompt),
            ("prompt_tokens_cached", "Prompt tokens whose keys and values were reused.", self._read),
            ("generation_tokens", "Answer tokens.", self._stream.output),
        ):
            yield self._counter(name, text, {"": count}, "")
        sources = {"local_compute": self._prompt - self._read, "local_cache_hit": self._read, "external_kv_transfer": 0}
        yield self._counter("prompt_tokens_by_source", "Prompt tokens, by where they came from.", sources, "source")
        tiers = {"device": self._read}
        yield self._counter("prompt_tokens_cached_by_source", "Reused prompt tokens, by tier.", tiers, "source")

    def _snapshot(self, stats: EngineStats, card: ModelCard | None) -> Iterator[Metric]:
        used, cached = stats.blocks_held, stats.blocks_cached
        blocks = used + cached + stats.blocks_free
        for name, text, value in (
            (
                "kv_cache_usage_perc",
                "Share of blocks in use by some sequence, 0 to 1.",
                used / blocks if blocks else 0.0,
            ),
            ("num_requests_running", "Sequences that are being computed.", stats.running),
            ("num_requests_waiting", "Requests that wait for room.", stats.waiting),
        ):
            yield self._gauge(name, text, {"": value}, "")
        waiting = {"capacity": stats.waiting, "deferred": 0}
        yield self._gauge("num_requests_waiting_by_reason", "Requests that wait, by why.", waiting, "reason")
        preempted = {"": stats.preemptions_total}
        yield self._counter("num_preemptions", "Sequences stopped to make room.", preempted, "")
        ends = {word: stats.finished_by.get(reason, 0) for reason, word in ENDS.items()}
        yield self._counter("request_success", "Answers, by how they ended.", ends, "finished_reason")
        for name, (field, text) in BLOCKS.items():
            yield spans(f"vllm:kv_block_{name}_seconds", text, getattr(stats, field), self._labels)
        if card is not None:
            config = {"block_size": str(card.block_tokens), "num_gpu_blocks": str(card.blocks)}
            config |= {"cache_dtype": card.kv_dtype, "enable_prefix_caching": "True"}
            family = GaugeMetricFamily("vllm:cache_config_info", "How the cache is set up.", labels=["engine", *config])
            family.add_metric([ENGINE, *config.values()], 1.0)
            yield family

    def _counter(self, name: str, text: str, values: Mapping[str, float], label: str) -> Metric:
        return self._filled(CounterMetricFamily(f"vllm:{name}", text, labels=self._names(label)), values)

    def _gauge(self, name: str, text: str, values: Mapping[str, float], label: str) -> Metric:
        return self._filled(GaugeMetricFamily(f"vllm:{name}", text, labels=self._names(label)), values)

    def _names(self, label: str) -> list[str]:
        return [*self._labels, label] if label else [*self._labels]

    def _filled(self, family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
        for word, value in values.items():
            family.add_metric([*self._labels.values(), word] if word else [*self._labels.values()], value)
        return family
