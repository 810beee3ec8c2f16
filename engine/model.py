"""A Hugging Face causal LM whose attention reads and writes the paged pool.

Owns the weights. The model is transformers' own code: only its attention function is ours, reached through
`AttentionInterface`; batch and pool arrive as keyword arguments of the forward call, so there is no hidden state.
What cannot be paged right is refused at load, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import xxhash
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

from engine.attention import packed
from engine.batch import Batch
from engine.errors import ModelRefused
from engine.kv_tensors import KVLayout, KVTensors

PAGED = "keepwarm_paged"
EXTENDED_ROPE = ("dynamic", "longrope")  # their frequencies depend on how long the prompt is
UNPAGED_EXTRAS = ("softcap", "s_aux", "sliding_window", "position_bias")  # arguments that change what attention means
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Batch, float], Tensor]


class PagedModel:
    """Weights, and one forward pass over a batch."""

    def __init__(self, module: Any, *, weights: str, attend: Attend = packed.attend) -> None:
        self.module = module  # a transformers causal LM; its library gives no usable types
        self.config = module.config.get_text_config()
        self.weights = weights  # content digest
        self.layout = layout_of(self.config, module.dtype)
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


def load(path: Path, *, attend: Attend = packed.attend) -> PagedModel:
    """Load a local folder. Raises ModelRefused when the layers cannot be paged."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    refuse_unpaged(config.get_text_config())
    register()
    module = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=PAGED, trust_remote_code=False
    )
    return PagedModel(module.eval(), weights=digest(path), attend=attend)


def register() -> None:
    """Make the paged attention known to transformers under the name `PAGED`."""
    AttentionInterface.register(PAGED, _paged_attention)
    AttentionMaskInterface.register(PAGED, _no_mask)


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


def layout_of(config: transformers.PretrainedConfig, dtype: torch.dtype) -> KVLayout:
    """Return the KV layout that a text configuration asks for."""
    heads = config.num_attention_heads
    return KVLayout(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=dtype,
    )


def refuse_unpaged(config: transformers.PretrainedConfig) -> None:
    """Raise ModelRefused for layers whose state is not plain keys and values of every earlier token."""
    name = config.model_type
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention", "attention"}:
        odd = ", ".join(sorted(kinds - {"full_attention", "sliding_attention", "attention"}))
        raise ModelRefused(
            f"{name} has {odd} layers: their state cannot be cut at a token, so a prefix cannot be shared. "
            "Choose a model whose layers are all full attention."
        )
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if "sliding_attention" in kinds or (windowed and not kinds):
        raise ModelRefused(
            f"{name} has sliding-window layers (window {getattr(config, 'sliding_window', '?')}), which this engine "
            "does not page. Choose a model whose layers are all full attention."
        )
    if getattr(config, "kv_lora_rank", None):
        raise ModelRefused(f"{name} uses latent attention, whose values have another size than its keys: not paged.")
    if any(kind in EXTENDED_ROPE for kind in _rope_kinds(config)):
        raise ModelRefused(
            f"{name} rescales its positions with the length of the prompt ({', '.join(sorted(_rope_kinds(config)))} "
            "RoPE): cached keys of a short prompt would be wrong in a longer one."
        )
    for state in ("ssm_cfg", "mamba_d_state", "state_size", "time_mix_extra_dim", "linear_num_value_heads"):
        if getattr(config, state, None):
            raise ModelRefused(f"{name} has state-space or linear-attention layers ({state}): they cannot be paged.")
    if not getattr(config, "num_attention_heads", None):
        raise ModelRefused(f"{name} has no attention heads in its configuration: there are no keys and values to page.")


def _rope_kinds(config: transformers.PretrainedConfig) -> set[str]:
    """Return the kinds of rotary embedding that the layers use."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    return {str(rope.get("rope_type", rope.get("type", "default"))) for rope in by_layer}


def _paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    paged_batch: Batch,
    paged_kv: KVTensors,
    paged_attend: Attend,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: query [1, heads, tokens, head_dim], key and value [1, kv_heads, …]."""
    assert attention_mask is None, "the pool decides who sees what"
    for extra in UNPAGED_EXTRAS:
        if extras.get(extra) is not None:
            raise ModelRefused(
                f"{type(module).__name__} asks for {extra}, which this engine's attention does not have."
            )
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))  # [tokens, heads, head_dim]
    keys, values = paged_kv.write(module.layer_idx, paged_batch.slots, key, value)
    output = paged_attend(query.contiguous(), key, value, keys, values, paged_batch, scaling)
    return output[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """Give the model no mask: rows and slots say who sees what."""
