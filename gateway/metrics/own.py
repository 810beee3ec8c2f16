"""Keepwarm's own series: what is counted of every exchange, from its record.

Owns these counters and histograms. Rules: `keepwarm_input_tokens` is a partition, its sum over all labels is every
prompt token; requests that are no hit are each counted under one reason, the one that cost most tokens, so that hits
and misses add up to lookups; a pre-warm is neither and is counted apart.
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
    """Counts exchanges, tokens, HTTP answers and the gateway's own time."""

    def __init__(self, registry: CollectorRegistry, model: str, classes: Collection[str]) -> None:
        """Make every series that can be made at once, so that a counter starts at 0 and not at its first event."""
        self._model, self._classes = model, frozenset(classes)
        self._count_requests(registry)
        self._count_tokens(registry)
        self._count_cache(registry)
        self._time(registry)

    def ended(self, record: Record) -> None:
        """Count one exchange."""
        self._requests.labels(record.model, record.api, str(record.status), str(record.streamed).lower()).inc()
        if record.outcome == "cancelled":
            self._left["waiting" if record.prompt is None else "answering"].inc()
        if record.outcome == "finished":
            self.duration.observe(record.seconds)
            self._reports["absent" if record.prompt is None else "reported"].inc()
        if record.prompt is None:
            return
        if record.prewarm:
            self._prewarmed(record.prompt)
            return
        self._read(record, record.prompt)
        self.queue.observe(record.prompt.queue_s)
        self.prefill.observe(record.prompt.prefill_s)
        if record.first_token_s is not None:
            self._first_token["hit" if record.hit else "miss"].observe(record.first_token_s)

    def earned(self, worth: Worth) -> None:
        """Count what an exchange was worth."""
        self._saved.labels(self._model, worth.currency).inc(worth.saved)
        self._paid.labels(self._model, worth.currency).inc(worth.paid)

    def spent(self, phase: Phase, seconds: float) -> None:
        """Count time that the gateway itself took."""
        self._overhead[phase].observe(seconds)

    def answered(self, route: str, method: str, status: int) -> None:
        """Count one HTTP answer. `route` must be one of ours; an odd method is folded."""
        self._responses.labels(route, method if method in METHODS else OTHER, str(status)).inc()

    def _read(self, record: Record, facts: PromptFacts) -> None:
        self._lookups.inc()
        if record.hit:
            self._hits.inc()
        elif facts.misses:
            worst = max(facts.misses, key=lambda miss: miss.tokens)
            self._misses[worst.reason].inc()
        else:
            self._misses["never_written"].inc()
        for miss in facts.misses:
            self._missed[miss.reason].inc(miss.tokens)
        self._input["read", "none"].inc(facts.read)
        self._input["uncached", "none"].inc(facts.uncached)
        for ttl, tokens in self._writes(facts):
            self._input["write", ttl].inc(tokens)

    def _prewarmed(self, facts: PromptFacts) -> None:
        self._prewarms.inc()
        for cache, tokens in (("read", facts.read), ("write", facts.write), ("uncached", facts.uncached)):
            self._warmed[cache].inc(tokens)

    def _writes(self, facts: PromptFacts) -> Iterable[tuple[str, int]]:
        """Split what was written by class; a length that is no class of the operator's is folded."""
        left = facts.write
        for part in facts.written:
            left -= part.tokens
            yield part.applied if part.applied in self._classes else OTHER, part.tokens
        if left > 0:
            yield OTHER, left

    def _count_requests(self, registry: CollectorRegistry) -> None:
        model = self._model
        self._responses = Counter(
            "keepwarm_http_responses", "HTTP answers.", ["route", "method", "status"], registry=registry
        )
        self._requests = Counter(
            "keepwarm_requests",
            "Model requests, each counted once.",
            ["model", "api", "code", "stream"],
            registry=registry,
        )
        for api in get_args(Api):
            for code in CODES:
                for stream in ("false", "true"):
                    self._requests.labels(model, api, code, stream)
        left = Counter(
            "keepwarm_client_disconnects",
            "Clients that left before their answer was over, by what they were waiting for.",
            ["phase"],
            registry=registry,
        )
        self._left = {phase: left.labels(phase) for phase in ("waiting", "answering")}
        reports = Counter(
            "keepwarm_usage_reports",
            "Answers, by whether their usage is known.",
            ["model", "status"],
            registry=registry,
        )
        self._reports = {status: reports.labels(model, status) for status in ("reported", "absent", "estimated")}

    def _count_tokens(self, registry: CollectorRegistry) -> None:
        model = self._model
        tokens = Counter(
            "keepwarm_input_tokens",
            "Prompt tokens, by what the cache did and how long they are kept.",
            ["model", "cache", "ttl"],
            registry=registry,
        )
        kinds = [("read", "none"), ("uncached", "none"), ("unknown", "none")]
        kinds += [("write", ttl) for ttl in (*sorted(self._classes), OTHER)]
        self._input = {(cache, ttl): tokens.labels(model, cache, ttl) for cache, ttl in kinds}
        self._prewarms = Counter(
            "keepwarm_prewarms", "Requests that only made the cache warm.", ["model"], registry=registry
        ).labels(model)
        warmed = Counter(
            "keepwarm_prewarm_tokens",
            "Prompt tokens of requests that only made the cache warm.",
            ["model", "cache"],
            registry=registry,
        )
        self._warmed = {cache: warmed.labels(model, cache) for cache in ("read", "write", "uncached")}
        self._saved, self._paid = (
            Counter(f"keepwarm_cache_{name}", text, ["model", "currency"], registry=registry)
            for name, text in (
                ("cost_saved", "Money saved by reading, where prices are set."),
                ("write_cost", "Money paid for writing beyond plain input, where prices are set."),
            )
        )

    def _count_cache(self, registry: CollectorRegistry) -> None:
        model = self._model
        self._lookups, self._hits = (
            Counter(f"keepwarm_cache_{name}", text, ["model"], registry=registry).labels(model)
            for name, text in (
                ("lookups", "Requests whose prompt was looked up."),
                ("hits", "Requests that read at least what the policy asks for."),
            )
        )
        misses = Counter(
            "keepwarm_cache_misses",
            "Requests that are no hit, each by the reason that cost most tokens.",
            ["model", "reason"],
            registry=registry,
        )
        self._misses = {reason: misses.labels(model, reason) for reason in REASONS}
        missed = Counter(
            "keepwarm_cache_missed_tokens",
            "Prompt tokens that were not read, by reason.",
            ["model", "reason"],
            registry=registry,
        )
        self._missed = {reason: missed.labels(model, reason) for reason in REASONS}

    def _time(self, registry: CollectorRegistry) -> None:
        model = self._model

        def timer(name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            labels = ["model", label] if label and label != "phase" else [label or "model"]
            return Histogram(f"keepwarm_{name}_seconds", text, labels, buckets=buckets, registry=registry)

        self.first_token = timer(
            "time_to_first_token", "From a request's arrival to its first token.", "cache", shapes.WAIT_BUCKETS_S
        )
        self._first_token = {kind: self.first_token.labels(model, kind) for kind in ("hit", "miss")}
        self.duration = timer(
            "request_duration",
            "From a request's arrival to its end, of those that finished.",
            "",
            shapes.LENGTH_BUCKETS_S,
        ).labels(model)
        self.queue = timer("queue", "How long a request waited for room.", "", shapes.WAIT_BUCKETS_S).labels(model)
        self.prefill = timer("prefill", "Computing what was not read.", "", shapes.WAIT_BUCKETS_S).labels(model)
        overhead = timer("gateway_overhead", "Time that the gateway itself took.", "phase", shapes.OVERHEAD_BUCKETS_S)
        self._overhead = {phase: overhead.labels(phase) for phase in PHASES}
