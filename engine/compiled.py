"""A model's decoder layers compiled by `torch.compile`: norms, rotary embedding and activations as few kernels.

Owns nothing: it replaces the layers' `forward` in place. Attention over the pool stays outside of what is compiled,
because which extents it reads changes from step to step. Optional, because it needs a C++ compiler and most of a minute
at each start. Rules: what a serving engine meets was compiled before it serves, so no request waits for a compiler; the
compiled layers say what the plain ones say, or the model is refused.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler
from transformers import AttentionInterface

from engine.errors import ModelRefused, first_line
from engine.kv_tensors import KVTensors
from engine.model import PAGED, PagedModel, paged_attention
from engine.self_test import SMALL_BLOCK, gap, tolerance, whole_prompt

WARM_UP_TOKENS = (1, 3, 64)  # one row is compiled for itself, every other number together


def compile_layers(model: PagedModel, *, block_tokens: int = SMALL_BLOCK) -> None:
    """Compile every decoder layer, for one row and for any number of rows. Raises ModelRefused without a compiler."""
    expected = [_logits(model, tokens, block_tokens) for tokens in WARM_UP_TOKENS]
    AttentionInterface.register(PAGED, torch.compiler.disable(paged_attention))  # type: ignore[no-untyped-call]
    for layer in model.module.get_decoder().layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    try:
        got = [_logits(model, tokens, block_tokens) for tokens in WARM_UP_TOKENS]
    except (TorchDynamoException, CppCompileError, InvalidCxxCompiler) as error:
        raise ModelRefused(
            f"--torch-compile on: {model.config.model_type} does not compile here "
            f"({type(error).__name__}: {first_line(error)}). "
            "Install a C++ compiler such as g++, or start without --torch-compile."
        ) from error
    if not all(gap(*pair) <= tolerance(model.dtype) for pair in zip(got, expected, strict=True)):
        raise ModelRefused(
            f"--torch-compile on: {model.config.model_type} gives other logits compiled than plain. "
            "Start without --torch-compile."
        )


def _logits(model: PagedModel, tokens: int, block_tokens: int) -> Tensor:
    kv = KVTensors(model.layout, blocks=-(-tokens // block_tokens), block_tokens=block_tokens, device=model.device)
    return model.forward(whole_prompt(tokens, model), kv)[0]
