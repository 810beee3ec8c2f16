"""Before the first request: the paged forward must say what the model itself says.

Runs a short prompt through the plain model and, in two chunks over scattered blocks, through the pool, and compares
the logits. A model whose attention means something that the engine does not know is refused here instead of
answering nonsense.
"""

from __future__ import annotations

import torch

from engine.batch import Batch, Rows
from engine.errors import ModelRefused
from engine.kv_tensors import KVTensors
from engine.model import PAGED, PagedModel

TOLERANCE = 1e-3  # of the largest logit; float32 noise is below 1e-5
_LENGTH, _CUT, _BLOCK = 12, 7, 4
_TABLE = (5, 1, 2)  # block numbers, not in order


@torch.inference_mode()
def self_test(model: PagedModel) -> None:
    """Raise ModelRefused when cold and warm logits differ from the plain model's."""
    vocab = model.config.vocab_size
    ids = (torch.arange(_LENGTH, device=model.device) * 7919 + 11) % vocab
    model.module.set_attn_implementation("eager")
    expected = model.module(input_ids=ids[None], use_cache=False, logits_to_keep=1).logits[0, 0].float()
    model.module.set_attn_implementation(PAGED)
    kv = KVTensors(model.layout, blocks=max(_TABLE) + 1, block_tokens=_BLOCK, device=model.device)
    slots = torch.tensor([block * _BLOCK + at for block in _TABLE for at in range(_BLOCK)], device=model.device)
    model.forward(_chunk(ids, slots, 0, _CUT), kv)
    got = model.forward(_chunk(ids, slots, _CUT, _LENGTH), kv)[0]
    gap = float((got - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    if not gap <= TOLERANCE:
        raise ModelRefused(
            f"{model.config.model_type}: a prompt computed in two parts gives other logits than in one "
            f"(gap {gap:.2g}). Its attention does something that this engine does not page."
        )


def _chunk(ids: torch.Tensor, slots: torch.Tensor, start: int, end: int) -> Batch:
    past = tuple((int(slot), 1) for slot in slots[:start])
    return Batch(
        tokens=ids[start:end],
        positions=torch.arange(start, end, device=ids.device),
        slots=slots[start:end],
        rows=(Rows(0, end - start, past, causal=True, own=past),),
        wanted=torch.tensor([end - start - 1], device=ids.device),
        copies=(),
    )
