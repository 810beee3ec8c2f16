"""Attention on CPU over a past that is stored in fewer bits, without a float copy of it.

For few rows, as in decoding, scales are folded into what is small: those of K into the scores, those of V into the
weights. Only a tile of numbers is widened at a time, which stays in the processor's cache, and products are plain
matrix products. For many rows a piece of the past is read as floats, and the dense attention works on it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention import Scoring
from engine.attention.capped import Part
from engine.stored import Stored

FEW_ROWS = 64  # of one KV head: below, widening costs more than what a fused kernel saves
LEAST_TOKENS = 256  # a shorter past is read at once
TILE_NUMBERS = 1 << 17  # widened at a time: half a MiB in float32
PIECE_TOKENS = 4096  # read as floats at a time, for many rows

Dense = Callable[[Tensor, Tensor, Tensor, tuple[int, int], Scoring], Part]


def past(
    grouped: Tensor, pool: tuple[Stored, Stored], stretch: tuple[int, int], scoring: Scoring, dense: Dense
) -> Part:
    """Attend from [rows, kv_heads, group, head_dim] to a stretch; `dense` does it over plain tensors.

    Returns [kv_heads, rows, group, head_dim] and its log-sum-exps.
    """
    count, _, group, _ = grouped.shape
    slot, length = stretch
    keys, values = (stored.part(slot, length) for stored in pool)
    if count * group <= FEW_ROWS and length >= LEAST_TOKENS:
        return _folded(grouped, keys, values, scoring)
    return _joined(
        [
            dense(
                grouped, keys[at : at + PIECE_TOKENS], values[at : at + PIECE_TOKENS], (0, _left(length, at)), scoring
            )
            for at in range(0, length, PIECE_TOKENS)
        ]
    )


def _left(length: int, at: int) -> int:
    return min(PIECE_TOKENS, length - at)


def _folded(grouped: Tensor, keys: Stored, values: Stored, scoring: Scoring) -> Part:
    """Attend to all of `keys`: one piece of scores for each tile, one softmax over all of them."""
    count, kv_heads, group, head_dim = grouped.shape
    rows = grouped.transpose(0, 1).reshape(kv_heads, count * group, head_dim) * (scoring.scaling * keys.factor)
    tile = max(1, TILE_NUMBERS // (kv_heads * head_dim))
    tiles = [slice(at, at + tile) for at in range(0, len(keys), tile)]
    scores = torch.cat([rows @ keys.numbers(each).permute(1, 2, 0) for each in tiles], dim=-1)
    if keys.scales is not None:
        scores *= keys.scales.t()[:, None]  # [kv_heads, rows · group, tokens]
    if scoring.softcap is not None:
        scores = scores.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
    lse = torch.logsumexp(scores, dim=-1)
    weights = scores.sub_(lse[..., None]).exp_()
    if values.scales is not None:
        weights *= values.scales.t()[:, None]
    out = torch.zeros_like(rows)
    for each in tiles:
        out.baddbmm_(weights[:, :, each], values.numbers(each).transpose(0, 1))
    out *= values.factor
    return out.view(kv_heads, count, group, head_dim), lse.view(kv_heads, count, group)


def _joined(parts: list[Part]) -> Part:
    """Merge attention over disjoint keys into one part."""
    if len(parts) == 1:
        return parts[0]
    sums = torch.stack([lse for _, lse in parts])
    total = torch.logsumexp(sums, dim=0)
    weights = sums.sub_(total).exp_().unsqueeze(-1)
    return sum((weight * out for weight, (out, _) in zip(weights, parts, strict=True)), torch.zeros(())), total
