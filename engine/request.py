"""One accepted request, as a frozen value. Knows no torch and no wire format."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Keep, Sampling
from prefix_store.chain import TOKEN_BYTES, Namespace

__all__ = ["TOKEN_BYTES", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine works on. `tokens` is the prompt as little-endian uint32."""

    id: str
    tokens: bytes
    namespace: Namespace
    max_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    keep: Keep
    prompt_logprobs: int | None = None  # alternatives to tell beside each prompt token; None scores nothing
    confined: bool = False  # to a grammar: nothing is computed before it is compiled
    seed: int  # the caller's, or one drawn at the door: after preemption the same tokens come again

    @property
    def prompt(self) -> int:
        """Prompt length in tokens."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def cached(self) -> bool:
        """Whether the request reads and writes at all."""
        return self.keep.cache and self.prompt >= self.keep.min_tokens
