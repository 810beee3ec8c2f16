"""Steady layers: row counts that round alike are found, others are not used, and what has none is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from engine.attention.dispatch import attention_for
from engine.attention.fixed import Fixed
from engine.attention.packed import attend as packed_attend
from engine.config import EngineConfig
from engine.errors import ModelRefused
from engine.loading import load
from engine.model import PagedModel
from engine.runner import Runner
from engine.steady import LANES, RUNGS, SERIAL, Kernel, Ladder, Level, Product, Steady, ladder_of, steady
from engine.steady_test import steady_test
from engine.worker import build_core
from tests.engine.families import FAMILIES, WITH_EXPERTS, random_model
from tests.engine.workbench import one_thread, tiny_module
from tests.tiny_model import save_tiny_model


@pytest.fixture(autouse=True)
def slowly() -> Iterator[None]:
    """One thread: these matrices are tiny."""
    with one_thread():
        yield


class Uneven(Kernel):
    """A product that rounds otherwise for some row counts: it says so in its last bits, by a number for each way."""

    name = "uneven"

    def __init__(self, odd: Any) -> None:
        self.odd = odd
        self.counts: list[int] = []

    def make(self, layer: nn.Linear) -> Product:
        def product(rows: Tensor) -> Tensor:
            self.counts.append(len(rows))
            exact = (rows.double() @ layer.weight.double().T).float()
            return exact * (1 + int(self.odd(len(rows))) * 2**-20)

        return product


class ByPlace(Kernel):
    """A product that rounds otherwise for the first row."""

    def make(self, layer: nn.Linear) -> Product:
        def product(rows: Tensor) -> Tensor:
            out = linear(rows, layer.weight)
            out[0] *= 1 + 2**-20
            return out

        return product


def layer(inputs: int = 8, outputs: int = 4) -> nn.Linear:
    """A linear layer of seeded weights."""
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=False)


def test_a_ladder_leaves_out_counts_that_round_otherwise() -> None:
    """Few rows and 64 to 192 round otherwise here, so they are padded over."""
    kernel = Uneven(lambda rows: rows < 16 or 64 <= rows < 256)
    ladder = ladder_of(kernel.make(layer()), layer(), single=False)
    assert ladder == Ladder((16, 24, 32, 48, 256, 384, 512, 768, 1024))
    assert list(ladder.steps(1)) == [(0, 1, 16)]
    assert list(ladder.steps(49)) == [(0, 49, 256)]
    assert list(ladder.steps(2049)) == [(0, 1024, 1024), (1024, 2048, 1024), (2048, 2049, 16)]


def test_a_ladder_for_single_rows_begins_low() -> None:
    """Where one row is what counts, the lowest counts that round alike are taken, and many rows are cut."""
    kernel = Uneven(lambda rows: 1 if rows == 1 else 2 * (rows > 8))
    ladder = ladder_of(kernel.make(layer()), layer(), single=True)
    assert ladder == Ladder((2, 4, 8))
    assert list(ladder.steps(11)) == [(0, 8, 8), (8, 11, 4)]


def test_only_rungs_are_computed_and_rows_come_out_alike() -> None:
    """Whatever count is asked for, the kernel sees rungs alone, and each row has the bits that it has alone."""
    kernel = Uneven(lambda rows: rows < 16)
    made = Steady(kernel.make(layer()), Ladder((16, 32)), 4)
    rows = torch.randn(70, 8)
    alone = torch.cat([made(row[None]) for row in rows])
    kernel.counts.clear()
    assert all(torch.equal(made(rows[:count]), alone[:count]) for count in (1, 15, 16, 17, 33, 70))
    assert set(kernel.counts) == {16, 32}
    assert made(rows.view(2, 35, 8)).shape == (2, 35, 4)


@pytest.mark.parametrize("single", [False, True])
def test_a_kernel_that_knows_places_has_no_ladder(single: bool) -> None:
    """Rows whose bits depend on where they stand are no rows to build on."""
    assert ladder_of(ByPlace().make(layer()), layer(), single=single) is None


def test_a_model_without_a_ladder_is_refused_by_name() -> None:
    """When no kernel rounds alike anywhere, the layer and its shape are named."""
    with pytest.raises(ModelRefused, match=r"--deterministic: .* lm_head \(32 to 61\) depends on the rows beside it"):
        steady(tiny_module(), kernels=(ByPlace(),))


def test_the_next_kernel_is_taken() -> None:
    """A kernel without a ladder gives way to one that has it, and every linear layer is replaced."""
    module = tiny_module()
    even = Uneven(lambda rows: False)
    assert steady(module, kernels=(ByPlace(), even)) == {"uneven": 15}
    assert not [name for name, part in module.named_modules() if type(part) is nn.Linear]


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_experts_are_refused_by_name(family: str) -> None:
    """Models whose experts multiply by row counts of their own are not served deterministically."""
    with pytest.raises(ModelRefused, match=r"--deterministic: .* multiplies by .* outside a linear layer"):
        steady(random_model(FAMILIES[family]))


def test_the_whole_model_is_tested() -> None:
    """A model of steady layers passes; with one layer that is not, or another attention, it is refused."""
    module = tiny_module()
    steady(module)
    steady_test(PagedModel(module, weights="tiny", attend=Fixed()))
    down = module.model.layers[1].mlp.down_proj
    down.product = Uneven(lambda rows: rows < 128).make(layer(48, 32))
    down.ladder = Ladder(RUNGS)
    with pytest.raises(ModelRefused, match="--deterministic: llama computes other numbers"):
        steady_test(PagedModel(module, weights="tiny", attend=Fixed()))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [100, 96, 2048])
@pytest.mark.parametrize("act", [nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")])
def test_activations_do_not_depend_on_place(act: nn.Module, width: int, threads: int) -> None:
    """Any rows of any width come out of an activation as they do among all others, few and many, in any threads."""
    torch.set_num_threads(threads)
    level = Level(act, threads)
    rows = torch.randn(1, 3 * SERIAL // width + 5, width)
    whole = level(rows)
    for first, last in ((0, 1), (1, 3), (7, 40), (5, len(rows[0]) - 1)):
        assert torch.equal(level(rows[:, first:last].contiguous()), whole[:, first:last])
    torch.testing.assert_close(whole, act(rows), rtol=1e-6, atol=1e-6)
    assert width % LANES or torch.equal(level(rows[:, :1]), act(rows[:, :1]))


def test_an_engine_is_built_deterministic(tmp_path: Path) -> None:
    """The configuration gives a card that says so, steady layers and the fixed attention; else none of it."""
    path = str(save_tiny_model(tmp_path, window=512))
    threads = torch.get_num_threads()
    for deterministic, kind in ((True, Steady), (False, nn.Linear)):
        core = build_core(
            EngineConfig(model="tiny", model_path=path, kv_bytes=1 << 20, deterministic=deterministic, threads=threads)
        )
        core.grammars.close()
        assert isinstance(core.runner, Runner)
        model = core.runner.model
        assert core.card.deterministic is deterministic
        assert isinstance(model.attend, Fixed) is deterministic and (model.attend is packed_attend) is not deterministic
        assert type(model.module.lm_head) is kind
    assert type(load(tmp_path, deterministic=True).module.lm_head) is Steady


def test_a_gpu_is_refused() -> None:
    """Deterministic answers are the CPU's; another device is refused by name."""
    with pytest.raises(ModelRefused, match="--deterministic computes on a CPU, and --device is cuda"):
        attention_for(torch.device("cuda"), 256, lambda _: (9, 0), deterministic=True)
