"""Attention on CPU over contiguous stretches of the pool, without gathering K and V and without repeating them.

The past needs no causal mask, so the query heads that share a KV head are packed into rows: one non-causal call per
stretch, one causal call for the new tokens, and the parts are merged by their log-sum-exp. The merge is the one of
FlashAttention-2's split keys (Dao 2023, section 3.1) and of cascade attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import Batch, Rows

# The one call that also returns the log-sum-exp: (query, key, value, dropout_p, is_causal, scale=) → (output, lse).
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, batch: Batch, scaling: float
) -> Tensor:
    """See `engine.attention` for the shapes."""
    output = torch.empty_like(query)
    for rows in batch.rows:
        span = slice(rows.first, rows.last)
        output[span] = _sequence(query[span], key[span], value[span], keys, values, rows, scaling)
    return output


def _sequence(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, rows: Rows, scaling: float
) -> Tensor:
    """Attend for the rows of one sequence: [rows, heads, head_dim]."""
    count, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    grouped = query.view(count, kv_heads, group, head_dim)
    parts: list[tuple[Tensor, Tensor]] = []
    if rows.past:
        packed = grouped.transpose(0, 1).reshape(1, kv_heads, count * group, head_dim)
        for slot, length in rows.past:
            past_keys = keys[slot : slot + length].transpose(0, 1)[None]  # [1, kv_heads, length, head_dim], a view
            past_values = values[slot : slot + length].transpose(0, 1)[None]
            out, lse = _flash(packed, past_keys, past_values, 0.0, is_causal=False, scale=scaling)
            parts.append((out.view(kv_heads, count, group, head_dim), lse.view(kv_heads, count, group)))
    if rows.causal:
        new_query = grouped.permute(2, 1, 0, 3)  # [group, kv_heads, rows, head_dim]: the group is a batch
        new_keys = key.transpose(0, 1)[None].expand(group, kv_heads, count, head_dim)  # stride 0, no copy
        new_values = value.transpose(0, 1)[None].expand(group, kv_heads, count, head_dim)
        out, lse = _flash(new_query, new_keys, new_values, 0.0, is_causal=True, scale=scaling)
        parts.append((out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)))
    return merge(parts).transpose(0, 1).reshape(count, heads, head_dim)


def merge(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Merge attention over disjoint keys: outputs [..., head_dim] weighted by softmax of their log-sum-exps [...]."""
    if len(parts) == 1:
        return parts[0][0]
    weights = torch.softmax(torch.stack([lse for _, lse in parts]), dim=0).unsqueeze(-1)
    output = weights[0] * parts[0][0]
    for weight, (out, _) in zip(weights[1:], parts[1:], strict=True):
        output += weight * out
    return output
