"""The default model served deterministically: its own matrices pass, and its answers are the same to the bit."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from engine.attention.fixed import TILE, Fixed
from engine.loading import load
from engine.model import PagedModel
from engine.steady_test import steady_test
from engine.weights import resolve_in_subprocess
from gateway.config import cache_dir, read_settings
from tests.engine.workbench import Bench, RecordingRunner

pytestmark = pytest.mark.timeout(900)

NEW = 6  # tokens of each answer


@pytest.fixture(scope="module")
def model() -> PagedModel:
    """The default model with steady layers."""
    settings = read_settings({}, os.environ)
    found = resolve_in_subprocess("smollm2-135m", cache_dir(settings, os.environ), lambda *_: None)
    return load(Path(found.path), attend=Fixed(), deterministic=True)


def bench(model: PagedModel, step_tokens: int) -> Bench:
    """An engine on the real weights."""
    runner = RecordingRunner(model, blocks=96, block_tokens=16)
    return Bench(
        runner,
        blocks=96,
        block_tokens=16,
        step_tokens=step_tokens,
        vocab_size=model.config.vocab_size,
    )


def logits(made: Bench, name: str) -> torch.Tensor:
    """What the tokens of a request were chosen from, in order: [tokens, vocab]."""
    found = {place: row for (one, place), row in made.runner.sampled_logits.items() if one == name}
    return torch.stack([found[place] for place in sorted(found)])


def test_the_default_model_says_the_same_to_the_bit(model: PagedModel) -> None:
    """Over two tiles, cold at once, cold in chunks, warm and beside three others: one set of tokens, one of logits."""
    chance = random.Random(1)
    prompt, *others = ([chance.randrange(1000, 40_000) for _ in range(count)] for count in (TILE + 37, 90, 33, 7))
    made = bench(model, 512)
    alone = made.ask(prompt, max_tokens=NEW)
    warm = made.ask(prompt, max_tokens=NEW)
    assert (alone.prefilled.read, warm.prefilled.read) == (0, len(prompt) - 1)
    busy = bench(model, 70)
    names = [busy.submit(one, max_tokens=NEW) for one in (*others, prompt)]
    busy.run()
    assert busy.runner.steps > len(prompt) // 70 + NEW and busy.runner.most_rows > 1
    assert alone.tokens == warm.tokens == busy.answers[names[-1]].tokens
    wanted = logits(made, "r0")
    assert wanted.shape == (NEW, model.config.vocab_size)
    assert torch.equal(logits(made, "r1"), wanted)
    assert torch.equal(logits(busy, names[-1]), wanted)


def test_the_default_model_passes_the_test_before_the_first_request(model: PagedModel) -> None:
    """Every layer's keys and values, and the logits, are the same to the bit in parts as at once."""
    steady_test(model)
