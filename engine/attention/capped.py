"""Attention whose scores are capped, softcap · tanh(score / softcap), by plain matrix products.

No fused kernel on a CPU has the cap and returns the log-sum-exp. Rule: the scores of one piece of rows are in memory at
a time, never more than `MOST_SCORES` unless one row alone has more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention import Scoring

MOST_SCORES = 1 << 22  # 16 MiB in float32

Part = tuple[Tensor, Tensor]  # over some of the keys: outputs [..., head_dim], log-sum-exps [...]


def capped(grouped: Tensor, key: Tensor, value: Tensor, scoring: Scoring, mask: Tensor | None = None) -> Part:
    """Attend from [rows, kv_heads, group, head_dim] to [tokens, kv_heads, head_dim]; every row sees at least one.

    `mask` [rows, tokens] is added to the scores. Returns [kv_heads, rows, group, head_dim] and its log-sum-exps.
    """
    count, kv_heads, group, _ = grouped.shape
    most = max(1, MOST_SCORES // (kv_heads * group * len(key)))
    pieces = [
        _piece(grouped[at : at + most], key, value, scoring, None if mask is None else mask[at : at + most])
        for at in range(0, count, most)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([out for out, _ in pieces], dim=1), torch.cat([lse for _, lse in pieces], dim=1)


def causal_mask(grouped: Tensor) -> Tensor:
    """Return the mask of rows that see each other up to their own place."""
    count = grouped.shape[0]
    return torch.full((count, count), float("-inf"), dtype=grouped.dtype, device=grouped.device).triu(1)


def _piece(grouped: Tensor, key: Tensor, value: Tensor, scoring: Scoring, mask: Tensor | None) -> Part:
    count, kv_heads, group, head_dim = grouped.shape
    assert scoring.softcap is not None
    rows = grouped.transpose(0, 1).reshape(kv_heads, count * group, head_dim)
    scores = rows @ key.permute(1, 2, 0)  # [kv_heads, rows · group, tokens]
    scores = scores.mul_(scoring.scaling / scoring.softcap).tanh_().mul_(scoring.softcap)
    if mask is not None:
        scores.view(kv_heads, count, group, -1).add_(mask[:, None])
    lse = torch.logsumexp(scores, dim=-1)
    out = scores.sub_(lse[..., None]).exp_() @ value.transpose(0, 1)
    return out.view(kv_heads, count, group, head_dim), lse.view(kv_heads, count, group)
