"""Tiny random models of every family that is served: four layers, grouped heads, windows of six tokens."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from engine.model import PAGED, register
from tests.engine.workbench import VOCAB

WINDOW = 6

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.6,  # spreads the logits, so that a wrong key shows
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
OWN_SIZE = BASE | {"head_dim": 16}  # of heads: not hidden size / heads
SLIDING = OWN_SIZE | {"sliding_window": WINDOW}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def _rope(kind: str, **more: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=128)
LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
LOCAL_AND_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
}

FAMILIES: dict[str, hf.PretrainedConfig] = {
    "llama": hf.LlamaConfig(**BASE),
    "llama, one KV head": hf.LlamaConfig(**BASE | {"num_key_value_heads": 1}),
    "llama, as many KV heads as heads": hf.LlamaConfig(**BASE | {"num_key_value_heads": 4}),
    "llama, linear rope": hf.LlamaConfig(**BASE, **_rope("linear", factor=4.0)),
    "llama, llama3 rope": hf.LlamaConfig(**BASE, **LLAMA3),
    "llama, yarn rope": hf.LlamaConfig(**BASE, **YARN),
    "qwen2": hf.Qwen2Config(**BASE),
    "qwen2, later layers slide": hf.Qwen2Config(
        **BASE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "qwen3": hf.Qwen3Config(**OWN_SIZE),
    "qwen3 moe": hf.Qwen3MoeConfig(**OWN_SIZE, **EXPERTS, moe_intermediate_size=16),
    "mistral": hf.MistralConfig(**BASE, sliding_window=WINDOW),
    "mixtral": hf.MixtralConfig(**BASE, sliding_window=WINDOW, num_local_experts=4),
    "phi3": hf.Phi3Config(**BASE, sliding_window=WINDOW),
    "gemma": hf.GemmaConfig(**OWN_SIZE),
    "gemma2": hf.Gemma2Config(
        **SLIDING, layer_types=MIXED, attn_logit_softcapping=2.0, final_logit_softcapping=30.0, query_pre_attn_scalar=16
    ),
    "gemma3": hf.Gemma3TextConfig(
        **SLIDING, layer_types=MIXED, query_pre_attn_scalar=16, rope_parameters=LOCAL_AND_GLOBAL
    ),
    "gpt-oss": hf.GptOssConfig(**SLIDING, **YARN, layer_types=MIXED, num_local_experts=4, num_experts_per_tok=2),
    "olmo2": hf.Olmo2Config(**BASE),
    "olmo3": hf.Olmo3Config(**BASE, sliding_window=WINDOW, layer_types=MIXED),
    "granite": hf.GraniteConfig(**BASE, attention_multiplier=0.2, logits_scaling=2.0),
    "smollm3": hf.SmolLM3Config(**BASE),
    "cohere2": hf.Cohere2Config(**SLIDING, layer_types=MIXED),
    "glm4": hf.Glm4Config(**OWN_SIZE),
}
WITH_EXPERTS = ("qwen3 moe", "mixtral", "gpt-oss")


def random_model(config: hf.PretrainedConfig, seed: int = 0) -> Any:
    """Return a causal LM of this shape under the paged attention; sinks and biases are no longer zero."""
    register()
    torch.manual_seed(seed)
    module = hf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name.endswith(("sinks", ".bias")):
                weight.normal_(0.0, 1.0)
    module.set_attn_implementation(PAGED)
    return module
