"""Why prompt tokens were not read: what the client changed, joined with what became of the tokens. Pure.

Rules: every token that was not read has exactly one reason, and the reports sum to prompt − read; the text's own change
is the reason where there is one, what became of the blocks elsewhere; the engine's word is kept as the fate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from engine.messages import Fate, Missed
from gateway.compare import Divergence
from prefix_store.fingerprints import Fingerprint

REASONS: Final = (  # every word that a miss can be given
    "new",
    "model",
    "tools",
    "system",
    "messages",
    "template",
    "retokenised",
    "never_written",
    "below_minimum",
    "no_cache",
    "expired",
    "evicted",
    "broken_promise",
    "purged",
    "policy_changed",
    "weights_changed",
    "template_changed",
)
_NEVER_WRITTEN: Final[Fate] = "never_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place at which a prompt parts from an earlier one. `character` is within the message's text."""

    message: str  # `tools[1]`, `system`, `messages[3]`
    token: int
    character: int | None = None
    looks_like: str = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissReport:
    """Prompt tokens that were not read, why, and since when."""

    reason: str
    fate: str
    tokens: int
    at: datetime | None
    where: Where | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison that the client asked for told about the two requests, whatever was read."""

    earlier: bool  # whether the request it named is remembered
    divergence: Divergence | None = None
    partition: bool = False  # the cache key is another
    settings: tuple[str, ...] = ()  # names of what shapes a prompt beside its parts and is another
    read: bool = True  # what both have in common was read, but for part of a block


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why tokens were not read; they sum to prompt − read. `comparison` only where the client asked for one."""

    misses: tuple[MissReport, ...]
    comparison: Comparison | None = None


def misses(missed: Sequence[Missed], now: datetime) -> tuple[MissReport, ...]:
    """Say why tokens were not read where nothing is known of an earlier request."""
    return tuple(
        MissReport(reason=miss.fate, fate=miss.fate, tokens=miss.tokens, at=_instant(miss, now)) for miss in missed
    )


def explain(
    divergence: Divergence | None,
    missed: Sequence[Missed],
    *,
    read: int,
    prompt: int,
    now: datetime,
    same_text: str | None = None,
    where: Where | None = None,
) -> tuple[MissReport, ...]:
    """Give each of the tokens from `read` to `prompt` its reason, in order.

    `same_text` is the word for what was never written although the earlier request had the same text, and `where` the
    place of the change, told beside every report that has its reason.
    """
    reports: list[MissReport] = []
    at = read
    for miss in _filled(missed, prompt - read):
        for end, reason in _cut(divergence, at, at + miss.tokens):
            structural = reason not in {None, "new"}
            word = same_text if reason is None and miss.fate == _NEVER_WRITTEN else reason
            report = MissReport(
                reason=word or miss.fate,
                fate=miss.fate,
                tokens=end - at,
                at=_instant(miss, now),
                where=where if structural else None,
            )
            _add(reports, report)
            at = end
    return tuple(reports)


def changed_word(current: Fingerprint, earlier: Fingerprint) -> str | None:
    """Name what the operator changed under the same model name since the earlier request, None where nothing."""
    if current.model != earlier.model:
        return None
    if current.weights != earlier.weights:
        return "weights_changed"
    return "template_changed" if current.rendering != earlier.rendering else None


def _filled(missed: Sequence[Missed], tokens: int) -> Iterator[Missed]:
    """Yield runs that sum to `tokens`, whatever was told."""
    for miss in missed:
        taken = min(miss.tokens, tokens)
        if taken > 0:
            yield Missed(fate=miss.fate, tokens=taken, ago_s=miss.ago_s)
            tokens -= taken
    if tokens > 0:
        yield Missed(fate=_NEVER_WRITTEN, tokens=tokens)


def _cut(divergence: Divergence | None, begin: int, end: int) -> Iterator[tuple[int, str | None]]:
    """Cut a stretch where the text begins to differ and where it begins to be new; None: the text is the same."""
    if divergence is None:
        yield end, None
        return
    borders = ((divergence.token, None), (divergence.until, divergence.reason), (end, "new"))
    for border, reason in borders:
        stop = min(border, end)
        if stop > begin:
            yield stop, reason
            begin = stop


def _add(reports: list[MissReport], report: MissReport) -> None:
    last = reports[-1] if reports else None
    if last is not None and replace(last, tokens=report.tokens) == report:
        reports[-1] = replace(last, tokens=last.tokens + report.tokens)
    else:
        reports.append(report)


def _instant(miss: Missed, now: datetime) -> datetime | None:
    return None if miss.ago_s is None else now - timedelta(seconds=miss.ago_s)
