"""One sequence's part of a step: what is to be computed, and what came of it. Knows no torch.

Owns nothing: the scheduler makes chunks, the runner computes them, the scheduler takes in their outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.hold import Copy
from engine.messages import TokenLogprob
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Project tokens [start, start + count) of one sequence, after the copies that it needs."""

    sequence: Sequence
    start: int
    count: int
    copies: tuple[Copy, ...] = ()

    @property
    def completes(self) -> bool:
        """Whether the chunk reaches the end of what is known."""
        return self.start + self.count == self.sequence.length

    @property
    def samples(self) -> bool:
        """Whether the last of the chunk's tokens yields a new one."""
        return self.completes and self.sequence.request.max_tokens > 0

    @property
    def scored(self) -> range:
        """The positions whose logits say how likely the prompt's next token was, where that is asked for."""
        request = self.sequence.request
        if request.prompt_logprobs is None:
            return range(0)
        return range(max(self.start, len(self.sequence.scored)), min(self.start + self.count, request.prompt - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one chunk brought: a token where it samples, log-probabilities where they are asked for."""

    token: int | None = None
    logprob: TokenLogprob | None = None  # of that token
    scored: tuple[TokenLogprob, ...] = ()  # of the prompt's tokens after the chunk's `scored` positions
