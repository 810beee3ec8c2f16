"""Before the first request of a deterministic engine: a whole model must say the same to the bit in any batch.

Layers are chosen one by one (`engine.steady`); this runs all of them together, over a prompt that crosses a tile: at
once, in pieces of any size, over blocks in another order and beside a neighbour. One bit of difference in any layer's
keys, values or logits, and the model is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from engine.attention.fixed import TILE
from engine.batch import Batch, Rows
from engine.errors import ModelRefused
from engine.kv_tensors import KVTensors
from engine.model import PagedModel

BLOCK = 16  # tokens
BEYOND = 21  # tokens of the second tile
CUTS = ((), (TILE - 19, TILE + 3, TILE + 4, TILE + 20), (37, TILE + BEYOND - 1))  # where a prompt is cut
BESIDE = 5  # rows of the neighbour, in each step of every way but the first


@torch.inference_mode()
def steady_test(model: PagedModel) -> None:
    """Raise ModelRefused when any bit depends on how a prompt is computed. Three prefills of about a tile."""
    length = min(TILE + BEYOND, model.config.max_position_embeddings)
    whole, *others = (_way(model, length, [cut for cut in cuts if cut < length], at) for at, cuts in enumerate(CUTS))
    for other in others:
        for layer, (ours, theirs) in enumerate(zip(whole, other, strict=True)):
            if not torch.equal(ours, theirs):
                where = f"from layer {max(0, layer // 2 - 1)} on" if layer < len(whole) - 1 else "in its logits"
                raise ModelRefused(
                    f"--deterministic: {model.config.model_type} computes other numbers for a prompt in parts than "
                    f"for the whole of it, {where}. Serve it without --deterministic."
                )


def _way(model: PagedModel, length: int, cuts: Sequence[int], way: int) -> list[Tensor]:
    """Compute a prompt cut at these places; return every layer's K and V in token order, and the last logits."""
    blocks = -(-length // BLOCK)
    kv = KVTensors(model.layout, blocks=blocks + 1, block_tokens=BLOCK, device=model.device)
    order = torch.arange(blocks).roll(way) if way else torch.arange(blocks)
    slots = (order[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:length]
    ids = (torch.arange(length) * 7919 + 11) % model.config.vocab_size
    beside = torch.arange(blocks * BLOCK, blocks * BLOCK + BESIDE) if way else torch.arange(0)
    logits = slots.new_zeros(0).float()
    for start, end in pairwise((0, *cuts, length)):
        logits = model.forward(_step(ids, slots, (start, end), beside), kv)[-1]
    return [*(part[slots].float() for rows in kv.rows for part in rows), logits]


def _step(ids: Tensor, slots: Tensor, span: tuple[int, int], beside: Tensor) -> Batch:
    """Return tokens [start, end) of the prompt, behind a neighbour of its own."""
    start, end = span
    whole = tuple((int(slot), 1) for slot in slots[:end])
    first, last = len(beside), len(beside) + end - start
    past = whole if end - start == 1 else whole[:start]
    rows = [Rows(first, last, past, causal=end - start > 1, own=past, whole=whole)]
    if first:
        near = tuple((int(slot), 1) for slot in beside)
        rows.insert(0, Rows(0, first, (), causal=True, own=(), whole=near))
    return Batch(
        tokens=torch.cat([ids[:first].flip(0), ids[start:end]]),
        positions=torch.cat([torch.arange(first), torch.arange(start, end)]),
        slots=torch.cat([beside, slots[start:end]]),
        rows=tuple(rows),
        wanted=torch.tensor([0, last - 1] if first else [last - 1]),
        copies=(),
    )
