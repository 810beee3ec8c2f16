"""Attention on CPU over a past that is stored in fewer bits: read as floats, and attended to, a piece at a time.

A piece is small enough to stay in the processor's cache between the two, and there is no float copy of the whole past.
Pieces are merged by their log-sum-exps into one part.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention import Scoring
from engine.attention.capped import Part
from engine.cascade import Stretch
from engine.stored import Stored

PIECE_NUMBERS = 1 << 21  # of K, and as many of V: 8 MiB each in float32

Dense = Callable[[Tensor, Tensor, Tensor, Stretch, Scoring], Part]


def past(grouped: Tensor, pool: tuple[Stored, Stored], stretch: Stretch, scoring: Scoring, dense: Dense) -> Part:
    """Attend from [rows, kv_heads, group, head_dim] to a stretch; `dense` does so over floats.

    Returns [kv_heads, rows, group, head_dim] and its log-sum-exps.
    """
    slot, length = stretch
    keys, values = pool
    piece = max(1, PIECE_NUMBERS // (grouped.shape[1] * grouped.shape[3]))
    parts = []
    for at in range(0, length, piece):
        tokens = min(piece, length - at)
        where = slice(slot + at, slot + at + tokens)
        parts.append(dense(grouped, keys[where], values[where], (0, tokens), scoring))
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Part]) -> Part:
    """Merge attention over disjoint keys into one part."""
    sums = torch.stack([lse for _, lse in parts])
    total = torch.logsumexp(sums, dim=0)
    weights = sums.sub_(total).exp_().unsqueeze(-1)
    out = weights[0] * parts[0][0]
    for weight, (each, _) in zip(weights[1:], parts[1:], strict=True):
        out += weight * each
    return out, total
