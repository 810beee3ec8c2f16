"""Attention whose result for a row depends on nothing but that row and the tokens before it: for deterministic answers.

Keys are read in tiles of `TILE` tokens at absolute positions of their sequence, new tokens from the pool like past
ones. Each tile is one part with its log-sum-exp, and parts are merged in token order, operation by operation; so
neither chunks, nor neighbours, nor where blocks lie, change a bit. Rows come in pieces that lie within one tile, padded
to a multiple of `ROWS`: kernels round alike for those counts, which `engine.steady_test` verifies before the first
request.

Owns the plan of the latest batch, which all layers use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import Scoring
from engine.attention.capped import Part
from engine.batch import Batch, Rows
from engine.cascade import Stretch
from engine.stored import Slots
from engine.window import cut

TILE = 256  # tokens; a multiple of what kernels compute at once, so that no row has a tail of its own
ROWS = 16  # queries of one head, at least and at a time
MOST_FLOATS = 1 << 24  # of a piece's parts over all tiles, 64 MiB: a longer sequence has shorter pieces

# The one call that also returns the log-sum-exp: (query, key, value, dropout_p, is_causal, scale=) → (output, lse).
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class Span:
    """Tiles that a piece reads in one call: seen in the pool where they lie whole and in a row, else gathered."""

    tiles: int
    slot: int | None  # of the first token, where the pool is read as it lies
    stretches: tuple[Stretch, ...] = ()  # of a single gathered tile
    mask: Tensor | None = None  # [queries, TILE] float32, -inf where a row does not see a token
    blind: Tensor | None = None  # [queries] bool: rows that see nothing of it; None: each sees something


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [first, last) of the batch, of one sequence and within one tile, and what they read in token order."""

    first: int
    last: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """What of a layer's shape decides how it is cut."""

    kv_heads: int
    group: int
    head_dim: int

    def queries(self, tokens: int) -> int:
        """Return how many queries of one KV head so many rows are, padded."""
        return -(-tokens * self.group // ROWS) * ROWS

    def most_rows(self, tiles: int, width: int) -> int:
        """Return how many rows a piece that reads so many tiles may have."""
        return max(1, MOST_FLOATS // (tiles * self.kv_heads * self.group * width))


class Fixed:
    """`attend` of `engine.attention`, the same to the bit whatever the batch."""

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._plans: dict[tuple[int | None, Heads, int], list[Piece]] = {}  # of that batch

    def __call__(
        self, query: Tensor, key: Tensor, _value: Tensor, keys: Slots, values: Slots, batch: Batch, scoring: Scoring
    ) -> Tensor:
        """See `engine.attention` for the shapes. New tokens are read from the pool, as it keeps them."""
        heads = Heads(key.shape[1], query.shape[1] // key.shape[1], query.shape[2])
        grouped = query.view(query.shape[0], heads.kv_heads, heads.group, heads.head_dim)
        sinks = None if scoring.sinks is None else scoring.sinks.to(query.dtype).view(heads.kv_heads, heads.group)
        output = torch.empty_like(query)
        for piece in self._plan(batch, scoring, heads):
            count = piece.last - piece.first
            rows = _pack(grouped[piece.first : piece.last], heads)
            parts = [_part(rows, (keys, values), span, scoring) for span in piece.spans]
            merged = merge(parts, None if sinks is None else _by_query(sinks, rows.shape[2]))
            merged = merged[:, : count * heads.group].view(heads.kv_heads, count, heads.group, heads.head_dim)
            output[piece.first : piece.last].view(count, heads.kv_heads, heads.group, -1).copy_(merged.transpose(0, 1))
        return output

    def _plan(self, batch: Batch, scoring: Scoring, heads: Heads) -> list[Piece]:
        """Return the batch's pieces, worked out once for all layers that are alike."""
        if batch is not self._batch:
            self._batch, self._plans = batch, {}
        width = heads.head_dim if scoring.softcap is None else max(heads.head_dim, TILE)
        known = (scoring.window, heads, width)
        if known not in self._plans:
            self._plans[known] = [
                piece for rows in batch.rows for piece in _pieces(rows, scoring.window, heads, width, batch)
            ]
        return self._plans[known]


def _pieces(rows: Rows, window: int | None, heads: Heads, width: int, batch: Batch) -> Iterator[Piece]:
    """Cut one sequence's rows at the borders of tiles, and further where they read many."""
    total = sum(tokens for _, tokens in rows.whole)
    if total < rows.count:
        raise ValueError("a sequence does not say where all of its tokens lie")
    start = at = total - rows.count  # positions: of the first row, of the piece
    while at < total:
        end = min(total, at - at % TILE + TILE)
        end = min(end, at + heads.most_rows(at // TILE + 1, width))
        yield Piece(
            rows.first + at - start,
            rows.first + end - start,
            tuple(_spans(rows.whole, (at, end), window, heads, batch.positions.device)),
        )
        at = end


def _spans(
    whole: tuple[Stretch, ...], at: tuple[int, int], window: int | None, heads: Heads, device: torch.device
) -> Iterator[Span]:
    """Return what the rows at positions [first, end) read, tile by tile; runs of whole tiles are one span."""
    first, end = at
    reach = end if window is None else window
    tile = max(0, first + 1 - reach) // TILE
    while tile * TILE < end:
        low = tile * TILE
        if low + TILE <= first + 1 and low >= end - reach:  # each row sees all of it
            least = min(first + 1, low + TILE * ((first + 1 - low) // TILE))
            slot, tiles = _run(whole, low, least)
            if tiles:
                yield Span(tiles, slot)
            else:
                yield Span(tiles := 1, None, tuple(cut(whole, low, low + TILE)))
            tile += tiles
            continue
        yield _masked(tuple(cut(whole, low, min(end, low + TILE))), low, at, (window, heads, device))
        tile += 1


def _run(whole: tuple[Stretch, ...], low: int, end: int) -> tuple[int, int]:
    """Return where token `low` lies and how many whole tiles follow it in one stretch, none behind `end`."""
    begun = 0
    for slot, tokens in whole:
        if low < begun + tokens:
            return slot + low - begun, (min(end, begun + tokens) - low) // TILE
        begun += tokens
    raise ValueError(f"token {low} lies nowhere")


def _masked(
    stretches: tuple[Stretch, ...], low: int, at: tuple[int, int], shape: tuple[int | None, Heads, torch.device]
) -> Span:
    """Return one gathered tile of which rows see different tokens."""
    window, heads, device = shape
    first, end = at
    places = torch.arange(first, end, device=device)[:, None]
    tokens = torch.arange(low, low + TILE, device=device)
    hidden = tokens > places
    if window is not None:
        hidden |= tokens <= places - window
    mask = torch.zeros(heads.queries(end - first), TILE, device=device)  # rows of padding see everything
    mask[: (end - first) * heads.group].masked_fill_(hidden.repeat_interleave(heads.group, dim=0), float("-inf"))
    blind = torch.isinf(mask).all(dim=-1)
    return Span(1, None, stretches, mask, blind if bool(blind.any()) else None)


def _pack(grouped: Tensor, heads: Heads) -> Tensor:
    """Lay rows [tokens, kv_heads, group, head_dim] out as [1, kv_heads, queries, head_dim], padded with zeros."""
    tokens = len(grouped)
    packed = grouped.new_zeros(1, heads.kv_heads, heads.queries(tokens), heads.head_dim)
    there = packed[0, :, : tokens * heads.group].view(heads.kv_heads, tokens, heads.group, heads.head_dim)
    there.copy_(grouped.transpose(0, 1))
    return packed


def _by_query(sinks: Tensor, queries: int) -> Tensor:
    """Return the sinks [kv_heads, group] for packed queries: [kv_heads, queries]."""
    kv_heads, group = sinks.shape
    return sinks[:, None].expand(kv_heads, -(-queries // group), group).flatten(1)[:, :queries]


def _part(rows: Tensor, pool: tuple[Slots, Slots], span: Span, scoring: Scoring) -> Part:
    """Attend to the tiles of a span, each on its own: [tiles, kv_heads, queries, head_dim] and log-sum-exps."""
    key, value = (_tiles(slots, span, rows.dtype) for slots in pool)
    query = rows.expand(span.tiles, -1, -1, -1)
    if scoring.softcap is not None:
        out, lse = _capped(query, key, value, span.mask, scoring)
    else:
        mask = None if span.mask is None else span.mask.to(rows.dtype)
        out, lse = _flash(query, key, value, 0.0, is_causal=False, attn_mask=mask, scale=scoring.scaling)
    if span.blind is not None:
        lse = lse.masked_fill(span.blind, float("-inf"))
    return out, lse


def _tiles(slots: Slots, span: Span, dtype: torch.dtype) -> Tensor:
    """Return K or V as [tiles, kv_heads, TILE, head_dim]: a view where it lies in a row, else gathered into zeros."""
    if span.slot is not None:
        seen = slots[span.slot : span.slot + span.tiles * TILE].to(dtype)
        return seen.view(span.tiles, TILE, *slots.shape[1:]).transpose(1, 2)
    gathered = torch.zeros(TILE, *slots.shape[1:], dtype=dtype, device=slots.device)
    at = 0
    for slot, tokens in span.stretches:
        gathered[at : at + tokens] = slots[slot : slot + tokens]
        at += tokens
    return gathered.transpose(0, 1)[None]


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scoring: Scoring) -> Part:
    """Attend with scores under a cap, by plain matrix products: no fused kernel on a CPU has it."""
    assert scoring.softcap is not None
    scores = query @ key.transpose(-1, -2)
    scores = scores.mul_(scoring.scaling / scoring.softcap).tanh_().mul_(scoring.softcap)
    if mask is not None:
        scores += mask
    top = scores.amax(-1, keepdim=True).clamp_(min=-scoring.softcap)  # finite where a row sees nothing
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    out = (weights @ value).div_(total.clamp(min=torch.finfo(total.dtype).tiny))
    return out, (total.log() + top)[..., 0]


def merge(parts: list[Part], sinks: Tensor | None = None) -> Tensor:
    """Merge parts over tiles in token order: outputs [tiles, ..., head_dim] by log-sum-exps [tiles, ...].

    Every step is one rounding of one number, so that how many rows there are, and tiles of which a row sees nothing,
    change no bit.
    """
    out, lse = (torch.cat(each) if len(parts) > 1 else each[0] for each in zip(*parts, strict=True))
    top = lse.amax(0) if sinks is None else torch.maximum(lse.amax(0), sinks)
    weights = torch.exp(lse - top)
    total = weights.cumsum(0)[-1]
    if sinks is not None:
        total += torch.exp(sinks - top)
    out = out * weights[..., None]
    merged = out[0]
    for part in out[1:]:
        merged += part
    return merged.div_(total[..., None])
