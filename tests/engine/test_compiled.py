"""Compiled layers: the same numbers, and nothing left to compile once the engine serves."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from engine.compiled import compile_layers
from engine.errors import ModelRefused
from engine.model import PAGED, PagedModel, register
from tests.engine.families import FAMILIES, random_model
from tests.engine.workbench import Bench, plain_answer, tiny_module

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # within torch's own compiler
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def afresh():
    """Leave neither compiled code nor the wrapped attention to the next test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    register()


def compiled(module: Any) -> Any:
    """Compile a model's layers in place."""
    register()
    module.set_attn_implementation(PAGED)
    compile_layers(PagedModel(module, weights="tiny"))
    return module


@needs_a_compiler
def test_a_compiled_model_serves_without_compiling_again():
    """Cold, warm and several at once, answers are the plain model's, and no step meets uncompiled code."""
    module = tiny_module()
    prompt, other = list(range(40)), list(range(30, 0, -1))
    expected = [plain_answer(module, prompt, 6), plain_answer(module, other, 6)]
    bench = Bench(module=compiled(module))
    graphs = counters["stats"]["unique_graphs"]
    assert bench.ask(prompt, max_tokens=6).tokens == expected[0]
    warm = bench.ask(prompt, max_tokens=6)
    assert (warm.tokens, warm.prefilled.read) == (expected[0], 39)
    both = [bench.submit(tokens, max_tokens=6) for tokens in (prompt, other)]
    bench.run()
    assert [bench.answers[one].tokens for one in both] == expected
    assert counters["stats"]["unique_graphs"] == graphs > 0


@needs_a_compiler
def test_a_compiled_window_is_the_models():
    """Layers that slide and layers that see all are compiled apart, and answer as the plain model does."""
    module = random_model(FAMILIES["gemma3"])
    prompt = list(range(30))
    expected = plain_answer(module, prompt, 4)
    assert Bench(module=compiled(module)).ask(prompt, max_tokens=4).tokens == expected


def test_without_a_compiler_the_start_is_refused_by_name():
    """One line names the setting and what to do."""
    without = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with (
        without,
        pytest.raises(ModelRefused, match=r"--torch-compile on: llama does not compile here .* Install a C\+\+"),
    ):
        compiled(tiny_module())
