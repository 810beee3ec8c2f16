"""Attention on CPU over contiguous stretches of the pool, without gathering K and V and without repeating them.

The past needs no causal mask, so the query heads that share a KV head are packed into rows: one non-causal call per
stretch, for all sequences that share it, one causal call for the new tokens, and the parts are merged by their
log-sum-exp. The merge is the one of
FlashAttention-2's split keys (Dao 2023, section 3.1) and of cascade attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import Batch

# The one call that also returns the log-sum-exp: (query, key, value, dropout_p, is_causal, scale=) → (output, lse).
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001

Part = tuple[Tensor, Tensor]  # over some of the keys: outputs [..., head_dim], log-sum-exps [...]


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, batch: Batch, scaling: float
) -> Tensor:
    """See `engine.attention` for the shapes. What rows share of their past is attended to once for all of them."""
    grouped = query.view(query.shape[0], key.shape[1], -1, query.shape[2])  # [tokens, kv_heads, group, head_dim]
    parts: list[list[Part]] = [[] for _ in batch.rows]
    for stretch in batch.shared:
        members = [batch.rows[place] for place in stretch.members]
        together = torch.cat([grouped[rows.first : rows.last] for rows in members])
        out, lse = _past(together, keys, values, (stretch.slot, stretch.tokens), scaling)
        at = 0
        for place, rows in zip(stretch.members, members, strict=True):
            parts[place].append((out[:, at : at + rows.count], lse[:, at : at + rows.count]))
            at += rows.count
    output = torch.empty_like(query)
    for rows, given in zip(batch.rows, parts, strict=True):
        span = slice(rows.first, rows.last)
        given += [_past(grouped[span], keys, values, stretch, scaling) for stretch in rows.own]
        if rows.causal:
            given.append(_among(grouped[span], key[span], value[span], scaling))
        output[span] = merge(given).transpose(0, 1).reshape(rows.count, *query.shape[1:])
    return output


def _past(grouped: Tensor, keys: Tensor, values: Tensor, stretch: tuple[int, int], scaling: float) -> Part:
    """Attend to a stretch of the pool. Returns [kv_heads, rows, group, head_dim] and its log-sum-exps."""
    count, kv_heads, group, head_dim = grouped.shape
    packed = grouped.transpose(0, 1).reshape(1, kv_heads, count * group, head_dim)
    slot, length = stretch
    past_keys = keys[slot : slot + length].transpose(0, 1)[None]  # [1, kv_heads, length, head_dim], a view
    past_values = values[slot : slot + length].transpose(0, 1)[None]
    out, lse = _flash(packed, past_keys, past_values, 0.0, is_causal=False, scale=scaling)
    return out.view(kv_heads, count, group, head_dim), lse.view(kv_heads, count, group)


def _among(grouped: Tensor, key: Tensor, value: Tensor, scaling: float) -> Part:
    """Attend to the new tokens themselves, each up to its own place."""
    count, kv_heads, group, head_dim = grouped.shape
    query = grouped.permute(2, 1, 0, 3)  # [group, kv_heads, rows, head_dim]: the group is a batch
    new_keys = key.transpose(0, 1)[None].expand(group, kv_heads, count, head_dim)  # stride 0, no copy
    new_values = value.transpose(0, 1)[None].expand(group, kv_heads, count, head_dim)
    out, lse = _flash(query, new_keys, new_values, 0.0, is_causal=True, scale=scaling)
    return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)


def merge(parts: list[Part]) -> Tensor:
    """Merge attention over disjoint keys: outputs [..., head_dim] weighted by softmax of their log-sum-exps [...]."""
    if len(parts) == 1:
        return parts[0][0]
    weights = torch.softmax(torch.stack([lse for _, lse in parts]), dim=0).unsqueeze(-1)
    output = weights[0] * parts[0][0]
    for weight, (out, _) in zip(weights[1:], parts[1:], strict=True):
        output += weight * out
    return output
