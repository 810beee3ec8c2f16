"""Which models are served, and that the default one gives the same answer cold, warm and plain."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, MambaConfig, MistralConfig, Qwen3NextConfig

from engine.errors import ModelRefused
from engine.kv_tensors import KVLayout, plan_blocks
from engine.model import PagedModel, digest, layout_of, load, refuse_unpaged
from engine.self_test import self_test
from tests.engine.workbench import tiny_module


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (MambaConfig(), "linear_attention layers"),
        (Qwen3NextConfig(), "linear_attention layers"),
        (Gemma3TextConfig(), "sliding-window"),
        (MistralConfig(sliding_window=64), "sliding-window"),
    ],
)
def test_layers_that_cannot_be_paged_are_refused_by_name(config, why):
    """State-space, linear-attention and sliding-window layers are refused with the reason."""
    with pytest.raises(ModelRefused, match=why):
        refuse_unpaged(config)


def test_full_attention_is_accepted():
    """A Llama has nothing to refuse, nor has a Mistral without a window."""
    refuse_unpaged(LlamaConfig())
    refuse_unpaged(MistralConfig(sliding_window=None))


def test_the_self_test_passes_a_right_model_and_refuses_a_wrong_one():
    """An attention that forgets the scale is caught before the first request."""
    model = PagedModel(tiny_module(), weights="tiny")
    self_test(model)
    right = model.attend
    model.attend = lambda *arguments: right(*arguments[:-1], arguments[-1] * 0.5)
    with pytest.raises(ModelRefused, match="two parts"):
        self_test(model)


def test_the_digest_follows_the_weights(tmp_path):
    """Other weights under the same name have another identity."""
    tiny_module(seed=1).save_pretrained(tmp_path / "one")
    tiny_module(seed=2).save_pretrained(tmp_path / "two")
    tiny_module(seed=1).save_pretrained(tmp_path / "again")
    assert digest(tmp_path / "one") == digest(tmp_path / "again") != digest(tmp_path / "two")
    assert load(tmp_path / "one").weights == digest(tmp_path / "one")


def test_a_pool_without_a_block_names_the_numbers():
    """A pool smaller than the window is allowed, one smaller than a block is refused with what would do."""
    layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype=torch.float32)
    assert layout.bytes_per_token == 256
    with pytest.raises(ModelRefused, match=r"not even one block of 16 tokens. Give --kv-bytes 4096 or more.* 16384"):
        plan_blocks(layout, kv_bytes=256 * 15, free_bytes=0, block_tokens=16, max_model_len=64)
    assert plan_blocks(layout, kv_bytes=256 * 63, free_bytes=0, block_tokens=16, max_model_len=64) == 3


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
