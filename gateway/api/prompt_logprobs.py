"""How likely a prompt's tokens were, as vLLM's extension of OpenAI's endpoints tells it. Pure.

Rule: one entry for each prompt token, null for the first, of which nothing tells; an entry has the likeliest tokens and
the prompt's own, by token id. They are told whole, never in a stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.events import Began, Event, Logprob


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One token that stood in the prompt, or could have stood there."""

    logprob: float
    rank: int  # 1: the likeliest
    decoded_token: str


PromptLogprobs = tuple[dict[str, PromptLogprob] | None, ...]


def prompt_logprobs_of(events: Sequence[Event], top: int) -> PromptLogprobs:
    """Shape what the beginning of an answer tells of the prompt, with so many of the likeliest tokens."""
    rows = next((one.prompt_logprobs for one in events if isinstance(one, Began)), ())
    return (None, *(_entry(row, top) for row in rows[1:]))


def _entry(row: Logprob, top: int) -> dict[str, PromptLogprob]:
    likeliest = {str(other.id): _told(other, rank) for rank, other in enumerate(row.top[:top], 1)}
    return likeliest if str(row.id) in likeliest else likeliest | {str(row.id): _told(row, row.rank)}


def _told(row: Logprob, rank: int) -> PromptLogprob:
    return PromptLogprob(logprob=row.logprob, rank=rank, decoded_token=row.token)
