"""Parameters counted, against transformers' own models."""

from __future__ import annotations

import msgspec
import pytest

from engine.defaults import filled
from gateway.planning.finding import KNOWN, NEEDS, find
from gateway.planning.parameters import FAMILIES, count, weight_bytes
from gateway.planning.shape import shape_of
from tests.planning.configs import (
    GPT_OSS_20B,
    LLAMA_70B,
    PUBLISHED,
    QWEN3_8B,
    QWEN3_30B_A3B,
    saved,
)

TINY = {
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "hidden_size": 48,
    "intermediate_size": 56,
    "vocab_size": 96,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
TWISTS = {
    "gpt_oss": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "phi3": {"head_dim": 8},
    "qwen3": {"attention_bias": True},
    "qwen3_moe": {
        "moe_intermediate_size": 24,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    },
}


def counted_by_transformers(config):
    """The parameters of the model itself, made without memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {key: value for key, value in config.items() if key != "quantization_config"}
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given))
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_of_each_family_is_counted_exactly(family, tied):
    """Every family's count is that of its meta-device model, with and without a head of its own."""
    config = {"model_type": family, "tie_word_embeddings": tied} | TINY | TWISTS.get(family, {})
    whole = filled(config)
    found = count(whole, shape_of(whole))
    assert found is not None
    assert found.total == counted_by_transformers(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_counted_exactly(name):
    """The count is that of the published weights and of the meta-device model."""
    config, published = PUBLISHED[name]
    found = count(config, shape_of(config))
    assert found is not None
    assert (found.total, counted_by_transformers(config)) == (published, published)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_ties_its_embedding_as_its_class_does(family):
    """Where a configuration does not say, the table does as transformers."""
    from transformers import AutoConfig

    assert FAMILIES[family].tied is bool(AutoConfig.for_model(family).tie_word_embeddings)


@pytest.mark.parametrize(
    ("config", "idle"),
    [
        (QWEN3_30B_A3B, 48 * (128 - 8) * 3 * 2048 * 768),
        (GPT_OSS_20B, 24 * (32 - 4) * (3 * 2880 * 2880 + 3 * 2880)),
        (QWEN3_8B, 0),
    ],
)
def test_active_parameters_leave_out_the_experts_not_chosen(config, idle):
    """A token goes through the experts it chooses and everything else; a dense model is active whole."""
    found = count(config, shape_of(config))
    assert found is not None
    assert found.active == found.total - idle


def test_gpt_oss_is_as_active_as_its_card_says():
    """GPT-OSS 20B goes through 3.61 billion parameters a token, its input embedding aside."""
    found = count(GPT_OSS_20B, shape_of(GPT_OSS_20B))
    assert found is not None
    assert round((found.active - found.embedding) / 1e9, 2) == 3.61


def test_mxfp4_and_fp8_weights_take_what_their_checkpoints_take():
    """GPT-OSS 20B's experts take 4.25 bits, fp8 one byte, and 16-bit weights two; another method is not guessed at."""
    oss = count(GPT_OSS_20B, shape_of(GPT_OSS_20B))
    assert oss is not None
    rest, experts = weight_bytes(GPT_OSS_20B, oss, "bfloat16") or (0, 0)
    assert (rest, experts) == (2 * (oss.total - oss.experts), oss.expert_matrices * 0.53125 + 24 * 32 * 8640 * 2)
    llama = count(LLAMA_70B, shape_of(LLAMA_70B))
    assert llama is not None
    assert weight_bytes(LLAMA_70B, llama, "float16") == (2 * llama.total, 0)
    matrices = llama.attention + llama.mlp
    fp8 = LLAMA_70B | {"quantization_config": {"quant_method": "fp8"}}
    assert weight_bytes(fp8, llama, "float16") == (2 * llama.total - matrices, 0)
    assert weight_bytes(LLAMA_70B | {"quantization_config": {"quant_method": "awq"}}, llama, "float16") is None


def test_an_unknown_family_is_not_guessed_at():
    """A family outside the table has no count."""
    config = LLAMA_70B | {"model_type": "novel"}
    assert count(config, shape_of(config)) is None


def test_the_known_name_is_the_model_that_it_names(tmp_path):
    """`smollm2-135m` is planned with the configuration that its weights are served with."""
    from engine.weights import DEFAULT_MODEL

    config = KNOWN[DEFAULT_MODEL]
    assert find(DEFAULT_MODEL).config == config
    found = count(config, shape_of(config))
    assert found is not None
    assert found.total == counted_by_transformers(config) == 134_515_008


def test_each_family_that_is_counted_says_what_it_needs():
    """A family's count and the fields that stand in for its class are kept together."""
    assert set(NEEDS) == set(FAMILIES)


def test_what_is_missing_is_asked_for(tmp_path):
    """GPT-OSS without some of its fields is read with its class's defaults, not as if it had none."""
    missing = {"num_local_experts", "layer_types", "intermediate_size"}
    file = saved(tmp_path, {key: value for key, value in GPT_OSS_20B.items() if key not in missing})
    whole = find(str(file)).config
    assert (whole["num_local_experts"], whole["intermediate_size"]) == (128, 2880)
    assert whole["quantization_config"] == {"quant_method": "mxfp4"}
    assert shape_of(whole) == shape_of(GPT_OSS_20B)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss"])
def test_a_whole_configuration_reads_as_transformers_fills_it(family, tmp_path):
    """What is taken as it is has the shape and count that transformers' class gives it."""
    config = {one["model_type"]: one for one, _ in PUBLISHED.values()}[family]
    file = saved(tmp_path, config)
    assert find(str(file)).config == config
    whole = msgspec.json.decode(msgspec.json.encode(filled(dict(config)), enc_hook=str))
    assert shape_of(whole) == shape_of(config)
    assert count(whole, shape_of(whole)) == count(config, shape_of(config))
