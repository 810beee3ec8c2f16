"""Attention on CPU over contiguous stretches of the pool, without gathering K and V and without repeating them.

The past needs no causal mask, so the query heads that share a KV head are packed into rows: one non-causal call per
stretch, for all sequences that share it, one causal call for the new tokens, and the parts are merged by their
log-sum-exp. The merge is the one of FlashAttention-2's split keys (Dao 2023, section 3.1) and of cascade attention.
Under a window (`engine.window`) stretches are cut to what all rows see; what only some of them see is one more, masked
part. A sink is a part without values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention import Scoring, narrow
from engine.attention.capped import Part, capped, causal_mask
from engine.batch import Band, Batch
from engine.cascade import Stretch
from engine.stored import Slots, Stored
from engine.window import within

# The one call that also returns the log-sum-exp: (query, key, value, dropout_p, is_causal, scale=) → (output, lse).
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Slots, values: Slots, batch: Batch, scoring: Scoring
) -> Tensor:
    """See `engine.attention` for the shapes. What rows share of their past is attended to once for all of them."""
    sight = batch if scoring.window is None else within(batch, scoring.window)
    grouped = query.view(query.shape[0], key.shape[1], -1, query.shape[2])  # [tokens, kv_heads, group, head_dim]
    parts: list[list[Part]] = [[] for _ in sight.rows]
    for stretch in sight.shared:
        members = [sight.rows[place] for place in stretch.members]
        together = torch.cat([grouped[rows.first : rows.last] for rows in members])
        out, lse = _past(together, keys, values, (stretch.slot, stretch.tokens), scoring)
        at = 0
        for place, rows in zip(stretch.members, members, strict=True):
            parts[place].append((out[:, at : at + rows.count], lse[:, at : at + rows.count]))
            at += rows.count
    sinks = None if scoring.sinks is None else scoring.sinks.view(key.shape[1], 1, -1)  # [kv_heads, 1, group]
    output = torch.empty_like(query)
    for rows, given in zip(sight.rows, parts, strict=True):
        span = slice(rows.first, rows.last)
        given.extend(_pasts(grouped[span], keys, values, rows.own, scoring))
        if rows.band is not None:
            given.append(_banded(grouped[span], (key, value), (keys, values), rows.band, scoring))
        elif rows.causal:
            given.append(_among(grouped[span], key[span], value[span], scoring))
        output[span] = merge(given, sinks).transpose(0, 1).reshape(rows.count, *query.shape[1:])
    return output


def _pasts(grouped: Tensor, keys: Slots, values: Slots, stretches: tuple[Stretch, ...], scoring: Scoring) -> list[Part]:
    """Attend to stretches of the pool. What is stored in few bits is soon copied, and then is one stretch."""
    if len(stretches) > 1 and isinstance(keys, Stored) and isinstance(values, Stored):
        keys, values = keys.together(stretches), values.together(stretches)
        stretches = ((0, len(keys)),)
    return [_past(grouped, keys, values, stretch, scoring) for stretch in stretches]


def _past(grouped: Tensor, keys: Slots, values: Slots, stretch: tuple[int, int], scoring: Scoring) -> Part:
    """Attend to a stretch of the pool. Returns [kv_heads, rows, group, head_dim] and its log-sum-exps."""
    if isinstance(keys, Stored) or isinstance(values, Stored):
        assert isinstance(keys, Stored) and isinstance(values, Stored), "K and V are stored alike"
        return narrow.past(grouped, (keys, values), stretch, scoring, _past)
    count, kv_heads, group, head_dim = grouped.shape
    slot, length = stretch
    if scoring.softcap is not None:
        return capped(grouped, keys[slot : slot + length], values[slot : slot + length], scoring)
    packed = grouped.transpose(0, 1).reshape(1, kv_heads, count * group, head_dim)
    past_keys = keys[slot : slot + length].transpose(0, 1)[None]  # [1, kv_heads, length, head_dim], a view
    past_values = values[slot : slot + length].transpose(0, 1)[None]
    out, lse = _flash(packed, past_keys, past_values, 0.0, is_causal=False, scale=scoring.scaling)
    return out.view(kv_heads, count, group, head_dim), lse.view(kv_heads, count, group)


def _among(grouped: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Part:
    """Attend to the new tokens themselves, each up to its own place."""
    if scoring.softcap is not None:
        return capped(grouped, key, value, scoring, causal_mask(grouped))
    query, new_keys, new_values = _by_group(grouped, key, value)
    out, lse = _flash(query, new_keys, new_values, 0.0, is_causal=True, scale=scoring.scaling)
    return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)


def _banded(
    grouped: Tensor, new: tuple[Tensor, Tensor], pool: tuple[Slots, Slots], band: Band, scoring: Scoring
) -> Part:
    """Attend to what only some of the rows see: the band's stretches of the pool, then some of the new tokens."""
    key, value = (
        torch.cat([*(past[slot : slot + length] for slot, length in band.past), fresh[band.first : band.last]])
        if band.past
        else fresh[band.first : band.last]
        for past, fresh in zip(pool, new, strict=True)
    )
    mask = band.mask.to(grouped.dtype)
    if scoring.softcap is not None:
        return capped(grouped, key, value, scoring, mask)
    query, some_keys, some_values = _by_group(grouped, key, value)
    out, lse = _flash(query, some_keys, some_values, 0.0, is_causal=False, attn_mask=mask, scale=scoring.scaling)
    return out.permute(1, 2, 0, 3), lse.permute(1, 2, 0)


def _by_group(grouped: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lay out [group, kv_heads, tokens, head_dim]: the group is a batch, over which K and V stand still."""
    group = grouped.shape[2]
    new_keys, new_values = (part.transpose(0, 1)[None].expand(group, -1, -1, -1) for part in (key, value))  # no copy
    return grouped.permute(2, 1, 0, 3), new_keys, new_values


def merge(parts: list[Part], sinks: Tensor | None = None) -> Tensor:
    """Merge attention over disjoint keys: outputs [..., head_dim] weighted by softmax of their log-sum-exps [...]."""
    if len(parts) == 1 and sinks is None:
        return parts[0][0]
    sums = [lse for _, lse in parts]
    if sinks is not None:
        sums.append(sinks.to(sums[0].dtype).expand_as(sums[0]))
    weights = torch.softmax(torch.stack(sums), dim=0).unsqueeze(-1)
    output = weights[0] * parts[0][0]
    for weight, (out, _) in zip(weights[1:], parts[1:], strict=False):  # the sinks' weight goes to nothing
        output += weight * out
    return output
