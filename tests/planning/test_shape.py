"""Configurations read, and refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelRefused
from gateway.planning.errors import Unplannable
from gateway.planning.shape import shape_of
from tests.planning.configs import GEMMA3_1B, LLAMA_70B, MISTRAL_7B, PUBLISHED, QWEN2_HALF_B

UNPAGED = {
    "layer_types": {"layer_types": ["linear_attention", "full_attention"] * 40},
    "kv_lora_rank": {"kv_lora_rank": 512},
    "mamba_d_state": {"mamba_d_state": 16},
    "linear_num_value_heads": {"linear_num_value_heads": 32},
    "v_head_dim": {"v_head_dim": 64},
    "rope_parameters": {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0}},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read(name):
    """Each has as many layers as it says."""
    config, _ = PUBLISHED[name]
    assert len(shape_of(config).layers) == config["num_hidden_layers"]


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (MISTRAL_7B, {4096}),
        (MISTRAL_7B | {"sliding_window": None}, {None}),
        (QWEN2_HALF_B, {None}),
        ({key: value for key, value in QWEN2_HALF_B.items() if key != "use_sliding_window"}, {None}),
        (GEMMA3_1B, {512, None}),
    ],
)
def test_windows_are_where_the_configuration_has_them(config, windows):
    """A window is every layer's, no layer's, or that of the layers that slide."""
    assert {layer.window for layer in shape_of(config).layers} == windows


def test_qwens_later_layers_slide():
    """With `use_sliding_window` the layers from `max_window_layers` on slide, and no earlier one."""
    shape = shape_of(QWEN2_HALF_B | {"use_sliding_window": True})
    assert [layer.window for layer in shape.layers] == [None] * 21 + [32768] * 3


@pytest.mark.parametrize(("config", "kv_heads"), [({"multi_query": True}, 1), ({}, 64)])
def test_kv_heads_that_are_not_said(config, kv_heads):
    """A multi-query model has one, any other as many as heads."""
    base = {key: value for key, value in LLAMA_70B.items() if key != "num_key_value_heads"}
    assert {layer.kv_heads for layer in shape_of(base | config).layers} == {kv_heads}


@pytest.mark.parametrize("field", UNPAGED)
def test_what_cannot_be_paged_is_refused_by_name(field):
    """The message begins with the field that tells."""
    with pytest.raises(Unplannable, match=rf"^{field}: llama "):
        shape_of(LLAMA_70B | UNPAGED[field])


@pytest.mark.parametrize("field", UNPAGED)
def test_the_engine_refuses_it_too(field):
    """What no plan is made of, the engine does not load."""
    from transformers import LlamaConfig

    from engine.pageable import refuse_unpaged

    config = LlamaConfig()
    for name, value in UNPAGED[field].items():
        setattr(config, name, value)
    with pytest.raises(ModelRefused):
        refuse_unpaged(config)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_hidden_layers": "many"}, "num_hidden_layers: expected a whole number from 1 to 10,000, not 'many'"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers: expected a whole number from 1 to 10,000, not 10001"),
        ({"num_attention_heads": True}, "num_attention_heads: expected a whole number from 1 to 16,777,216, not True"),
        ({"num_attention_heads": None}, "num_attention_heads: missing from the configuration"),
        ({"head_dim": 0}, "head_dim: expected a whole number from 1 to 16,777,216, not 0"),
        ({"num_key_value_heads": 7}, "num_key_value_heads: expected a divisor of num_attention_heads (64), not 7"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected a list of num_hidden_layers (80) kinds"),
        ({"layer_types": ["sliding_attention"] * 80}, "sliding_window: missing, but layer_types has sliding layers"),
        ({"num_kv_shared_layers": 80}, "num_kv_shared_layers: expected less than num_hidden_layers (80), not 80"),
        ({"per_layer_config": 3}, "per_layer_config: expected an object, not 3"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: llama is no decoder alone, which is all that is paged"),
        ({"model_type": None}, "model_type: missing; a transformers configuration names its family there"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_may_be(wrong, said):
    """Type, range and absence are told apart."""
    with pytest.raises(Unplannable) as refused:
        shape_of(LLAMA_70B | wrong)
    assert str(refused.value) == said


words = st.sampled_from(["", "type", "full_attention", "sliding_attention", "longrope"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | words
anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(words, scalars, max_size=3)


@given(st.dictionaries(st.sampled_from([*LLAMA_70B, "layer_types", "sliding_window", "rope_scaling"]), anything))
def test_no_configuration_is_a_crash(wrong):
    """Whatever stands in the fields, the configuration is read or refused."""
    refused, layers = "", ()
    try:
        layers = shape_of(LLAMA_70B | wrong).layers
    except Unplannable as error:
        refused = str(error)
    assert bool(refused) is not bool(layers)
    assert all(layer.kv_heads >= 1 and layer.head_dim >= 1 for layer in layers)
