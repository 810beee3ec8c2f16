"""Which models can be paged, told from the configuration alone, and what their keys and values look like.

Pure: reads a transformers configuration, knows no weights. Rule: what would not come out right is refused in one line
that names the model and what of it is in the way; what a configuration does not tell, the self-test finds.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from engine.errors import ModelRefused
from engine.kv_tensors import KVLayout

PAGED_LAYERS = ("full_attention", "sliding_attention", "attention")
EXTENDED_ROPE = ("dynamic", "longrope", "su")  # their frequencies depend on how long the prompt is
STATES = ("ssm_cfg", "mamba_d_state", "state_size", "time_mix_extra_dim", "linear_num_value_heads")


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
    if getattr(config, "kv_lora_rank", None):
        raise ModelRefused(f"{name} uses latent attention, whose values have another size than its keys: not paged.")
    _refuse_uneven(name, config)
    odd = sorted(set(getattr(config, "layer_types", None) or ()) - set(PAGED_LAYERS))
    if odd:
        raise ModelRefused(
            f"{name} has {', '.join(odd)} layers, whose state is not one key and one value of each earlier token: "
            "a prefix of theirs cannot be shared. Choose a model whose layers are full or sliding-window attention."
        )
    for state in STATES:
        if getattr(config, state, None):
            raise ModelRefused(f"{name} has state-space or linear-attention layers ({state}): they cannot be paged.")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelRefused(f"{name} has an encoder: what it keeps of a prompt is not only the tokens' keys and values.")
    if any(kind in EXTENDED_ROPE for kind in _rope_kinds(config)):
        raise ModelRefused(
            f"{name} rescales its positions with the length of the prompt ({', '.join(sorted(_rope_kinds(config)))} "
            "RoPE): cached keys of a short prompt would be wrong in a longer one."
        )
    if not getattr(config, "num_attention_heads", None):
        raise ModelRefused(f"{name} has no attention heads in its configuration: there are no keys and values to page.")


def _refuse_uneven(name: str, config: Any) -> None:
    """Raise ModelRefused where layers differ in what they keep, or keep nothing of their own."""
    if shared := getattr(config, "num_kv_shared_layers", None):
        raise ModelRefused(f"{name} has {shared} layers that read the keys and values of earlier ones: not paged.")
    if getattr(config, "is_heterogeneous", False):
        fields = ", ".join(sorted(config.per_layer_attributes))
        raise ModelRefused(f"{name} has layers that differ in {fields}: only layers that are alike are paged.")
    value_dim, head_dim = getattr(config, "v_head_dim", None), getattr(config, "head_dim", None)
    if value_dim is not None and value_dim != (head_dim or config.hidden_size // config.num_attention_heads):
        raise ModelRefused(
            f"{name} has values of another size than its keys (v_head_dim {value_dim}, head_dim {head_dim}): not paged."
        )


def _rope_kinds(config: transformers.PretrainedConfig) -> set[str]:
    """Return the kinds of rotary embedding that the layers use."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    return {str(rope.get("rope_type", rope.get("type", "default"))) for rope in by_layer}
