"""Random schedules of a real model against the slow truth: whatever happens to a request, its answer is its own.

Every block that is free is full of NaN, blocks hold two tokens, and the pool is a dozen of them, so that requests
are preempted, coalesced, evicted and expired all the time. Each part asserts that all of it occurred.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from engine.compaction import Threshold
from engine.messages import Keep, Order, Sampling
from engine.operator_messages import Purge
from tests.engine.workbench import GREEDY, VOCAB, Bench, Truth, close, one_thread, share_from, tiny_module

BLOCK = 2
BLOCKS = 12
PARTS, SCHEDULES = 10, 50  # 500 in all
MOVES = 20  # of one schedule, before it runs dry
TRUNKS = [[(trunk * 17 + at * 5) % VOCAB for at in range(10)] for trunk in range(2)]
HAPPENED = ("cancelled", "preempted", "coalesced", "expired", "evicted", "purged", "failed", "inside a block", "read")


@pytest.fixture(scope="module")
def truth() -> Iterator[Truth]:
    """What the tiny model says without any cache; whatever sequences share is attended to together."""
    with one_thread(), share_from(1):
        yield Truth(tiny_module(hidden_size=16))


class Schedule:
    """One engine under random requests, cancels, purges, failures and waits."""

    blocks = BLOCKS
    threshold = Threshold()

    def __init__(self, truth: Truth, seed: int) -> None:
        self.chance = random.Random(seed)
        self.truth = truth
        self.bench = Bench(
            module=truth.module,
            blocks=self.blocks,
            block_tokens=BLOCK,
            step_tokens=self.chance.choice([4, 6, 16]),
            max_num_seqs=self.chance.choice([2, 4]),
            queue_timeout_s=1e9,
        )
        self.bench.core.cache.threshold = self.threshold
        self.asked: dict[str, tuple[list[int], int]] = {}
        self.left: set[str] = set()

    def submit(self) -> None:
        chance = self.chance
        trunk = chance.choice(TRUNKS)
        prompt = trunk[: chance.randint(1, len(trunk))] + [chance.randint(0, 1) for _ in range(chance.randint(0, 3))]
        count = chance.randint(0, 8)
        marked = chance.randint(0, len(prompt) // BLOCK) * BLOCK
        marks = (Order(tokens=marked, ttl_s=30.0, klass="30s"),) if marked and chance.random() < 0.4 else ()
        keep = Keep(
            marks=marks,
            held_ttl_s=chance.choice([10.0, 10.0, 10.0, None]),
            held_klass="10s",
            cache=chance.random() < 0.95,
            priority=chance.choice([10, 50, 90]),
        )
        request_id = self.bench.submit(
            prompt,
            max_tokens=count,
            keep=keep,
            tenant=chance.choice("aab"),
            sampling=chance.choice([GREEDY, GREEDY, Sampling(temperature=0.9, seed=chance.randint(0, 9))]),
            prompt_logprobs=chance.choice([None] * 9 + [0]),
        )
        self.asked[request_id] = prompt, count

    def cancel(self) -> None:
        under_way = [one for one in self.asked if not self.bench.answers[one].ended and one not in self.left]
        if under_way:
            self.left.add(one := self.chance.choice(under_way))
            self.bench.abort(one)

    def fail(self) -> None:
        self.bench.runner.fail_at_step = self.bench.runner.steps + 1

    def purge(self) -> None:
        self.bench.core.handle(Purge(seq=1, tenant=self.chance.choice([None, "a", "b"])))

    def wait(self) -> None:
        self.bench.clock.tick(self.chance.choice([1.0, 4.0, 11.0]))

    def run(self) -> None:
        """Make random moves, a step after each, then let everything end; tree and pool are checked at every step."""
        moves = [self.submit, self.cancel, self.fail, self.purge, self.wait, lambda: None]
        for _ in range(MOVES):
            self.chance.choices(moves, weights=[8, 2, 0.3, 0.5, 1, 6])[0]()
            self.bench.core.scheduler.check()
            self.bench.step()
        self.bench.run()

    def verify(self) -> None:
        """Hold every token and its logits against the truth, and the accounts against each other."""
        for request_id, (prompt, count) in self.asked.items():
            answer = self.bench.answers[request_id]
            tokens = prompt + answer.tokens
            self.truth.learn(tokens)
            for end in range(len(prompt), len(tokens)):
                wanted, got = self.truth.after(tokens[:end]), self.bench.runner.sampled_logits[request_id, end]
                assert close(got, wanted), f"{request_id} at {end}"
            if answer.finished is None:
                assert request_id in self.left or (answer.refused is not None and answer.refused.kind == "EngineError")
                continue
            assert len(answer.tokens) == count
            facts = answer.prefilled
            assert facts.read + facts.write + facts.uncached == facts.prompt == len(prompt)
            assert min(facts.write, facts.uncached) >= 0 <= facts.read < facts.prompt
            assert sum(missed.tokens for missed in facts.missed) == facts.prompt - facts.read
        stats = self.bench.core.stats()
        assert stats.blocks_held == 0 and stats.blocks_free + stats.blocks_cached == self.blocks

    def happened(self) -> Counter[str]:
        stats = self.bench.core.stats()
        reads = [one.prefilled.read for one in self.bench.answers.values() if one.prefilled]
        return Counter(
            {
                "cancelled": stats.requests_cancelled_total,
                "preempted": stats.preemptions_total,
                "coalesced": stats.coalesced_tokens_total,
                "expired": stats.blocks_expired_total,
                "evicted": stats.blocks_evicted_total,
                "purged": stats.purged_total,
                "failed": stats.requests_failed_total,
                "inside a block": sum(read % BLOCK != 0 for read in reads),
                "read": sum(reads),
                "compacted": stats.compacted_blocks_total,
            }
        )


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_every_answer_is_the_slow_truth(truth: Truth, part: int) -> None:
    """Under fifty random schedules each token's logits are those of a plain forward over its whole sequence."""
    seen: Counter[str] = Counter()
    with capture_logs():
        for number in range(SCHEDULES):
            schedule = Schedule(truth, seed=part * SCHEDULES + number)
            schedule.run()
            schedule.verify()
            seen += schedule.happened()
    assert [event for event in HAPPENED if not seen[event]] == []
