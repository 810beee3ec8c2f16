"""How likely tokens were under the model itself: log-softmax of raw logits, before anything that shapes a choice.

Owns nothing. Rule: a few rows at a time, and never a whole distribution where only some of its entries are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.messages import TokenLogprob

SLICE_ROWS = 64  # 64 rows of a vocabulary of 150,000 in float32 are 38 MB


def tell(logits: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    """Return, for each row of `logits` [rows, vocab], its token's log-probability and the `top` likeliest tokens."""
    return tuple(
        told
        for start in range(0, len(tokens), SLICE_ROWS)
        for told in _slice(logits[start : start + SLICE_ROWS], tokens[start : start + SLICE_ROWS], top)
    )


def _slice(logits: Tensor, tokens: Sequence[int], top: int) -> Iterator[TokenLogprob]:
    whole = logits.logsumexp(-1, keepdim=True)
    chosen = (
        (logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None]) - whole).clamp(max=0.0)[:, 0].tolist()
    )
    best, ids = logits.topk(min(top, logits.shape[-1]))
    likeliest = (best - whole).clamp(max=0.0).tolist()
    for token, logprob, names, values in zip(tokens, chosen, ids.tolist(), likeliest, strict=True):
        yield TokenLogprob(token, logprob, tuple(zip(names, values, strict=True)))
