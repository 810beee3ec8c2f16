"""The facts of one answer, and the arithmetic that every wire format derives its numbers from. Pure.

Rule: facts are what the engine did, never what was expected: `read + write + uncached == prompt`, and a prompt token is
either read or computed. A projection is one token's keys and values computed in all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.miss import Comparison, MissReport
from gateway.retention import MarkReport, Written

__all__ = ["Facts", "Projections", "PromptFacts", "Written", "projections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """What one prompt cost: `read + write + uncached + unknown == prompt`. Times are seconds."""

    prompt: int
    read: int
    write: int
    queue_s: float
    prefill_s: float
    written: tuple[Written, ...] = ()  # `write` by class, in the prompt's order
    retention: tuple[MarkReport, ...] = ()  # what became of each mark
    misses: tuple[MissReport, ...] = ()  # why tokens were not read; they sum to `computed`
    comparison: Comparison | None = None  # what the client asked to be told of two requests
    unknown: int = 0  # of which nobody said whether they were read
    timed: bool = True  # whether `queue_s` and `prefill_s` are known
    normalised: tuple[str, ...] = ()  # rules by which the gateway took telemetry out of the prompt

    @property
    def computed(self) -> int:
        """Prompt tokens that were not read from the cache."""
        return self.prompt - self.read

    @property
    def uncached(self) -> int:
        """Prompt tokens that were computed and that nobody asked to keep."""
        return self.computed - self.write - self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(PromptFacts):
    """What one request cost, all its choices together. `projected` is None where an answer was left before its end."""

    generated: int
    projected: int | None
    decode_s: float
    first_token_s: float  # from the request's arrival to its first token, seen from the gateway; 0 where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Projections:
    """Projections done, and what the same answer would have cost without a cache."""

    done: int
    without_prefix_cache: int
    without_kv_cache: int


def projections(facts: Facts) -> Projections:
    """Count projections. The last generated token is never projected; without a KV cache each step redoes them all."""
    prompt, generated = facts.prompt, facts.generated
    fed_back = max(generated - 1, 0)
    return Projections(
        done=facts.computed + fed_back if facts.projected is None else facts.projected,
        without_prefix_cache=prompt + fed_back,
        without_kv_cache=generated * prompt + generated * (generated - 1) // 2,  # sum of prompt + k, k < generated
    )
