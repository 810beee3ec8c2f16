"""The slow truth: gather each sequence's K and V, build the mask, softmax in float32. For tests and self-tests."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention import Scoring
from engine.batch import Batch
from engine.stored import Slots


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Slots, values: Slots, batch: Batch, scoring: Scoring
) -> Tensor:
    """See `engine.attention` for the shapes."""
    output = torch.empty_like(query)
    for rows in batch.rows:
        span = slice(rows.first, rows.last)
        past = torch.cat(
            [torch.arange(slot, slot + n, device=query.device) for slot, n in rows.past] or [key.new_empty(0).long()]
        )
        seen_keys, seen_values = keys[past], values[past]  # [seen, kv_heads, head_dim]
        if rows.causal:
            seen_keys = torch.cat([seen_keys, key[span]])
            seen_values = torch.cat([seen_values, value[span]])
        group = query.shape[1] // key.shape[1]
        seen_keys = seen_keys.repeat_interleave(group, dim=1).float()
        seen_values = seen_values.repeat_interleave(group, dim=1).float()
        scores = torch.einsum("qhd,khd->hqk", query[span].float(), seen_keys) * scoring.scaling
        if scoring.softcap is not None:
            scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
        places = torch.arange(len(seen_keys), device=query.device)
        own = places[-rows.count :, None]  # each row is the sequence's latest token, or one of them
        allowed = places <= own
        if scoring.window is not None:
            allowed = allowed & (places > own - scoring.window)
        scores = scores.masked_fill(~allowed, float("-inf"))
        if scoring.sinks is not None:
            sinks = scoring.sinks.float()[:, None, None].expand(-1, rows.count, 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(-1)[..., : len(seen_keys)]
        output[span] = torch.einsum("hqk,khd->qhd", weights, seen_values).to(query.dtype)
    return output
