"""Which models are served, and that the default one gives the same answer cold, warm and plain."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers as hf
from transformers import LlamaConfig

from engine.errors import ModelRefused
from engine.loading import digest, load
from engine.model import PAGED, PagedModel, register
from engine.pageable import layout_of, refuse_unpaged
from engine.self_test import self_test
from tests.engine.workbench import tiny_module

LINEAR = (
    "{} has linear_attention layers, whose state is not one key and one value of each earlier token: a prefix of "
    "theirs cannot be shared. Choose a model whose layers are full or sliding-window attention."
)
RESCALED = (
    "{} rescales its positions with the length of the prompt ({} RoPE): cached keys of a short prompt would be wrong "
    "in a longer one."
)


def _phi3_long() -> hf.Phi3Config:
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    return hf.Phi3Config(rope_parameters=rope | {"original_max_position_embeddings": 4096})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (hf.MambaConfig(), LINEAR.format("mamba")),
        (hf.Qwen3NextConfig(), LINEAR.format("qwen3_next")),
        (hf.JambaConfig(), LINEAR.format("jamba")),
        (hf.Llama4TextConfig(), LINEAR.replace("linear", "chunked").format("llama4_text")),
        (
            hf.DeepseekV3Config(),
            "deepseek_v3 uses latent attention, whose values have another size than its keys: not paged.",
        ),
        (
            hf.Gemma3nTextConfig(),
            "gemma3n_text has 15 layers that read the keys and values of earlier ones: not paged.",
        ),
        (
            hf.Gemma4TextConfig(),
            "gemma4_text has layers that differ in head_dim: only layers that are alike are paged.",
        ),
        (_phi3_long(), RESCALED.format("phi3", "longrope")),
        (
            hf.T5Config(),
            "t5 has an encoder: what it keeps of a prompt is not only the tokens' keys and values.",
        ),
    ],
)
def test_layers_that_cannot_be_paged_are_refused_by_name(config, said):
    """One line names the model and what of it is in the way."""
    with pytest.raises(ModelRefused) as refused:
        refuse_unpaged(config)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    "config", [LlamaConfig(), hf.MistralConfig(), hf.MistralConfig(sliding_window=None), hf.Gemma3TextConfig()]
)
def test_full_and_sliding_attention_are_accepted(config):
    """There is nothing to refuse in layers that keep a key and a value for each token, with a window or without."""
    assert refuse_unpaged(config) is None


TINY = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (hf.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4), "bloom computes attention by code of its"),
        (hf.StableLmConfig(**TINY, num_key_value_heads=4), "StableLmAttention is not given what its model is given"),
        (hf.Gemma3TextConfig(**TINY, use_bidirectional_attention=True), "gemma3_text masks by more than order and"),
    ],
)
def test_attention_that_does_something_else_is_found_by_the_self_test(config, said):
    """What a configuration does not tell is refused before the first request, by the model's name."""
    register()
    module = hf.AutoModelForCausalLM.from_config(config).eval()
    module.set_attn_implementation(PAGED)
    with pytest.raises(ModelRefused, match=said):
        self_test(PagedModel(module, weights="tiny"))


def test_the_self_test_passes_a_right_model_and_refuses_a_wrong_one():
    """An attention that forgets the scale is caught before the first request."""
    model = PagedModel(tiny_module(), weights="tiny")
    self_test(model)
    right = model.attend
    model.attend = lambda *rest: right(*rest[:-1], replace(rest[-1], scaling=rest[-1].scaling * 0.5))
    with pytest.raises(ModelRefused, match="two parts"):
        self_test(model)


def test_the_digest_follows_the_weights(tmp_path):
    """Other weights under the same name have another identity."""
    tiny_module(seed=1).save_pretrained(tmp_path / "one")
    tiny_module(seed=2).save_pretrained(tmp_path / "two")
    tiny_module(seed=1).save_pretrained(tmp_path / "again")
    assert digest(tmp_path / "one") == digest(tmp_path / "again") != digest(tmp_path / "two")
    assert load(tmp_path / "one").weights == digest(tmp_path / "one")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_prompts_length_are_refused(kind):
    """Keys cached under a short prompt would be wrong in a longer one."""
    config = LlamaConfig()
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 2.0}
    with pytest.raises(ModelRefused, match=kind):
        refuse_unpaged(config)


def test_the_layout_knows_grouped_heads():
    """KV heads and head size come from the configuration."""
    layout = layout_of(tiny_module().config, torch.float32)
    assert (layout.layers, layout.kv_heads, layout.head_dim) == (2, 2, 8)
