"""Traces for OpenTelemetry: a span for each exchange, made from its record at its end, sent over OTLP/HTTP.

Owns the provider, its queue and the thread that sends. Rules: counts, times and names, never text; the client's W3C
trace context is the parent, and what it did not sample is not sent; nothing here ever makes an answer wait, so what the
collector does not take in time is dropped.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.metrics.genai import OPERATIONS, PROVIDER
from gateway.record import Record

PATH: Final = "/v1/traces"
SEND_TIMEOUT_S: Final = 5.0


class Traces:
    """A `Witness` that makes spans."""

    def __init__(self, provider: TracerProvider) -> None:
        """Make spans with this provider."""
        self._provider = provider
        self._tracer = provider.get_tracer("keepwarm")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def towards(cls, endpoint: str, *, every_ms: int = 2000) -> Traces:
        """Send to this collector now and then."""
        base = endpoint.rstrip("/")
        url = base if base.endswith(PATH) else base + PATH
        provider = TracerProvider(
            sampler=ParentBased(ALWAYS_ON),
            resource=Resource.create({SERVICE_NAME: PROVIDER}),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=url, timeout=SEND_TIMEOUT_S)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=every_ms))
        return cls(provider)

    def ended(self, record: Record, tokens: bytes) -> None:  # noqa: ARG002 - a witness; traces have no tokens
        """Make the spans of one exchange."""
        began = _ns(record.at)
        operation = OPERATIONS[record.api]
        span = self._tracer.start_span(
            f"{operation} {record.model}",
            context=self._parent(record),
            kind=SpanKind.SERVER,
            start_time=began,
            attributes=_attributes(record, operation),
        )
        if record.status >= 400:  # noqa: PLR2004 - statuses from here on are no answers
            span.set_attribute("error.type", str(record.status))
            span.set_status(Status(StatusCode.ERROR, record.outcome))
        inside = set_span_in_context(span, Context())
        for name, start_s, stop_s in _phases(record):
            child = self._tracer.start_span(name, context=inside, start_time=began + _ns(start_s))
            child.end(began + _ns(stop_s))
        span.end(began + _ns(record.seconds))

    def close(self) -> None:
        """Send what is left, and end the thread. Blocks, a few seconds at most."""
        self._provider.shutdown()

    def _parent(self, record: Record) -> Context:
        carrier = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        return self._propagator.extract({name: text for name, text in carrier.items() if text}, context=Context())


def _phases(record: Record) -> list[tuple[str, float, float]]:
    """Return queue, prefill and decode as name, begin and end, in seconds after the arrival.

    They are placed backwards from the first token, which is when the engine's facts came.
    """
    facts = record.prompt
    if facts is None:
        return []
    first = record.seconds if record.first_token_s is None else record.first_token_s
    computed = max(first - facts.prefill_s, 0.0)
    phases = [("queue", max(computed - facts.queue_s, 0.0), computed), ("prefill", computed, first)]
    if not facts.timed:
        phases = []
    if record.first_token_s is not None:
        phases.append(("decode", first, min(first + record.decode_s, record.seconds)))
    return phases


def _attributes(record: Record, operation: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.response.id": record.id,
        "keepwarm.api": record.api,
        "keepwarm.outcome": record.outcome,
        "keepwarm.stream": record.streamed,
        "keepwarm.tenant": record.tenant,
        "keepwarm.upstream": record.upstream,
        "http.response.status_code": record.status,
    }
    if record.key is not None:
        attributes["keepwarm.key"] = record.key
    if record.outcome == "finished":
        attributes["gen_ai.response.model"] = record.model
        attributes["gen_ai.response.finish_reasons"] = record.ends
    facts = record.prompt
    if facts is not None:  # else no tokens are known, which is not 0 tokens
        attributes["gen_ai.usage.input_tokens"] = facts.prompt
        attributes["gen_ai.usage.output_tokens"] = record.generated
        if record.reported:
            attributes["gen_ai.usage.cache_read.input_tokens"] = facts.read
            attributes["gen_ai.usage.cache_creation.input_tokens"] = facts.write
            attributes["keepwarm.usage.uncached_tokens"] = facts.uncached
        attributes["keepwarm.miss.reasons"] = tuple(dict.fromkeys(miss.reason for miss in facts.misses))
    return attributes


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
