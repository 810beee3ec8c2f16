"""The `keepwarm` object beside every API's usage: what was computed, what is kept, why it missed, what it cost. Pure.

Rule: it is the same object in every wire format, made of the same facts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from gateway import miss as miss_report
from gateway.usage import Facts, projections


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    time_to_first_token_ms: float


class ProjectionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Projections done, and what the same answer would have cost without a cache."""

    done: int
    without_prefix_cache: int
    without_kv_cache: int


class KeptFor(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one mark."""

    tokens: int
    asked: str | None
    applied: str | None
    until: str | None
    kept: Literal["promised", "held", "none"]
    reason: str | None


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt parts from the earlier one, and what the text there looks like."""

    message: str  # its path in the request
    character: int | None
    token: int
    looks_like: str


class Miss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prompt tokens that were not read, and why."""

    reason: str
    fate: str
    tokens: int
    at: str | None = None
    where: Where | None = None


class Keepwarm(msgspec.Struct, frozen=True, kw_only=True):
    """The extension beside `usage`: what was computed, what is kept, why it missed, and what it cost."""

    computed_tokens: int
    timings: Timings
    projections: ProjectionCounts
    retention: tuple[KeptFor, ...]
    miss: tuple[Miss, ...]
    normalised: tuple[str, ...]  # rules by which telemetry was taken out of the prompt


def extension_of(facts: Facts) -> Keepwarm:
    """Make the `keepwarm` object."""
    counts = projections(facts)
    return Keepwarm(
        computed_tokens=facts.computed,
        timings=Timings(
            queue_ms=_ms(facts.queue_s),
            prefill_ms=_ms(facts.prefill_s),
            decode_ms=_ms(facts.decode_s),
            time_to_first_token_ms=_ms(facts.first_token_s),
        ),
        projections=ProjectionCounts(
            done=counts.done,
            without_prefix_cache=counts.without_prefix_cache,
            without_kv_cache=counts.without_kv_cache,
        ),
        retention=tuple(
            KeptFor(
                tokens=mark.tokens,
                asked=mark.asked,
                applied=mark.applied,
                until=None if mark.until is None else _instant(mark.until),
                kept=mark.kept,
                reason=mark.reason,
            )
            for mark in facts.retention
        ),
        miss=tuple(
            Miss(
                reason=miss.reason,
                fate=miss.fate,
                tokens=miss.tokens,
                at=None if miss.at is None else _instant(miss.at),
                where=None if miss.where is None else _where(miss.where),
            )
            for miss in facts.misses
        ),
        normalised=facts.normalised,
    )


def _where(where: miss_report.Where) -> Where:
    return Where(message=where.message, character=where.character, token=where.token, looks_like=where.looks_like)


def _instant(at: datetime) -> str:
    """Write a time as RFC 3339 in UTC, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
