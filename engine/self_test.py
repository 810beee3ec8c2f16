"""Before the first request: the paged forward must say what the model itself says.

Runs a short prompt through the plain model and, in two chunks over scattered blocks, through the pool, and compares
the logits. A model whose attention means something that the engine does not know is refused here instead of
answering nonsense. A window is narrowed for the test, so that a short prompt reaches beyond it. Where K and V are
stored in another dtype, that is a second test: in two chunks the model must say what it says in one, and stay in sight
of the plain model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from engine.batch import Batch, Rows
from engine.errors import ModelRefused, first_line
from engine.kv_tensors import KVLayout, KVTensors
from engine.model import PAGED, PagedModel

TOLERANCE = 1e-3  # of the largest logit; float32 noise is below 1e-5
HALF_TOLERANCE = 5e-2  # the same in float16 and bfloat16, whose numbers have 11 and 8 bits
STORED_TOLERANCE = 5e-2  # between cold and warm: noise of computing may round a stored number to its neighbour
STORED_SIGHT = 2.0  # from the plain model: random weights in fp8 come to 1.4, what overflows is no number
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
            expected = _plain(model, _ids(model, block_tokens))
            warm = _in_two(model, replace(model.layout, dtype=model.dtype), block_tokens)
            _refuse_far(name, gap(warm, expected), tolerance(model.dtype))
            if model.layout.dtype != model.dtype:
                _test_stored(model, expected, block_tokens)
    except _STRANGE as error:
        raise ModelRefused(
            f"{name} does something with its attention that this engine does not follow: {first_line(error)}"
        ) from error


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


def _refuse_far(name: str, far: float, most: float) -> None:
    if not far <= most:
        raise ModelRefused(
            f"{name}: a prompt computed in two parts gives other logits than in one "
            f"(gap {far:.2g}). Its attention does something that this engine does not page."
        )


def _test_stored(model: PagedModel, expected: torch.Tensor, block_tokens: int) -> None:
    """Raise ModelRefused when K and V as they are stored do not serve."""
    ids, slots = _ids(model, block_tokens), _slots(model, block_tokens)
    name, kind = model.layout.name, model.config.model_type
    warm = _in_two(model, model.layout, block_tokens)
    cold = model.forward(_chunk(ids, slots, 0, len(ids)), _room(model, model.layout, block_tokens))[0]
    if not (far := gap(warm, cold)) <= STORED_TOLERANCE:
        raise ModelRefused(
            f"--kv-cache-dtype {name}: {kind} gives other logits for a prompt in two parts than in one "
            f"(gap {far:.2g}). Use auto."
        )
    if not (far := gap(cold, expected)) <= STORED_SIGHT:
        raise ModelRefused(
            f"--kv-cache-dtype {name}: its numbers do not hold the keys of {kind} (gap {far:.2g}). Use auto."
        )


def gap(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return by how much logits differ, as a part of the largest."""
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1.0))


def tolerance(dtype: torch.dtype) -> float:
    """Return the gap that is still noise of a model computed in `dtype`."""
    return TOLERANCE if dtype == torch.float32 else HALF_TOLERANCE


def _ids(model: PagedModel, block_tokens: int) -> torch.Tensor:
    vocab: int = model.config.vocab_size
    return (torch.arange(len(_TABLE) * block_tokens, device=model.device) * 7919 + 11) % vocab


def _slots(model: PagedModel, block_tokens: int) -> torch.Tensor:
    places = [block * block_tokens + at for block in _TABLE for at in range(block_tokens)]
    return torch.tensor(places, device=model.device)


def _room(model: PagedModel, layout: KVLayout, block_tokens: int) -> KVTensors:
    return KVTensors(layout, blocks=max(_TABLE) + 1, block_tokens=block_tokens, device=model.device)


def _plain(model: PagedModel, ids: torch.Tensor) -> torch.Tensor:
    """Return the model's own logits after the last token."""
    model.module.set_attn_implementation("eager")
    logits: torch.Tensor = model.module(input_ids=ids[None], use_cache=False, logits_to_keep=1).logits[0, 0].float()
    model.module.set_attn_implementation(PAGED)
    return logits


def _in_two(model: PagedModel, layout: KVLayout, block_tokens: int) -> torch.Tensor:
    """Return the logits after the last token, computed in two chunks through a pool of that layout."""
    ids, slots, cut = _ids(model, block_tokens), _slots(model, block_tokens), 2 * block_tokens - 1
    kv = _room(model, layout, block_tokens)
    seen = 0

    def counting(*arguments: Any) -> torch.Tensor:
        nonlocal seen
        seen += 1
        output: torch.Tensor = attend(*arguments)
        return output

    attend, model.attend = model.attend, counting
    try:
        model.forward(_chunk(ids, slots, 0, cut), kv)
        got = model.forward(_chunk(ids, slots, cut, len(ids)), kv)[0]
    finally:
        model.attend = attend
    if seen != 2 * model.layout.layers:
        raise ModelRefused(
            f"{model.config.model_type} computes attention by code of its own in some layers, which this engine cannot "
            "reach: not paged."
        )
    return got


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
