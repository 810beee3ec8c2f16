"""The smallest pool that can do anything: four blocks of two tokens, prompts and answers of every length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.engine.workbench import Bench, ScriptedRunner, Truth, close, one_thread, scripted_answer, tiny_module

BLOCK, BLOCKS = 2, 4
ROOM = BLOCK * BLOCKS
LENGTHS = [(prompt, count) for prompt in range(1, ROOM + 1) for count in range(ROOM - prompt + 1)]


@pytest.fixture(scope="module")
def truth() -> Iterator[Truth]:
    """What the tiny model says without any cache."""
    with one_thread():
        yield Truth(tiny_module(hidden_size=16))


@pytest.mark.parametrize("step_tokens", [2, 3])
def test_every_length_cold_and_warm_is_the_slow_truth(truth: Truth, step_tokens: int) -> None:
    """Each prompt and answer that four blocks can hold has the plain logits twice, and reads all that can be read."""
    words = [7, 3, 7, 11, 5, 2, 13, 1]
    for length, count in LENGTHS:
        bench = Bench(
            module=truth.module,
            blocks=BLOCKS,
            block_tokens=BLOCK,
            step_tokens=step_tokens,
            max_num_seqs=step_tokens,
        )
        answers = [bench.ask(words[:length], max_tokens=count) for _ in range(2)]
        for request_id, answer in zip(("r0", "r1"), answers, strict=True):
            assert answer.tokens == truth.answer(words[:length], count)
            for at in range(count):
                after = truth.after(words[:length] + answer.tokens[:at])
                assert close(bench.runner.sampled_logits[request_id, length + at], after), (length, count, request_id)
        whole = (length + max(0, count - 1)) // BLOCK * BLOCK
        most = length - 1 if length < ROOM else ROOM - BLOCK  # no block is left to copy the last one's beginning into
        assert answers[1].prefilled.read == min(whole, most), (length, count)


@pytest.mark.parametrize("first", LENGTHS, ids=str)
def test_any_two_lengths_at_once_are_answered(first: tuple[int, int]) -> None:
    """Two requests of any lengths, alike or parting at any token, are answered as each would be alone."""
    for second, parts in itertools.product(LENGTHS, (0, 1, 3, ROOM)):
        bench = Bench(ScriptedRunner(BLOCK), blocks=BLOCKS, block_tokens=BLOCK, step_tokens=3, max_num_seqs=2)
        prompts = [[5] * first[0], [5] * min(parts, second[0]) + [6] * max(0, second[0] - parts)]
        counts = [first[1], second[1]]
        ids = [bench.submit(prompt, max_tokens=count) for prompt, count in zip(prompts, counts, strict=True)]
        bench.run(limit=200)
        told = [bench.answers[one].tokens for one in ids]
        assert told == [scripted_answer(prompt, count) for prompt, count in zip(prompts, counts, strict=True)], second
        assert bench.core.cache.stats().held == 0
