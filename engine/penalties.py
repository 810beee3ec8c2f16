"""What a request changes in one row of logits before a token is chosen: penalties, bias, and what a grammar forbids.

Owns nothing and knows no temperature. Rule: what counts is the sequence's tokens, whether their K/V were computed or
read from the cache. The order is repetition, then presence and frequency, then bias, then the grammar, so that nothing
makes a forbidden token possible.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from engine.messages import Sampling


def penalises(sampling: Sampling) -> bool:
    """Whether `penalise` would change anything."""
    return bool(
        sampling.logit_bias
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
    )


def penalise(scores: Tensor, sampling: Sampling, tokens: bytes | bytearray, prompt: int) -> None:
    """Change one row [vocab] in place. `tokens` are prompt and answer so far, of which `prompt` are the prompt's."""
    if sampling.repetition_penalty != 1.0:
        seen = _ids(tokens, 0).to(scores.device)
        held = scores[seen]  # a token that stands twice is written twice, with the same value
        scores[seen] = torch.where(held > 0, held / sampling.repetition_penalty, held * sampling.repetition_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        said, counts = torch.unique(_ids(tokens, prompt), return_counts=True)
        less = counts.double() * sampling.frequency_penalty + sampling.presence_penalty
        scores[said.to(scores.device)] -= less.to(scores)
    if sampling.logit_bias:
        favoured = torch.tensor(list(sampling.logit_bias), device=scores.device)
        scores[favoured] += torch.tensor(list(sampling.logit_bias.values()), dtype=scores.dtype, device=scores.device)


def forbid(scores: Tensor, allowed: bytes) -> None:
    """Rule out, in place, every token whose bit in `allowed` is not set, and those beyond its end."""
    bits = np.unpackbits(np.frombuffer(allowed, dtype=np.uint8), count=len(scores), bitorder="little")
    scores.masked_fill_(torch.from_numpy(bits == 0).to(scores.device), -torch.inf)


def withhold(scores: Tensor, tokens: Collection[int]) -> None:
    """Rule out, in place, tokens that would end the answer, unless a grammar lets nothing else come."""
    ids = torch.tensor(sorted(tokens), device=scores.device)
    held = scores[ids]
    scores[ids] = -torch.inf
    if scores.max() == -torch.inf:
        scores[ids] = held


def _ids(tokens: bytes | bytearray, start: int) -> Tensor:
    return torch.from_numpy(np.frombuffer(tokens, dtype="<u4")[start:].astype(np.int64))
