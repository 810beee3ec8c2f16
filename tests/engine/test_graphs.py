"""Recorded decodes: what is replayed is what the plain forward says, with recording done by computing again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.varlen import Varlen
from engine.graphs import DecodeGraphs, sizes
from engine.model import PAGED, PagedModel, register
from tests.engine import paged_kernel
from tests.engine.families import FAMILIES, random_model
from tests.engine.workbench import Bench, RecordingRunner, plain_answer, share_from, tiny_module

BLOCKS, PAGE = 64, 4
FLOATS = frozenset({torch.float32})


class Again:
    """Stands for a GPU's graphs: a replay computes again, from what lies in the same buffers then."""

    def __init__(self) -> None:
        self.replayed = 0

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        output = compute()

        def replay() -> None:
            self.replayed += 1
            output.copy_(compute())

        return replay, output


class Wrong(Again):
    """A recording that is off by one."""

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        return super().record(lambda: compute().roll(1))


def engine(module: Any, again: Again) -> Bench:
    """An engine whose decodes are recorded for up to eight sequences."""
    register()
    module.set_attn_implementation(PAGED)
    attend = Varlen(PAGE, kernel=paged_kernel.varlen_attn, dtypes=FLOATS)
    model = PagedModel(module, weights="tiny", attend=attend)
    runner = RecordingRunner(model, blocks=BLOCKS, block_tokens=PAGE, spare=1)
    runner.graphs = DecodeGraphs.record(
        model, runner.kv, attend, spare=BLOCKS, most_sequences=8, most_tokens=BLOCKS * PAGE, recorder=again
    )
    return Bench(runner, blocks=BLOCKS, block_tokens=PAGE, step_tokens=64)


@pytest.fixture(autouse=True)
def never_shared() -> Iterator[None]:
    """Decodes of these tests attend on their own, unless one says otherwise."""
    with share_from(1_000):
        yield


@pytest.mark.parametrize("family", ["llama", "qwen3 moe", "gemma3", "gpt-oss"])
def test_replayed_decodes_are_the_models(family: str) -> None:
    """Three sequences of different lengths, filled up to four rows, answer as the plain model does."""
    module, again = random_model(FAMILIES[family]), Again()
    prompts = [list(range(n, 2 * n)) for n in (3, 9, 22)]
    expected = [plain_answer(module, prompt, 9 - at) for at, prompt in enumerate(prompts)]
    bench = engine(module, again)
    checks = again.replayed
    asked = [bench.submit(prompt, max_tokens=9 - at) for at, prompt in enumerate(prompts)]
    bench.run()
    assert [bench.answers[one].tokens for one in asked] == expected
    assert again.replayed - checks == 8  # every step but the first, which has the prompts in it


def test_what_cannot_be_replayed_is_computed() -> None:
    """Prefills beside decodes, and decodes that share a beginning, go the ordinary way, and answers stay right."""
    module, again = tiny_module(), Again()
    trunk = list(range(40))
    bench = engine(module, again)
    checks = again.replayed
    with share_from(1):
        assert bench.ask(trunk, max_tokens=1).tokens == plain_answer(module, trunk, 1)
        both = [bench.submit([*trunk, end], max_tokens=5) for end in (1, 2)]
        bench.run()
    assert [bench.answers[one].tokens for one in both] == [plain_answer(module, [*trunk, end], 5) for end in (1, 2)]
    assert again.replayed == checks


def test_a_token_that_is_scored_is_not_replayed() -> None:
    """Prompt log-probabilities want other rows of logits than decodes do: a prompt read token by token says so."""
    again, module = Again(), tiny_module()
    expected = plain_answer(module, [1, 2, 3, 4], 3)
    bench = engine(module, again)
    bench.core.scheduler.scored_rows = 1
    checks = again.replayed
    assert bench.ask([1, 2, 3, 4], max_tokens=3, prompt_logprobs=0).tokens == expected
    assert bench.runner.steps == 3 + 3
    assert again.replayed - checks == 3


def test_a_recording_that_says_something_else_is_not_used() -> None:
    """It is checked against the plain forward before it is trusted."""
    module = tiny_module()
    expected = plain_answer(module, [1, 2, 3, 4], 6)
    bench = engine(module, Wrong())
    assert bench.runner.graphs is None
    assert bench.ask([1, 2, 3, 4], max_tokens=6).tokens == expected


def test_attention_that_the_kernel_lacks_is_not_recorded() -> None:
    """The reference reads the rows themselves, which no recording can follow."""
    assert engine(random_model(FAMILIES["gemma2"]), Again()).runner.graphs is None


@pytest.mark.parametrize(("most", "recorded"), [(1, [1]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_sizes_that_are_recorded(most: int, recorded: list[int]) -> None:
    """Powers of two, and the largest batch there can be."""
    assert list(sizes(most)) == recorded
