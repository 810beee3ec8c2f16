"""Every family that is served: cold, warm and plain logits agree, within the window, across it and beyond it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.model import PagedModel
from engine.self_test import self_test
from tests.engine.families import FAMILIES, WITH_EXPERTS, random_model
from tests.engine.workbench import VOCAB, Bench, Truth, close, one_thread, share_from

pytestmark = pytest.mark.usefixtures("slowly")

HITS = (4, 8, 32)  # cached tokens: fewer than the window of six, across it, far beyond it
CHUNKS = (3, 16, 64)  # tokens of a step: prefills in many pieces, and in one


@pytest.fixture(scope="module")
def slowly():
    """One thread: these matrices are tiny."""
    with one_thread():
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def truth(request) -> Truth:
    """Plain transformers for one family."""
    return Truth(random_model(FAMILIES[request.param]))


def text(seed: int, length: int) -> list[int]:
    """Tokens that follow no rule."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def differences(bench: Bench, truth: Truth, asked: dict[str, list[int]]) -> list[tuple[str, int]]:
    """Return the request and place of each sampled token whose logits are not those of plain transformers."""
    for name, prompt in asked.items():
        truth.learn(prompt + bench.answers[name].tokens)
    found = []
    for (name, length), logits in bench.runner.sampled_logits.items():
        tokens = (asked[name] + bench.answers[name].tokens)[:length]
        if not close(logits, truth.after(tokens)):
            found.append((name, length))
    return found


@pytest.mark.parametrize("step_tokens", CHUNKS)
def test_cold_warm_and_plain_agree(truth, step_tokens):
    """A prompt in pieces of any size, and prompts that share less and more of it than a window, are plain's."""
    bench = Bench(module=truth.module, step_tokens=step_tokens, max_num_seqs=1, blocks=128)
    whole = text(1, 41)
    prompts = [whole, whole, *(whole[:hit] + text(hit, 13) for hit in HITS)]
    asked = {}
    for prompt, read in zip(prompts, (0, 40, *HITS), strict=True):
        answer = bench.ask(prompt, max_tokens=7)
        assert answer.prefilled.read == read
        asked[f"r{len(asked)}"] = prompt
    assert len(bench.runner.sampled_logits) == 7 * len(prompts)
    assert differences(bench, truth, asked) == []


@pytest.mark.parametrize("least", [1, 64])
def test_unlike_neighbours_in_one_batch_are_plain(truth, least):
    """Sequences with other cached lengths, in one step with and without shared stretches, each say what plain says."""
    bench = Bench(module=truth.module, step_tokens=24, blocks=128)
    trunk = text(2, 24)
    asked = {bench.submit(trunk, max_tokens=2): trunk}
    bench.run()
    lengths = ((24, 3), (24, 17), (12, 9), (4, 30), (24, 1), (0, 5))  # cached tokens, new ones
    with share_from(least):
        for kept, new in lengths:
            prompt = trunk[:kept] + text(100 + kept + new, new)
            asked[bench.submit(prompt, max_tokens=8)] = prompt
        bench.run()
    read = [bench.answers[name].prefilled.read for name in asked]
    assert read == [0, 24, 24, 12, 4, 24, 0]
    assert differences(bench, truth, asked) == []


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_experts_do_not_depend_on_neighbours(family):
    """The logits of a sequence are the same alone and among five others that ask for other experts."""
    module = random_model(FAMILIES[family])
    prompt, logits = text(3, 19), []
    for neighbours in (0, 5):
        bench = Bench(module=module, blocks=128)
        name = bench.submit(prompt, max_tokens=6)
        for seed in range(neighbours):
            bench.submit(text(50 + seed, 11 + seed), max_tokens=6)
        bench.run()
        logits.append([row for (one, _), row in bench.runner.sampled_logits.items() if one == name])
    alone, among = logits
    assert len(alone) == 6
    assert all(close(one, other) for one, other in zip(alone, among, strict=True))


def test_the_self_test_passes_it(truth):
    """The check before the first request finds nothing, and leaves the window as it was."""
    config: Any = truth.module.config
    before = getattr(config, "sliding_window", None)
    self_test(PagedModel(truth.module, weights="tiny"))
    assert getattr(config, "sliding_window", None) == before
