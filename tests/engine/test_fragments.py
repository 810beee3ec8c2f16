"""Answers are right wherever their blocks lie: scattered by ten thousand allocations, isolated, in falling order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from engine.block_pool import BlockId
from engine.hold import Hold
from engine.messages import Keep
from engine.request import Request
from prefix_store.chain import Namespace
from tests.engine.workbench import (
    GREEDY,
    VOCAB,
    Bench,
    ScriptedRunner,
    Truth,
    close,
    one_thread,
    share_from,
    tiny_module,
)

BLOCK = 4
ALLOCATIONS, ROUNDS = 10_000, 50
ELSEWHERE = Namespace(
    tenant="ballast", model="tiny", weights="tiny", rendering="", kv_dtype="float32", block_tokens=BLOCK, partition=""
)


@pytest.fixture(scope="module")
def truth() -> Iterator[Truth]:
    """What the tiny model says without any cache; whatever sequences share is attended to together."""
    with one_thread(), share_from(1):
        yield Truth(tiny_module())


class Ballast:
    """Requests that keep nothing and only hold blocks, so that what others get is scattered."""

    def __init__(self, bench: Bench) -> None:
        self._cache, self._clock = bench.core.cache, bench.clock
        self.holds: list[Hold] = []

    def take(self, blocks: int) -> Hold:
        """Hold as many blocks, wherever they are."""
        request = Request(
            id="ballast",
            tokens=b"",
            namespace=ELSEWHERE,
            max_tokens=0,
            sampling=GREEDY,
            stop_ids=frozenset(),
            keep=Keep(cache=False),
            prompt_logprobs=None,
            confined=False,
            seed=0,
        )
        hold = self._cache.admit(request, b"", since=self._clock(), now=self._clock())
        self._cache.room(hold, blocks * BLOCK, now=self._clock())
        self.holds.append(hold)
        return hold

    def drop(self, hold: Hold) -> None:
        """Give its blocks back."""
        self.holds.remove(hold)
        self._cache.release(hold, bytearray(), 0, now=self._clock())


def extents(bench: Bench) -> list[int]:
    """Of each running sequence, in how many pieces its blocks lie."""
    return [len(one.hold.table.extents(one.hold.table.tokens)) for one in bench.core.scheduler._running if one.hold]


def is_true(bench: Bench, truth: Truth, request_id: str, prompt: list[int]) -> bool:
    """Whether every token's logits are those of a plain forward over the whole sequence."""
    tokens = prompt + bench.answers[request_id].tokens
    truth.learn(tokens)
    places = range(len(prompt), len(tokens))
    return all(close(bench.runner.sampled_logits[request_id, end], truth.after(tokens[:end])) for end in places)


def test_after_ten_thousand_allocations_answers_are_right(truth: Truth) -> None:
    """Among blocks that random holders take and give back, cold and warm logits stay those of the plain forward."""
    bench = Bench(module=truth.module, blocks=96, block_tokens=BLOCK, step_tokens=16)
    ballast, chance, most = Ballast(bench), random.Random(8), 0
    prompts = [[chance.randrange(VOCAB) for _ in range(chance.randint(9, 40))] for _ in range(6)]
    for round_ in range(ROUNDS):
        taken = 0
        while taken < ALLOCATIONS // ROUNDS:
            if ballast.holds and (len(ballast.holds) > 60 or chance.random() < 0.45):
                ballast.drop(chance.choice(ballast.holds))
            if bench.core.cache.obtainable > 30:
                ballast.take(chance.choice([1, 1, 1, 2, 3]))
                taken += 1
        bench.core.scheduler.check()
        ids = {bench.submit(prompt, max_tokens=4): prompt for prompt in chance.sample(prompts, 2)}
        while bench.core.busy:
            bench.step()
            most = max([most, *extents(bench)])
        assert [one for one, prompt in ids.items() if not is_true(bench, truth, one, prompt)] == [], f"round {round_}"
    assert most >= 6
    stats = bench.core.stats()
    assert sum(stats.extents) == ALLOCATIONS + 2 * ROUNDS - len(ballast.holds) + stats.preemptions_total
    assert stats.read_tokens_total > 0 and stats.blocks_evicted_total > 0


ORDERS: dict[str, Callable[[int], list[int]]] = {
    "rising": lambda blocks: list(range(blocks)),
    "falling, every block isolated": lambda blocks: list(range(2 * blocks - 1, 0, -2)),
    "falling": lambda blocks: list(range(blocks - 1, -1, -1)),
    "at random": lambda blocks: random.Random(3).sample(range(2 * blocks), blocks),
}


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_may_lie_in_any_order(truth: Truth, order: str) -> None:
    """Laid out block by block as told, a prompt and its answer have the plain logits, cold, warm and beside others."""
    prompt = [(at * 7 + 3) % VOCAB for at in range(34)]
    wanted = ORDERS[order](-(-(len(prompt) + 6) // BLOCK))
    bench = Bench(module=truth.module, blocks=64, block_tokens=BLOCK, step_tokens=BLOCK, max_num_seqs=4)
    ballast = Ballast(bench)
    by_block = {hold.table[:][0]: hold for hold in [ballast.take(1) for _ in range(64)]}
    cold, left = bench.submit(prompt, max_tokens=6), iter(wanted)
    laid: list[BlockId] = []
    while bench.core.busy:
        if not bench.core.cache.pool.free and (block := next(left, None)) is not None:
            ballast.drop(by_block.pop(BlockId(block)))  # whatever a pool prefers, no other block is free
        bench.step()
        laid = next((one.hold.table[:] for one in bench.core.scheduler._running if one.hold), laid)
    assert laid == wanted
    assert is_true(bench, truth, cold, prompt)
    for hold in list(ballast.holds):
        ballast.drop(hold)
    others = {bench.submit([*prompt[:end], 1, 2], max_tokens=3): [*prompt[:end], 1, 2] for end in (9, 21, 34)}
    bench.run()
    assert [one for one, tokens in others.items() if not is_true(bench, truth, one, tokens)] == []
    assert [bench.answers[one].prefilled.read for one in others] == [9, 21, 34]


def test_extents_are_counted_when_a_sequence_ends() -> None:
    """In a fresh pool a sequence lies in one piece; among isolated blocks, in as many as it has blocks."""
    bench = Bench(ScriptedRunner(BLOCK), blocks=17, block_tokens=BLOCK)
    bench.ask([1] * 12, max_tokens=1, keep=Keep(cache=False))
    assert (bench.core.stats().extents, bench.core.stats().extents_total) == ((1, *[0] * 9), 1)
    ballast = Ballast(bench)
    for hold in [ballast.take(1) for _ in range(17)]:
        if hold.table[:][0] % 2:
            ballast.drop(hold)
    before = bench.core.stats()
    bench.ask([1] * 24, max_tokens=1, keep=Keep(cache=False))
    after = bench.core.stats()
    assert [now - then for now, then in zip(after.extents, before.extents, strict=True)] == [0, 0, 0, 1, *[0] * 6]
    assert after.extents_total - before.extents_total == 6
