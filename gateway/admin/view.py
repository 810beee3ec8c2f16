"""One exchange as the operators' API shows it. Pure.

Rules: times are seconds since the epoch, durations seconds; what is not known is null and never 0; the strip covers the
prompt's tokens in order, each once, so its parts sum to the prompt; a place is named and never shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gateway.miss import MissReport
from gateway.record import UNNAMED, Record, Routed
from gateway.retention import MarkReport
from gateway.usage import Facts, PromptFacts, projections
from prefix_store.store import Json


def view(record: Record) -> Json:
    """Show one exchange."""
    facts = record.prompt
    told = facts if record.reported else None
    timed = facts if facts is not None and facts.timed else None
    return {
        "id": record.id,
        "at": record.at,
        "tenant": record.tenant,
        "key": record.key,
        "model": record.model,
        "api": record.api,
        "upstream": record.upstream,
        "streamed": record.streamed,
        "prewarm": record.prewarm,
        "outcome": record.outcome,
        "status": record.status,
        "prompt": None if facts is None else facts.prompt,
        "read": None if told is None else told.read,
        "write": {} if facts is None else _written(facts),
        "uncached": None if told is None else told.uncached,
        "output": record.generated,
        "queue_s": None if timed is None else timed.queue_s,
        "prefill_s": None if timed is None else timed.prefill_s,
        "first_token_s": record.first_token_s,
        "decode_s": None if record.first_token_s is None else record.decode_s,
        "seconds": record.seconds,
        "misses": [] if facts is None else [_miss(miss) for miss in facts.misses],
        "strip": [] if facts is None else list(strip(facts)),
        "marks": [] if facts is None else [_mark(mark) for mark in facts.retention],
        "projections": None if timed is None else _projections(record, timed),
        "routed": None if record.routed is None else _routed(record.routed),
    }


def strip(facts: PromptFacts) -> Iterator[Json]:
    """Yield the prompt's stretches in order: what was read, what was written by class, the rest."""
    if facts.read:
        yield {"kind": "read", "tokens": facts.read, "class": None}
    for klass, tokens in _runs(facts):
        yield {"kind": "write", "tokens": tokens, "class": klass}
    if facts.uncached:
        yield {"kind": "uncached", "tokens": facts.uncached, "class": None}
    if facts.unknown:
        yield {"kind": "unknown", "tokens": facts.unknown, "class": None}


def _runs(facts: PromptFacts) -> Iterator[tuple[str | None, int]]:
    """Yield what was written by class, in order; what no class covers comes last."""
    left = facts.write
    for part in facts.written:
        tokens = min(part.tokens, left)
        if tokens > 0:
            yield part.applied or None, tokens
            left -= tokens
    if left:
        yield None, left


def _written(facts: PromptFacts) -> dict[str, int]:
    sums: dict[str, int] = {}
    for klass, tokens in _runs(facts):
        sums[klass or UNNAMED] = sums.get(klass or UNNAMED, 0) + tokens
    return sums


def _miss(miss: MissReport) -> Json:
    where = miss.where
    place: Json | None = None
    if where is not None:
        place = {
            "message": where.message,
            "token": where.token,
            "character": where.character,
            "looks_like": where.looks_like,
        }
    return {"reason": miss.reason, "fate": miss.fate, "tokens": miss.tokens, "at": _seconds(miss.at), "where": place}


def _mark(mark: MarkReport) -> Json:
    return {
        "tokens": mark.tokens,
        "asked": mark.asked,
        "applied": mark.applied,
        "kept": mark.kept,
        "until": _seconds(mark.until),
        "reason": mark.reason or None,
    }


def _routed(routed: Routed) -> Json:
    return {
        "why": routed.why,
        "available": routed.available,
        "captured": routed.captured,
        "delivered": routed.delivered,
    }


def _projections(record: Record, facts: PromptFacts) -> Json:
    counted = projections(
        Facts(
            prompt=facts.prompt,
            read=facts.read,
            write=facts.write,
            queue_s=facts.queue_s,
            prefill_s=facts.prefill_s,
            generated=record.generated,
            projected=record.projected,
            decode_s=record.decode_s,
            first_token_s=record.first_token_s or 0.0,
        )
    )
    return {
        "done": counted.done,
        "without_prefix_cache": counted.without_prefix_cache,
        "without_kv_cache": counted.without_kv_cache,
    }


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
