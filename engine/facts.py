"""What a request is told: of its marks, of what it did not find, of why it is refused. Pure; knows no tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from engine.errors import EngineError
from engine.messages import Fate, KeptMark, Missed, Refused
from engine.request import Request
from prefix_store.reasons import Absence
from prefix_store.retention import Kept, Retention


def missed(request: Request, absences: Iterable[Absence], read: int, *, now: float) -> tuple[Missed, ...]:
    """Give every prompt token that was not read exactly one fate, in order; the tokens sum to prompt − read.

    `absences` speak of whole blocks. Tokens of the first one that were copied from a partial block were read; what is
    left behind the last whole block was never written.
    """
    if not request.keep.cache or request.prompt_logprobs is not None:
        return (Missed(fate="no_cache", tokens=request.prompt),)
    if not request.cached:
        return (Missed(fate="below_minimum", tokens=request.prompt),)
    block = request.namespace.block_tokens
    whole = request.prompt - request.prompt % block
    told: list[Missed] = []
    at = whole - sum(absence.blocks for absence in absences) * block
    runs: list[tuple[Fate, int, float | None]]
    runs = [(absence.fate.value, absence.blocks * block, absence.at) for absence in absences]
    for fate, tokens, gone_at in [*runs, ("never_written", request.prompt - whole, None)]:
        unread = min(tokens, at + tokens - read)
        at += tokens
        if unread > 0:
            _add(told, fate, unread, None if gone_at is None else now - gone_at)
    return tuple(told)


def _add(told: list[Missed], fate: Fate, tokens: int, ago_s: float | None) -> None:
    if told and told[-1].fate == fate and told[-1].ago_s == ago_s:
        tokens += told.pop().tokens
    told.append(Missed(fate=fate, tokens=tokens, ago_s=ago_s))


def kept_marks(
    request: Request, granted: Sequence[tuple[int, Retention, float]], *, now: float
) -> tuple[KeptMark, ...]:
    """Say what became of each mark, given (tokens, retention, deadline) of the granted ones; none without a cache."""
    if not request.cached:
        none = KeptMark(tokens=0, kept="none", left_s=0.0, reason="below_minimum" if request.keep.cache else "")
        return tuple(msgspec.structs.replace(none, tokens=order.tokens) for order in request.keep.marks)
    return tuple(
        KeptMark(
            tokens=tokens,
            kept="promised" if retention.kept is Kept.PROMISED else "held",
            left_s=max(0.0, deadline - now),
            reason="" if retention.kept is Kept.PROMISED else "budget",
        )
        for tokens, retention, deadline in granted
    )


def refused(request_id: str, error: EngineError) -> Refused:
    """Turn an error into the message that carries it over the border."""
    return Refused(
        id=request_id,
        kind=type(error).__name__,
        message=str(error),
        field=getattr(error, "field", ""),
        retry_after_s=getattr(error, "retry_after_s", 0.0),
    )
