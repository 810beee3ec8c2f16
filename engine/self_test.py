"""Before the first request: the paged forward must say what the model itself says.

Runs a short prompt through the plain model and, in two chunks over scattered blocks, through the pool, and compares
the logits. A model whose attention means something that the engine does not know is refused here instead of
answering nonsense. A window is narrowed for the test, so that a short prompt reaches beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engine.batch import Batch, Rows
from engine.errors import ModelRefused
from engine.kv_tensors import KVTensors
from engine.model import PAGED, PagedModel

TOLERANCE = 1e-3  # of the largest logit; float32 noise is below 1e-5
HALF_TOLERANCE = 5e-2  # the same in float16 and bfloat16, whose numbers have 11 and 8 bits
SMALL_BLOCK = 4  # tokens: a short prompt has several
_TABLE = (5, 1, 2)  # block numbers, not in order
_WINDOW = 7  # of the second part's rows, some see all of the first part that others see, and each has lost some
_STRANGE = (TypeError, AttributeError, ValueError, RuntimeError, IndexError)  # of code that knows no paged attention


@torch.inference_mode()
def self_test(model: PagedModel, *, block_tokens: int = SMALL_BLOCK) -> None:
    """Raise ModelRefused when cold and warm logits differ from the plain model's."""
    name = model.config.model_type
    try:
        with narrowed(model.config):
            found = _in_two_parts(model, block_tokens)
    except _STRANGE as error:
        raise ModelRefused(
            f"{name} does something with its attention that this engine does not follow: {str(error).splitlines()[0]}"
        ) from error
    if not found <= tolerance(model.layout.dtype):
        raise ModelRefused(
            f"{name}: a prompt computed in two parts gives other logits than in one "
            f"(gap {found:.2g}). Its attention does something that this engine does not page."
        )


@contextmanager
def narrowed(config: Any, window: int = _WINDOW) -> Iterator[None]:
    """Give the layers that slide a smaller window for a while: masks are made of the configuration, step by step."""
    whole = getattr(config, "sliding_window", None)
    if whole is None or whole <= window:
        yield
        return
    config.sliding_window = window
    try:
        yield
    finally:
        config.sliding_window = whole


def gap(got: Tensor, expected: Tensor) -> float:
    """Return by how much logits differ, as a part of the largest."""
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1.0))


def tolerance(dtype: torch.dtype) -> float:
    """Return the gap that is still noise of a model computed in `dtype`."""
    return TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE


def _in_two_parts(model: PagedModel, block_tokens: int) -> float:
    """Return the gap of the last token's logits, computed in two parts and by the plain model."""
    vocab = model.config.vocab_size
    length, cut = len(_TABLE) * block_tokens, 2 * block_tokens - 1
    ids = (torch.arange(length, device=model.device) * 7919 + 11) % vocab
    model.module.set_attn_implementation("eager")
    expected = model.module(input_ids=ids[None], use_cache=False, logits_to_keep=1).logits[0, 0].float()
    model.module.set_attn_implementation(PAGED)
    kv = KVTensors(model.layout, blocks=max(_TABLE) + 1, block_tokens=block_tokens, device=model.device)
    places = [block * block_tokens + at for block in _TABLE for at in range(block_tokens)]
    slots = torch.tensor(places, device=model.device)
    seen = 0

    def counting(*arguments: Any) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return attend(*arguments)

    attend, model.attend = model.attend, counting
    try:
        model.forward(_chunk(ids, slots, 0, cut), kv)
        got = model.forward(_chunk(ids, slots, cut, length), kv)[0]
    finally:
        model.attend = attend
    if seen != 2 * model.layout.layers:
        raise ModelRefused(
            f"{model.config.model_type} computes attention by code of its own in some layers, which this engine cannot "
            "reach: not paged."
        )
    return gap(got, expected)


def whole_prompt(tokens: int, model: PagedModel) -> Batch:
    """Return a batch of one prompt of so many tokens, in the first slots of a pool."""
    places = torch.arange(tokens, device=model.device)
    return _chunk(places % model.config.vocab_size, places, 0, tokens)


def _chunk(ids: torch.Tensor, slots: torch.Tensor, start: int, end: int) -> Batch:
    whole = tuple((int(slot), 1) for slot in slots[:end])
    past = whole[:start]
    return Batch(
        tokens=ids[start:end],
        positions=torch.arange(start, end, device=ids.device),
        slots=slots[start:end],
        rows=(Rows(0, end - start, past, causal=True, own=past, whole=whole),),
        wanted=torch.tensor([end - start - 1], device=ids.device),
        copies=(),
    )
