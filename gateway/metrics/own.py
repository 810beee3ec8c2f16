"""Keepwarm's own series: what is counted of every exchange, from its record.

Owns these counters and histograms. Rules: a model's name is a label only where the operator named it, every other is
`unknown`; `keepwarm_input_tokens` is a partition, its sum over all labels is every prompt token; requests that are no
hit are each counted under one reason, the one that cost most tokens, so that hits and misses add up to lookups, where
who answered says why; what was not said is counted as not said: no lookup, no wait of 0; a pre-warm is neither hit nor
miss and is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from gateway.ask import Api
from gateway.metrics import shapes
from gateway.miss import REASONS
from gateway.overhead import PHASES, Phase
from gateway.record import Record
from gateway.usage import PromptFacts

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
CODES: Final = ("200", "400", "429", "499", "500", "503")  # there from the start; others come with their first answer
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Worth:
    """What one exchange saved by reading and paid for writing, beyond plain input, in the operator's currency."""

    currency: str
    saved: float
    paid: float


Pricing = Callable[[Record], Worth | None]


class Own:
    """Counts HTTP answers and the gateway's own time, and makes the series of each model."""

    def __init__(self, registry: CollectorRegistry, classes: Collection[str]) -> None:
        """Make every family, and every series that needs no model."""
        self.classes = frozenset(classes)
        self.requests = Counter(
            "keepwarm_requests",
            "Model requests, each counted once.",
            ["model", "api", "code", "stream"],
            registry=registry,
        )
        self._responses = Counter(
            "keepwarm_http_responses", "HTTP answers.", ["route", "method", "status"], registry=registry
        )
        left = Counter(
            "keepwarm_client_disconnects",
            "Clients that left before their answer was over, by what they were waiting for.",
            ["phase"],
            registry=registry,
        )
        self.left = {phase: left.labels(phase) for phase in ("waiting", "answering")}
        self._count_tokens(registry)
        self._count_cache(registry)
        self._time(registry)

    def spent(self, phase: Phase, seconds: float) -> None:
        """Count time that the gateway itself took."""
        self._overhead[phase].observe(seconds)

    def answered(self, route: str, method: str, status: int) -> None:
        """Count one HTTP answer. `route` must be one of ours; an odd method is folded."""
        self._responses.labels(route, method if method in METHODS else OTHER, str(status)).inc()

    def _count_tokens(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"keepwarm_{name}", text, ["model", *labels], registry=registry)

        self.input = counter(
            "input_tokens", "Prompt tokens, by what the cache did and how long they are kept.", "cache", "ttl"
        )
        self.reports = counter("usage_reports", "Answers, by whether who gave them said what was read.", "status")
        self.prewarms = counter("prewarms", "Requests that only made the cache warm.")
        self.warmed = counter("prewarm_tokens", "Prompt tokens of requests that only made the cache warm.", "cache")
        self.saved = counter("cache_cost_saved", "Money saved by reading, where prices are set.", "currency")
        self.paid = counter(
            "cache_write_cost", "Money paid for writing beyond plain input, where prices are set.", "currency"
        )

    def _count_cache(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"keepwarm_cache_{name}", text, ["model", *labels], registry=registry)

        self.lookups = counter("lookups", "Requests of which it is known what was read.")
        self.hits = counter("hits", "Requests that read at least what the policy asks for.")
        self.misses = counter("misses", "Requests that are no hit, each by the reason that cost most tokens.", "reason")
        self.missed = counter("missed_tokens", "Prompt tokens that were not read, by reason.", "reason")

    def _time(self, registry: CollectorRegistry) -> None:
        def timer(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"keepwarm_{name}_seconds", text, labels, buckets=buckets, registry=registry)

        self.first_token = timer(
            "time_to_first_token",
            "From a request's arrival to its first token.",
            shapes.WAIT_BUCKETS_S,
            "model",
            "cache",
        )
        self.duration = timer(
            "request_duration",
            "From a request's arrival to its end, of those that finished.",
            shapes.LENGTH_BUCKETS_S,
            "model",
        )
        self.queue = timer("queue", "How long a request waited for room.", shapes.WAIT_BUCKETS_S, "model")
        self.prefill = timer("prefill", "Computing what was not read.", shapes.WAIT_BUCKETS_S, "model")
        overhead = timer("gateway_overhead", "Time that the gateway itself took.", shapes.OVERHEAD_BUCKETS_S, "phase")
        self._overhead = {phase: overhead.labels(phase) for phase in PHASES}


class OfModel:
    """One model's series, all there from its first day, so that a counter starts at 0 and not at its first event."""

    def __init__(self, own: Own, model: str, *, timed: bool) -> None:
        """Make every series that can be made at once; waits only where the model's own engine tells of them."""
        self._own, self._model = own, model
        for api in get_args(Api):
            for code in CODES:
                for stream in ("false", "true"):
                    own.requests.labels(model, api, code, stream)
        self._reports = {status: own.reports.labels(model, status) for status in ("reported", "absent")}
        kinds = [("read", "none"), ("uncached", "none"), ("unknown", "none")]
        kinds += [("write", ttl) for ttl in (*sorted(own.classes), OTHER)]
        self._input = {(cache, ttl): own.input.labels(model, cache, ttl) for cache, ttl in kinds}
        self._prewarms = own.prewarms.labels(model)
        self._warmed = {cache: own.warmed.labels(model, cache) for cache in ("read", "write", "uncached")}
        self._lookups, self._hits = own.lookups.labels(model), own.hits.labels(model)
        self._misses = {reason: own.misses.labels(model, reason) for reason in REASONS}
        self._missed = {reason: own.missed.labels(model, reason) for reason in REASONS}
        self._first_token = {kind: own.first_token.labels(model, kind) for kind in ("hit", "miss", "unknown")}
        self._duration = own.duration.labels(model)
        if timed:
            own.queue.labels(model)
            own.prefill.labels(model)

    def ended(self, record: Record) -> None:
        """Count one exchange."""
        own, facts = self._own, record.prompt
        own.requests.labels(self._model, record.api, str(record.status), str(record.streamed).lower()).inc()
        if record.outcome == "cancelled":
            begun = facts is not None or (record.routed is not None and record.first_token_s is not None)
            own.left["answering" if begun else "waiting"].inc()
        if record.outcome == "finished":
            self._duration.observe(record.seconds)
            self._reports["reported" if record.reported and facts is not None else "absent"].inc()
        if facts is None:
            return
        if record.prewarm:
            self._prewarmed(facts)
            return
        self._read(record, facts)
        if facts.timed:
            own.queue.labels(self._model).observe(facts.queue_s)
            own.prefill.labels(self._model).observe(facts.prefill_s)
        if record.first_token_s is not None:
            kind = "unknown" if not record.reported else "hit" if record.hit else "miss"
            self._first_token[kind].observe(record.first_token_s)

    def earned(self, worth: Worth) -> None:
        """Count what an exchange was worth."""
        self._own.saved.labels(self._model, worth.currency).inc(worth.saved)
        self._own.paid.labels(self._model, worth.currency).inc(worth.paid)

    def _read(self, record: Record, facts: PromptFacts) -> None:
        if record.reported:
            self._looked_up(record, facts)
        self._input["read", "none"].inc(facts.read)
        self._input["uncached", "none"].inc(facts.uncached)
        if facts.unknown:
            self._input["unknown", "none"].inc(facts.unknown)
        for ttl, tokens in self._writes(facts):
            self._input["write", ttl].inc(tokens)

    def _looked_up(self, record: Record, facts: PromptFacts) -> None:
        self._lookups.inc()
        if record.hit:
            self._hits.inc()
        elif facts.misses:
            worst = max(facts.misses, key=lambda miss: miss.tokens)
            self._misses[worst.reason].inc()
        elif facts.timed:
            self._misses["never_written"].inc()
        for miss in facts.misses:
            self._missed[miss.reason].inc(miss.tokens)

    def _prewarmed(self, facts: PromptFacts) -> None:
        self._prewarms.inc()
        for cache, tokens in (("read", facts.read), ("write", facts.write), ("uncached", facts.uncached)):
            self._warmed[cache].inc(tokens)

    def _writes(self, facts: PromptFacts) -> Iterable[tuple[str, int]]:
        """Split what was written by class; a length that is no class of the operator's is folded."""
        left = facts.write
        for part in facts.written:
            left -= part.tokens
            yield part.applied if part.applied in self._own.classes else OTHER, part.tokens
        if left > 0:
            yield OTHER, left
