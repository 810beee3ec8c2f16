"""A Hugging Face causal LM whose attention reads and writes the paged pool.

Owns the weights. The model is transformers' own code: only its attention function is ours, reached through
`AttentionInterface`; batch and pool arrive as keyword arguments of the forward call, so there is no hidden state.
What cannot be paged right is refused at load, by name (`engine.pageable`), or by the self-test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

from engine.attention import Scoring, packed
from engine.attention.dispatch import Attend, refuse_unread
from engine.attention.varlen import HALF
from engine.batch import Batch
from engine.config import AUTO
from engine.errors import ModelRefused
from engine.fused import fuse
from engine.kv_tensors import KVTensors
from engine.pageable import layout_of, refuse_unpaged
from engine.stored import stored_dtype

PAGED = "keepwarm_paged"
CPU = torch.device("cpu")


class PagedModel:
    """Weights, and one forward pass over a batch."""

    def __init__(
        self, module: Any, *, weights: str, attend: Attend = packed.attend, kv_cache_dtype: str = AUTO
    ) -> None:
        self.module = module  # a transformers causal LM; its library gives no usable types
        self.config = module.config.get_text_config()
        self.weights = weights  # content digest
        self.dtype: torch.dtype = module.dtype  # computed in
        self.layout = layout_of(self.config, stored_dtype(kv_cache_dtype, self.dtype))
        self.device: torch.device = module.device
        self.attend = attend

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer by the model's own configuration."""
        ids = self.module.generation_config.eos_token_id if self.module.generation_config else None
        ids = self.config.eos_token_id if ids is None else ids
        return tuple(ids) if isinstance(ids, list) else () if ids is None else (ids,)

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: KVTensors) -> Tensor:
        """Project the batch's tokens and write their K/V; return float32 logits [wanted, vocab]."""
        for source, target, tokens in batch.copies:
            kv.copy(source, target, tokens)
        wanted = batch.wanted if len(batch.wanted) else batch.wanted.new_zeros(1)
        output = self.module(
            input_ids=batch.tokens[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            paged_batch=batch,
            paged_kv=kv,
            paged_attend=self.attend,
        )
        logits: Tensor = output.logits[0, : len(batch.wanted)].float()
        return logits


def load(
    path: Path, *, attend: Attend = packed.attend, device: torch.device = CPU, kv_cache_dtype: str = AUTO
) -> PagedModel:
    """Load a local folder. Raises ModelRefused when the layers cannot be paged."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    refuse_unpaged(config.get_text_config())
    dtype = compute_dtype(config, device)
    refuse_unread(kv_cache_dtype, dtype, device)
    register()
    module = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=PAGED, trust_remote_code=False)
    if device.type != "cpu":  # where each product is a kernel to be launched
        fuse(module)
    return PagedModel(module.eval().to(device), weights=digest(path), attend=attend, kv_cache_dtype=kv_cache_dtype)


def compute_dtype(config: Any, device: torch.device) -> torch.dtype:
    """Return what a model is computed in: float32 on a CPU; on a GPU the configuration's own, where that is half."""
    if device.type == "cpu":
        return torch.float32
    own: torch.dtype | None = getattr(config.get_text_config(), "dtype", None)
    return own if own in HALF else torch.bfloat16


def register() -> None:
    """Make the paged attention known to transformers under the name `PAGED`."""
    AttentionInterface.register(PAGED, _paged_attention)
    AttentionMaskInterface.register(PAGED, _window_alone)


def digest(path: Path) -> str:
    """Return one digest over the names and contents of the weight files and the configuration."""
    total = xxhash.xxh3_128()
    files = sorted([*path.glob("*.safetensors"), path / "config.json"])
    for file in files:
        content = xxhash.xxh3_128()
        with file.open("rb") as stream:
            while part := stream.read(1 << 24):
                content.update(part)
        total.update(file.name.encode() + b"\0" + content.digest())
    return total.hexdigest()


def _paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: int | None,
    *,
    scaling: float,
    paged_batch: Batch | None = None,
    paged_kv: KVTensors | None = None,
    paged_attend: Attend | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: query [1, heads, tokens, head_dim], key and value [1, kv_heads, …].

    The window is the mask's, as in the model's own forward, and not the keyword `sliding_window`.
    """
    if paged_batch is None or paged_kv is None or paged_attend is None:
        raise ModelRefused(f"{type(module).__name__} is not given what its model is given: its layers cannot be paged.")
    if position_bias is not None:
        raise ModelRefused(f"{type(module).__name__} asks for position_bias, which this engine's attention lacks.")
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))  # [tokens, heads, head_dim]
    if key.shape != value.shape or key.shape[1:] != paged_kv.rows[module.layer_idx][0].shape[1:]:
        raise ModelRefused(
            f"{type(module).__name__} has in layer {module.layer_idx} keys of {list(key.shape[1:])} and values of "
            f"{list(value.shape[1:])} a token, where all must be {list(paged_kv.rows[0][0].shape[1:])}: not paged."
        )
    key, value = paged_kv.write(module.layer_idx, paged_batch.slots, key, value)
    keys, values = paged_kv.read(module.layer_idx, query.dtype)
    scoring = Scoring(scaling=scaling, window=attention_mask, softcap=softcap, sinks=s_aux)
    output = paged_attend(query.contiguous(), key, value, keys, values, paged_batch, scoring)
    return output[None], None


def _window_alone(*, config: Any, local_size: int | None = None, use_vmap: bool = False, **_: Any) -> int | None:
    """Give the model its window in place of a mask, None where there is none: rows and slots say who sees what else."""
    if use_vmap or local_size not in (None, getattr(config, "sliding_window", None)):
        raise ModelRefused(f"{config.model_type} masks by more than order and a window, which this engine does not.")
    return local_size
