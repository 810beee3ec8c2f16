"""A deterministic engine: the same bits of logits and the same tokens, whatever else happens in the engine.

The truth of every test is the answer alone, cold, in one step. Tiles are made small, so that short prompts have
several, and each test asserts that what it is about did occur.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from engine.attention import fixed
from engine.attention.fixed import Fixed
from engine.model import PagedModel
from engine.steady import steady
from tests.engine.families import FAMILIES, WITH_EXPERTS, random_model
from tests.engine.workbench import VOCAB, Answer, Bench, one_thread, tiny_module

BLOCK = 4
TILE = 16
SCHEDULES, PARTS = 20, 10  # 200 in all
HAPPENED = ("cancelled", "preempted", "coalesced", "evicted", "failed", "inside a block", "read", "together")


@pytest.fixture(scope="module", autouse=True)
def slowly() -> Iterator[None]:
    """One thread, and tiles of a few tokens."""
    with one_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed, "TILE", TILE)
        yield


@pytest.fixture(scope="module")
def module(slowly: None) -> Any:
    """The tiny model, with layers that are steady."""
    made = tiny_module()
    steady(made)
    return made


class Alone:
    """What an engine of its own says to one prompt, cold and in one step: remembered by prompt."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._known: dict[tuple[int, ...], tuple[list[int], list[Tensor]]] = {}

    def answer(self, prompt: list[int], count: int) -> tuple[list[int], list[Tensor]]:
        """Return tokens and the logits that each was chosen from."""
        known = self._known.get(tuple(prompt))
        if known is None or len(known[0]) < count:
            made = bench(self.module, step_tokens=512, max_num_seqs=1)
            asked = made.ask(prompt, max_tokens=max(count, 8))
            assert asked.prefilled.read == 0
            known = self._known[tuple(prompt)] = (asked.tokens, rows(made, "r0"))
        return known[0][:count], known[1][:count]


@pytest.fixture(scope="module")
def alone(module: Any) -> Alone:
    """The truth for the tiny model."""
    return Alone(module)


def bench(module: Any, **settings: Any) -> Bench:
    """An engine under the fixed attention."""
    return Bench(module=module, attend=Fixed(), **{"block_tokens": BLOCK, "blocks": 128} | settings)


def rows(made: Bench, name: str) -> list[Tensor]:
    """The logits of a request's tokens, in order."""
    found = {place: row for (one, place), row in made.runner.sampled_logits.items() if one == name}
    return [found[place] for place in sorted(found)]


def same(made: Bench, name: str, prompt: list[int], truth: Alone) -> bool:
    """Whether a request's tokens and every bit of its logits are the answer alone."""
    tokens = made.answers[name].tokens
    wanted, logits = truth.answer(prompt, len(tokens))
    got = rows(made, name)
    return tokens == wanted and len(got) == len(logits) and all(map(torch.equal, got, logits))


def text(seed: int, length: int) -> list[int]:
    """Tokens that follow no rule."""
    chance = random.Random(seed)
    return [chance.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("step_tokens", range(1, 48))
def test_chunks_of_every_size_change_no_bit(module: Any, alone: Alone, step_tokens: int) -> None:
    """A prompt of several tiles computed so many tokens at a time is the prompt computed at once."""
    prompt = text(1, 70)
    made = bench(module, step_tokens=step_tokens, max_num_seqs=1)
    answer = made.ask(prompt, max_tokens=4)
    assert made.runner.steps == -(-len(prompt) // step_tokens) + 3
    assert answer.prefilled.read == 0
    assert same(made, "r0", prompt, alone)


def test_warm_is_cold(module: Any, alone: Alone) -> None:
    """A prompt of which any number of tokens was read says to the bit what it says cold."""
    prompt = text(2, 60)
    made = bench(module)
    made.ask(prompt, max_tokens=1)
    for kept in range(1, 60):
        changed = prompt[:kept] + [(prompt[kept] + 1) % VOCAB] + text(kept, 9)
        answer: Answer = made.ask(changed, max_tokens=3)
        assert answer.prefilled.read >= kept - kept % BLOCK > 0 or kept < BLOCK
        assert same(made, f"r{kept}", changed, alone)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "fp8", "int8"])
def test_numbers_of_few_bits_change_no_bit(module: Any, dtype: str) -> None:
    """Keys and values that are stored in fewer bits are read alike cold, warm, in chunks and among neighbours."""
    trunk = text(4, 50)
    prompts = [trunk + text(n, 3 + n) for n in range(4)]
    cold = [bench(module, kv_cache_dtype=dtype, step_tokens=512) for _ in prompts]
    wanted = [one.ask(prompt, max_tokens=5).tokens for one, prompt in zip(cold, prompts, strict=True)]
    made = bench(module, kv_cache_dtype=dtype, step_tokens=16, max_num_seqs=4)
    names = [made.submit(prompt, max_tokens=5) for prompt in prompts]
    made.run()
    assert made.core.stats().read_tokens_total > 3 * 40
    assert [made.answers[name].tokens for name in names] == wanted
    for name, one in zip(names, cold, strict=True):
        assert all(map(torch.equal, rows(made, name), rows(one, "r0")))


def test_neighbours_change_no_bit(module: Any, alone: Alone) -> None:
    """Requests of all lengths, sampled in one batch, each say what they say alone."""
    made = bench(module, step_tokens=64, max_num_seqs=8)
    prompts = {made.submit(prompt, max_tokens=7): prompt for prompt in (text(10 + n, 1 + 7 * n) for n in range(8))}
    made.run()
    assert made.runner.most_rows == 8
    assert all(same(made, name, prompt, alone) for name, prompt in prompts.items())


def test_a_shared_beginning_computed_once_changes_no_bit(module: Any, alone: Alone) -> None:
    """Requests that wait for a prefix which another one is computing say what they say alone."""
    trunk = text(3, 50)
    made = bench(module, step_tokens=16, max_num_seqs=4)
    prompts = {made.submit(prompt, max_tokens=5): prompt for prompt in (trunk + text(n, 3 + n) for n in range(4))}
    made.run()
    assert made.core.stats().coalesced_tokens_total > 0
    assert all(same(made, name, prompt, alone) for name, prompt in prompts.items())


def test_preempted_and_resumed_changes_no_bit(module: Any, alone: Alone) -> None:
    """Requests that lose their room and compute it again say what they say alone."""
    made = bench(module, blocks=14, step_tokens=16, max_num_seqs=3)
    prompts = {made.submit(prompt, max_tokens=20): prompt for prompt in (text(20 + n, 13) for n in range(3))}
    made.run()
    assert made.core.stats().preemptions_total > 0
    assert all(same(made, name, prompt, alone) for name, prompt in prompts.items())


def test_evicted_between_changes_no_bit(module: Any, alone: Alone) -> None:
    """A prompt whose prefix was driven out, whole or in part, says what it said before."""
    prompt = text(4, 40)
    made = bench(module, blocks=16, max_num_seqs=1)
    first = made.ask(prompt, max_tokens=4)
    made.ask(text(5, 50), max_tokens=4)
    again = made.ask(prompt, max_tokens=4)
    assert made.core.stats().blocks_evicted_total > 0
    assert again.prefilled.read < 40 and again.tokens == first.tokens
    assert same(made, "r0", prompt, alone) and same(made, "r2", prompt, alone)


def test_scored_prompts_beside_change_no_bit(module: Any, alone: Alone) -> None:
    """A neighbour for whose prompt every position's logits are wanted changes nothing, and is not changed."""
    prompt, other = text(6, 33), text(7, 21)
    made = bench(module, max_num_seqs=2)
    prompts = {made.submit(prompt, max_tokens=4): prompt, made.submit(other, max_tokens=4, prompt_logprobs=0): other}
    made.run()
    assert made.runner.most_rows >= len(other)
    assert all(same(made, name, one, alone) for name, one in prompts.items())


class Schedule:
    """One engine under random requests, cancels, failures and evictions."""

    def __init__(self, module: Any, alone: Alone, seed: int) -> None:
        self.chance = random.Random(seed)
        self.alone = alone
        self.bench = bench(
            module,
            blocks=11,
            step_tokens=self.chance.choice([4, 7, 16, 40]),
            max_num_seqs=self.chance.choice([2, 4]),
            queue_timeout_s=1e9,
        )
        self.asked: dict[str, list[int]] = {}

    def submit(self) -> None:
        trunk = text(self.chance.randrange(3), 28)
        prompt = trunk[: self.chance.choice([3, 15, 22, 28])] + text(
            self.chance.randrange(2), self.chance.choice([0, 3])
        )
        self.asked[self.bench.submit(prompt, max_tokens=self.chance.randint(1, 8))] = prompt

    def cancel(self) -> None:
        under_way = [one for one in self.asked if not self.bench.answers[one].ended]
        if under_way:
            self.bench.abort(self.chance.choice(under_way))

    def fail(self) -> None:
        self.bench.runner.fail_at_step = self.bench.runner.steps + 1

    def run(self) -> Counter[str]:
        """Make random moves, a step after each, let everything end; return what occurred."""
        moves = [self.submit, self.cancel, self.fail, lambda: None]
        for _ in range(16):
            self.chance.choices(moves, weights=[8, 1, 0.3, 6])[0]()
            self.bench.step()
        self.bench.run()
        stats = self.bench.core.stats()
        reads = [one.prefilled.read for one in self.bench.answers.values() if one.prefilled]
        return Counter(
            {
                "cancelled": stats.requests_cancelled_total,
                "preempted": stats.preemptions_total,
                "coalesced": stats.coalesced_tokens_total,
                "evicted": stats.blocks_evicted_total,
                "failed": stats.requests_failed_total,
                "inside a block": sum(read % BLOCK != 0 for read in reads),
                "read": sum(reads),
                "together": int(self.bench.runner.most_rows > 1),
            }
        )


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_every_bit_is_the_answer_alone(module: Any, alone: Alone, part: int) -> None:
    """Under twenty random schedules each token's logits are, to the bit, those of its request alone."""
    seen: Counter[str] = Counter()
    with capture_logs():
        for number in range(SCHEDULES):
            schedule = Schedule(module, alone, seed=part * SCHEDULES + number)
            seen += schedule.run()
            for name, prompt in schedule.asked.items():
                assert same(schedule.bench, name, prompt, alone), f"{name} of schedule {number}"
    assert [event for event in HAPPENED if not seen[event]] == []


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in WITH_EXPERTS])
def test_every_family_of_plain_layers(family: str) -> None:
    """Windows, caps, norms and biases: chunked, warm and beside others, the bits are those of the answer alone."""
    made = random_model(FAMILIES[family])
    steady(made)
    truth = Alone(made)
    whole = text(8, 45)
    engine = bench(made, step_tokens=13, max_num_seqs=4)
    prompts = {engine.submit(whole, max_tokens=3): whole}
    engine.run()
    for kept in (5, 18, 44):
        prompt = whole[:kept] + text(kept, 6)
        prompts[engine.submit(prompt, max_tokens=6)] = prompt
    engine.run()
    assert sum(engine.answers[name].prefilled.read for name in prompts) >= 4 + 16 + 44
    assert all(same(engine, name, prompt, truth) for name, prompt in prompts.items())
    assert isinstance(engine.runner.model, PagedModel)


def test_a_layer_that_depends_on_row_counts_is_seen(module: Any, alone: Alone) -> None:
    """One layer that rounds otherwise for a step of three rows is enough for other bits: these tests can fail."""
    prompt = text(9, 30)
    assert alone.answer(prompt, 2)
    down = module.model.layers[0].mlp.down_proj
    right = down.product

    def uneven(rows_: Tensor) -> Tensor:
        out: Tensor = right(rows_)
        return out * (1 + 2**-20) if len(rows_) == 4 else out  # three rows, padded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(down, "product", uneven)
        made = bench(module, step_tokens=3, max_num_seqs=1)
        made.ask(prompt, max_tokens=2)
    assert not same(made, "r0", prompt, alone)


def test_the_lowest_of_equal_tokens_is_taken(module: Any) -> None:
    """Where two tokens are equally likely to the bit, a greedy answer has the one with the lower number."""
    with torch.no_grad():
        made = tiny_module()
        made.lm_head.weight[40:] = made.lm_head.weight[:21]
        steady(made)
    answer = bench(made).ask(text(10, 20), max_tokens=12)
    assert len(answer.tokens) == 12
    assert max(answer.tokens) < 40
