"""Joined projections: the same numbers, fewer products."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from engine.fused import Joined, Share, fuse
from tests.engine.families import FAMILIES, random_model
from tests.engine.workbench import Bench, close, plain_answer, plain_logits, tiny_module


def test_a_fused_model_says_what_the_plain_one_says():
    """Queries, keys and values, and gate and up are one product each, and the logits stay within the tolerance."""
    module = tiny_module()
    fused = copy.deepcopy(module)
    weights = sum(parameter.numel() for parameter in module.parameters())
    assert fuse(fused) == 2 * (2 + 1)
    assert sum(parameter.numel() for parameter in fused.parameters()) == weights
    prompt = list(range(40))
    assert close(plain_logits(fused, prompt), plain_logits(module, prompt))
    bench = Bench(module=fused)
    assert bench.ask(prompt, max_tokens=6).tokens == plain_answer(module, prompt, 6)
    assert not any(joined._shares for joined in fused.modules() if isinstance(joined, Joined))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_the_same_fused(family):
    """Whatever a family does with its projections, its logits stay within the tolerance."""
    module = random_model(FAMILIES[family])
    fused = copy.deepcopy(module)
    fuse(fused)
    prompt = list(range(20))
    assert close(plain_logits(fused, prompt), plain_logits(module, prompt))


@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_each_share_is_its_own_layers(bias):
    """A share equals the layer that stood there, called in any order and with different inputs."""
    parent = nn.Module()
    for name, size in (("q_proj", 6), ("k_proj", 2), ("v_proj", 4)):
        setattr(parent, name, nn.Linear(8, size, bias=bias))
    plain = copy.deepcopy(parent)
    fuse(parent)
    assert isinstance(parent.q_proj, Share)
    one, other = torch.randn(3, 8), torch.randn(1, 8)
    for name, given in (("v_proj", one), ("q_proj", one), ("q_proj", other), ("k_proj", one), ("v_proj", other)):
        assert torch.allclose(getattr(parent, name)(given), getattr(plain, name)(given), atol=1e-6)


def test_what_is_not_alike_stays():
    """Layers of different inputs, or of which only some have a bias, are left alone."""
    parent = nn.Module()
    parent.gate_proj, parent.up_proj = nn.Linear(8, 4), nn.Linear(8, 4, bias=False)
    assert fuse(parent) == 0 and type(parent.gate_proj) is nn.Linear
