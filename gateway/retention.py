"""From what a client marked to how the engine keeps it, and back to what the client is told. Pure.

Knows no wire format, no tree and no clock. Rule: a valid but unallowed TTL is lowered and said; only one that is no
duration is the client's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from engine.messages import Keep, KeptMark, Order, Prefilled
from gateway.errors import BadRequest
from prefix_store.classes import RetentionClasses
from prefix_store.marks import Mark, Resolved, resolve
from prefix_store.policy import Policy

Mode = Literal["implicit", "explicit"]
MOST_MARKS = 4  # of one request; the latest ones count


@dataclass(frozen=True, slots=True)
class AskedMark:
    """A mark as the client wrote it: its TTL, None for the policy's default, and the path of the field."""

    ttl: str | None
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a client wants kept. In explicit mode without a mark nothing is read and nothing is written."""

    mode: Mode = "implicit"
    ttl: str | None = None  # for marks that name none; in implicit mode also a mark at the prompt's end
    marks: tuple[AskedMark, ...] = ()
    write_all: bool = True  # in implicit mode: what is kept without a mark was asked for too
    prewarm: bool = False  # the prompt is made warm for a later request: without a mark, the whole of it
    ttl_path: str = "prompt_cache_options.ttl"


@dataclass(frozen=True, slots=True)
class Kept:
    """How one request is kept: for the engine, and each mark's outcome so far, in the client's order."""

    keep: Keep
    outcomes: tuple[Resolved, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkReport:
    """What became of one mark. `until` is wall-clock time, None where nothing is kept."""

    tokens: int
    asked: str | None
    applied: str | None
    until: datetime | None
    kept: Literal["promised", "held", "none"]
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Prompt tokens computed now and kept because the request asked for it, under one retention class."""

    tokens: int
    asked: str | None  # the TTL the client named, None where it named none
    applied: str  # the class they are kept under


def plan(
    wish: Wish, positions: Sequence[int], prompt: int, policy: Policy, classes: RetentionClasses, block_tokens: int
) -> Kept:
    """Resolve the latest marks, at token `positions` of a prompt of `prompt` tokens, against a policy.

    Raises BadRequest, naming the field, for a TTL that is no duration.
    """
    latest = wish.marks[len(wish.marks) - len(positions) :]
    asked = [(Mark(at, mark.ttl or wish.ttl), mark.path) for at, mark in zip(positions, latest, strict=True)]
    if (wish.mode == "implicit" and wish.ttl is not None) or (wish.prewarm and not asked):
        asked.append((Mark(prompt, wish.ttl), wish.ttl_path))
    outcomes: list[Resolved] = []
    for mark, path in asked[-MOST_MARKS:]:
        try:
            outcomes += resolve([mark], prompt, policy, block_tokens, classes)
        except ValueError as error:
            raise BadRequest(f"{error}", param=path) from error
    orders = [
        Order(tokens=outcome.tokens, ttl_s=outcome.ttl_s, klass=outcome.applied)
        for outcome in outcomes
        if outcome.ttl_s is not None and outcome.applied is not None
    ]
    keep = Keep(
        policy=policy.name,
        marks=tuple(sorted(orders, key=lambda order: order.tokens)),
        held_ttl_s=policy.default_s,
        held_klass="" if policy.default_s is None else classes.label(policy.default_s),
        sliding=policy.mode == "sliding",
        priority=policy.priority,
        min_tokens=policy.min_tokens,
        cache=wish.mode == "implicit" or bool(asked),
        write_all=wish.mode == "implicit" and wish.write_all,
    )
    return Kept(keep, tuple(outcomes))


def written(kept: Kept, prefilled: Prefilled) -> tuple[Written, ...]:
    """Split what was written by class: each token is kept under the longest accepted mark that covers it."""
    keep = kept.keep
    accepted = [
        (order.tokens, order.ttl_s, order.klass)
        for order, mark in zip(keep.marks, prefilled.marks, strict=True)
        if mark.kept == "promised"
    ]
    asked = {(outcome.tokens, outcome.applied): outcome.asked for outcome in kept.outcomes}
    parts, at, end = [], prefilled.read, prefilled.read + prefilled.write
    for stop in sorted({tokens for tokens, _, _ in accepted if at < tokens < end} | ({end} if at < end else set())):
        over = [mark for mark in accepted if mark[0] >= stop]
        if over:
            tokens, _, klass = max(over, key=lambda mark: mark[1])
            parts.append(Written(tokens=stop - at, asked=asked[tokens, klass], applied=klass))
        else:
            parts.append(Written(tokens=stop - at, asked=None, applied=keep.held_klass))
        at = stop
    return tuple(parts)


def report(kept: Kept, marks: Sequence[KeptMark], now: datetime) -> tuple[MarkReport, ...]:
    """Join each mark's outcome with what the engine did, in the client's order."""
    done = {(order.tokens, order.klass): mark for order, mark in zip(kept.keep.marks, marks, strict=True)}
    reports = []
    for outcome in kept.outcomes:
        mark = done.get((outcome.tokens, outcome.applied or ""))
        stays = mark is not None and mark.kept != "none"
        reports.append(
            MarkReport(
                tokens=outcome.tokens,
                asked=outcome.asked,
                applied=outcome.applied if stays else None,
                until=now + timedelta(seconds=mark.left_s) if mark is not None and stays else None,
                kept=mark.kept if mark is not None else "none",
                reason=(mark.reason if mark is not None else "") or outcome.reason,
            )
        )
    return tuple(reports)
