"""Configurations as models publish them, with the parameters that their weights have."""

from __future__ import annotations

from typing import Any

import msgspec

Config = dict[str, Any]

BASE: Config = {"max_position_embeddings": 32768, "dtype": "bfloat16", "attention_bias": False}

LLAMA_70B: Config = BASE | {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "dtype": "float16",
}
QWEN2_HALF_B: Config = BASE | {
    "model_type": "qwen2",
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 21,
}
QWEN3_8B: Config = BASE | {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": None,
}
QWEN3_30B_A3B: Config = BASE | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": None,
}
MISTRAL_7B: Config = BASE | {
    "model_type": "mistral",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
}
GEMMA3_1B: Config = BASE | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "vocab_size": 262144,
    "sliding_window": 512,
    "layer_types": ["full_attention" if at % 6 == 5 else "sliding_attention" for at in range(26)],
}
PHI3_MINI: Config = BASE | {
    "model_type": "phi3",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "vocab_size": 32064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "sliding_window": 2047,
    "pad_token_id": 32000,
}
GPT_OSS_20B: Config = BASE | {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "sliding_window": 128,
    "layer_types": ["full_attention" if at % 2 else "sliding_attention" for at in range(24)],
    "quantization_config": {"quant_method": "mxfp4"},
}

PUBLISHED = {  # parameters of their weights
    "llama 3 70B": (LLAMA_70B, 70_553_706_496),
    "qwen 2.5 0.5B": (QWEN2_HALF_B, 494_032_768),
    "qwen 3 8B": (QWEN3_8B, 8_190_735_360),
    "qwen 3 30B-A3B": (QWEN3_30B_A3B, 30_532_122_624),
    "mistral 7B": (MISTRAL_7B, 7_241_732_096),
    "gemma 3 1B": (GEMMA3_1B, 999_885_952),
    "phi 3 mini": (PHI3_MINI, 3_821_079_552),
    "gpt-oss 20B": (GPT_OSS_20B, 20_914_757_184),
}


def saved(folder, config, name="config.json"):
    """Write a configuration to a file."""
    file = folder / name
    file.write_bytes(msgspec.json.encode(config))
    return file
