"""What is asked of the prompt alone: pre-warming it, and how likely its tokens were."""

from __future__ import annotations

import math

import pytest
import torch

from engine.messages import Keep, Order
from tests.engine.workbench import VOCAB, Bench, ScriptedRunner, plain_answer, scripted_answer, tiny_module

B = 4  # block_tokens of the bench


@pytest.fixture(scope="module")
def module():
    """One tiny model for the whole file."""
    return tiny_module()


@pytest.fixture
def bench(module):
    """A fresh engine with NaN in every slot that nobody has written."""
    return Bench(module=module, block_tokens=B)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Made-up token ids."""
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def plain_scores(module, tokens: list[int]) -> list[float]:
    """The slow truth: each token's log-probability after the ones before it, from the model's own eager forward."""
    module.set_attn_implementation("eager")
    logits = module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].double().log_softmax(-1)
    module.set_attn_implementation("keepwarm_paged")
    return [logits[at, token].item() for at, token in enumerate(tokens[1:])]


def agrees(told, module, tokens: list[int]) -> bool:
    """Whether every prompt token is told within 1e-4, and nothing of the first."""
    first, *rest = told
    truth = plain_scores(module, tokens)
    near = all(abs(entry.logprob - value) < 1e-4 for entry, value in zip(rest, truth, strict=True))
    return first is None and near and [entry.token for entry in rest] == tokens[1:]


@pytest.mark.parametrize("length", [1, B - 1, B, B + 1, 4 * B + 2])
def test_a_prompt_is_warmed_and_nothing_is_answered(bench, module, length):
    """With max_tokens 0 the prompt is computed, published and told of; the next reads all of it but one token."""
    tokens = prompt(length)
    cold, again = (bench.ask(tokens, max_tokens=0) for _ in range(2))
    for answer, read in ((cold, 0), (again, length - 1)):
        assert answer.tokens == [] and answer.refused is None
        assert (answer.prefilled.prompt, answer.prefilled.read) == (length, read)
        assert sum(missed.tokens for missed in answer.prefilled.missed) == length - read
        assert (answer.finished.reason, answer.finished.generated) == ("length", 0)
        assert answer.finished.projected == length - read
    reader = bench.ask(tokens, max_tokens=3)
    assert reader.prefilled.read == length - 1
    assert reader.tokens == plain_answer(module, tokens, 3)


def test_a_warmed_mark_is_promised_and_written(bench):
    """A pre-warm settles its marks as any request: promised, counted as a write once, alive until their deadline."""
    keep = Keep(marks=(Order(tokens=2 * B, ttl_s=3600.0, klass="1h"),), write_all=False)
    first, second = (bench.ask(prompt(3 * B), max_tokens=0, keep=keep).prefilled for _ in range(2))
    assert [(mark.kept, mark.left_s) for mark in (*first.marks, *second.marks)] == [("promised", 3600.0)] * 2
    assert (first.write, second.write) == (2 * B, 0)
    bench.clock.tick(3599.0)
    assert bench.ask(prompt(3 * B), max_tokens=1).prefilled.read == 2 * B


def test_a_prompt_as_long_as_the_window_can_be_warmed():
    """Nothing is answered, so nothing is set aside for an answer, in chunks and in a pool that it fills."""
    bench = Bench(ScriptedRunner(B), blocks=8, block_tokens=B, step_tokens=8)
    running = bench.submit([1, 2, 3], max_tokens=4)
    bench.step()
    assert bench.ask([5] * 32, max_tokens=0).finished.projected == 32
    assert bench.answers[running].tokens == scripted_answer([1, 2, 3], 4)
    assert bench.ask([5] * 33, max_tokens=0).refused.kind == "PromptTooLong"


def test_a_warming_that_is_preempted_or_left_loses_nothing():
    """Beside answers that need its blocks it ends all the same, and a client that leaves frees them."""
    bench = Bench(ScriptedRunner(2), blocks=10, block_tokens=2, step_tokens=4, max_num_seqs=3)
    older = bench.submit([0] * 6, max_tokens=10)
    bench.step()
    warming, left = bench.submit([1] * 14, max_tokens=0), bench.submit([2] * 8, max_tokens=0)
    bench.step()
    bench.abort(left)
    bench.run()
    assert bench.answers[older].tokens == scripted_answer([0] * 6, 10)
    assert bench.answers[warming].finished.generated == 0
    assert bench.core.stats().blocks_held == 0


@pytest.mark.parametrize("length", [1, 2, B - 1, B, B + 1, 4 * B + 2])
def test_prompt_tokens_are_scored_on_a_cached_prefix(bench, module, length):
    """Warmed first and asked twice, each prompt token is told as in a cold run; nothing is read."""
    tokens = prompt(length)
    bench.ask(tokens)
    cold = Bench(module=module, block_tokens=B).ask(tokens, max_tokens=1, prompt_logprobs=1)
    for _ in range(2):
        answer = bench.ask(tokens, max_tokens=1, prompt_logprobs=1)
        assert agrees(answer.prefilled.logprobs, module, tokens)
        for entry, other in zip(answer.prefilled.logprobs[1:], cold.prefilled.logprobs[1:], strict=True):
            assert math.isfinite(entry.logprob) and abs(entry.logprob - other.logprob) < 1e-4
            assert len(entry.top) == 1 and entry.top[0][1] >= entry.logprob
        assert answer.tokens == plain_answer(module, tokens, 1)
        assert answer.prefilled.read == 0
        assert [(missed.fate, missed.tokens) for missed in answer.prefilled.missed] == [("no_cache", length)]


def test_scored_prompts_are_published_as_any_other(bench):
    """What was computed to be scored is read by the next request."""
    bench.ask(prompt(3 * B), max_tokens=1, prompt_logprobs=0)
    assert bench.ask(prompt(3 * B), max_tokens=1).prefilled.read == 3 * B - 1


def test_a_prompt_is_scored_in_slices_beside_others(module):
    """No step scores more rows than allowed, over all prompts, and a neighbour gets a token in every step."""
    bench = Bench(module=module, block_tokens=B)
    bench.core.scheduler.scored_rows = 5
    neighbour = bench.submit(prompt(5, seed=9), max_tokens=12)
    bench.step()
    texts = [prompt(4 * B + 2, seed=1), prompt(3 * B, seed=2)]
    ids = [bench.submit(tokens, max_tokens=0, prompt_logprobs=2) for tokens in texts]
    for step in range(2, 8):
        bench.step()
        assert len(bench.answers[neighbour].tokens) == step
    bench.run()
    assert all(
        agrees(bench.answers[i].prefilled.logprobs, module, tokens) for i, tokens in zip(ids, texts, strict=True)
    )
    assert bench.answers[neighbour].tokens == plain_answer(module, prompt(5, seed=9), 12)
    assert bench.runner.most_rows == 5 + 1


def test_scores_survive_preemption(module):
    """In a pool that makes them give way, scored prompts are told whole and their usage stays."""
    bench = Bench(module=module, blocks=10, block_tokens=B, step_tokens=6, max_num_seqs=4)
    older = bench.submit(prompt(B), max_tokens=7 * B)
    bench.step()
    texts = [prompt(4 * B, seed=seed) for seed in (1, 2, 3)]
    ids = [bench.submit(tokens, max_tokens=2 * B, prompt_logprobs=0) for tokens in texts]
    bench.run()
    assert bench.core.stats().preemptions_total > 0
    assert bench.answers[older].tokens == plain_answer(module, prompt(B), 7 * B)
    for request_id, tokens in zip(ids, texts, strict=True):
        answer = bench.answers[request_id]
        assert agrees(answer.prefilled.logprobs, module, tokens)
        assert answer.tokens == plain_answer(module, tokens, 2 * B)
        assert answer.prefilled.read == 0
