"""The OpenTelemetry conventions' names for generative AI, as Prometheus spells them.

Owns these histograms. Rule: types of tokens overlap, as the conventions want it: `input` includes what was read and
written, so only `input` and `output` may be added up.
"""

from __future__ import annotations

from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

from gateway.ask import Api
from gateway.metrics.shapes import LENGTH_BUCKETS_S, TOKEN_BUCKETS, TOKEN_GAP_BUCKETS_S, WAIT_BUCKETS_S
from gateway.record import Record

PROVIDER: Final = "keepwarm"
OPERATIONS: Final[dict[Api, str]] = {
    "chat": "chat",
    "completions": "text_completion",
    "responses": "chat",
    "messages": "chat",
}
KINDS: Final = ("input", "output", "cached_input", "cache_creation_input")
COMMON: Final = ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"]


class GenAi:
    """The conventions' families."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Make the families."""

        def histogram(name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            labels = [*COMMON, label] if label else COMMON
            return Histogram(f"gen_ai_{name}", text, labels, buckets=buckets, registry=registry)

        self.usage = histogram(
            "client_token_usage", "Tokens of one request; input includes cached.", "gen_ai_token_type", TOKEN_BUCKETS
        )
        self.duration = histogram(
            "server_request_duration_seconds", "From a request's arrival to its end.", "error_type", LENGTH_BUCKETS_S
        )
        self.first = histogram(
            "server_time_to_first_token_seconds", "From a request's arrival to its first token.", "", WAIT_BUCKETS_S
        )
        self.gap = histogram(
            "server_time_per_output_token_seconds",
            "Mean time of one request between answer tokens.",
            "",
            TOKEN_GAP_BUCKETS_S,
        )


class GenAiOfModel:
    """Counts one model's exchanges under the conventions' names."""

    def __init__(self, families: GenAi, model: str) -> None:
        """Make every series that can be made at once."""
        self._duration, self._model = families.duration, model
        operations = sorted(set(OPERATIONS.values()))
        self._usage = {
            (operation, kind): families.usage.labels(operation, PROVIDER, model, kind)
            for operation, kind in product(operations, KINDS)
        }
        self._first = {operation: families.first.labels(operation, PROVIDER, model) for operation in operations}
        self._gap = {operation: families.gap.labels(operation, PROVIDER, model) for operation in operations}
        for operation in operations:
            self._duration.labels(operation, PROVIDER, model, "")

    def ended(self, record: Record) -> None:
        """Count one exchange. What was refused before it had a prompt used no tokens, which is not 0 tokens."""
        operation = OPERATIONS[record.api]
        error = "" if record.outcome == "finished" else str(record.status)
        self._duration.labels(operation, PROVIDER, self._model, error).observe(record.seconds)
        facts = record.prompt
        if facts is None:
            return
        counts = (facts.prompt, record.generated, facts.read, facts.write)
        for kind, tokens in zip(KINDS if record.reported else KINDS[:2], counts, strict=False):
            self._usage[operation, kind].observe(tokens)
        if record.first_token_s is not None:
            self._first[operation].observe(record.first_token_s)
        if record.generated > 1:
            self._gap[operation].observe(record.decode_s / (record.generated - 1))
