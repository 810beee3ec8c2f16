"""Scattered prefixes: copied together where that is earned back, and right whether they are or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from structlog.testing import capture_logs

from engine.block_pool import BlockId
from engine.block_table import BlockTable
from engine.compaction import Threshold, copies, worth
from engine.hold import Copy
from engine.operator_messages import Purge
from tests.engine.test_truth import Schedule
from tests.engine.workbench import Bench, ScriptedRunner, Truth, one_thread, scripted_answer, share_from, tiny_module

BLOCK = 4
PROMPT = list(range(30)) * 6  # 45 blocks
ODD = [BlockId(block) for block in range(1, 200, 2)]


@pytest.fixture
def bench() -> Bench:
    """An engine that has answered the prompt once, whose blocks were then scattered."""
    bench = Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, blocks=400, step_tokens=64, max_model_len=400)
    run(bench, PROMPT, max_tokens=1)
    cache, now = bench.core.cache, bench.clock()
    (namespace,) = cache.tree.roots
    lease = cache.tree.lease(namespace, np.array(PROMPT, dtype="<u4").tobytes(), now)
    taken = cache.pool.take(2 * len(lease.payload))
    for old, new in zip(lease.payload, taken[::2], strict=True):
        for at in range(BLOCK):
            bench.runner.slots[new * BLOCK + at] = bench.runner.slots[old * BLOCK + at]
    cache.pool.give(cache.tree.relocate(lease, taken[::2]) + taken[1::2])
    cache.pool.give(cache.tree.release(lease, now))
    bench.core.scheduler.check()
    return bench


def run(bench: Bench, prompt: list[int], **more: int) -> tuple[list[int], int]:
    """Ask, and return the answer with the tokens read; the answer is the script's."""
    answer = bench.ask(prompt, **more)
    assert answer.tokens == scripted_answer(prompt, len(answer.tokens))
    return answer.tokens, answer.prefilled.read


def compacted(bench: Bench) -> int:
    """Count the blocks that were moved."""
    return bench.core.stats().compacted_blocks_total


def test_a_scattered_prefix_is_copied_together_once(bench: Bench) -> None:
    """Who reads it next with room to spare copies its 45 blocks into one run; who reads it then finds them so."""
    assert run(bench, [*PROMPT, 1, 2], max_tokens=30) == (scripted_answer([*PROMPT, 1, 2], 30), 180)
    assert compacted(bench) == 45
    assert run(bench, [*PROMPT, 3, 4], max_tokens=30)[1] == 180
    assert compacted(bench) == 45
    assert bench.core.stats().extents[:2] == (2, 1)  # the first and the second in one; the third goes on elsewhere
    bench.core.scheduler.check()


def test_nothing_is_copied_for_a_short_answer(bench: Bench) -> None:
    """A copy that would not be earned back is left out."""
    run(bench, [*PROMPT, 3, 4], max_tokens=5)
    assert compacted(bench) == 0


def test_while_another_reads_it_a_prefix_stays_where_it_is(bench: Bench) -> None:
    """Of two readers neither moves blocks under the other; the run that was taken for it is free again."""
    both = [bench.submit([*PROMPT, end], max_tokens=30) for end in (1, 2)]
    bench.run()
    assert compacted(bench) == 0
    assert [bench.answers[one].tokens for one in both] == [scripted_answer([*PROMPT, end], 30) for end in (1, 2)]
    bench.core.scheduler.check()
    assert bench.core.stats().blocks_held == 0


def test_a_step_that_fails_leaves_the_prefix_where_it_was(bench: Bench) -> None:
    """What a failed step may have copied is not read, and no block is lost."""
    right, bench.runner.run = bench.runner.run, _broken
    with capture_logs():
        failed = bench.ask([*PROMPT, 1], max_tokens=30)
    bench.runner.run = right
    assert failed.refused is not None and failed.refused.kind == "EngineError"
    bench.core.scheduler.check()
    assert run(bench, [*PROMPT, 2], max_tokens=30)[1] == 180
    assert compacted(bench) == 45


def _broken(chunks: object) -> list[object]:
    raise RuntimeError("out of luck")


def test_a_purge_between_plan_and_copy_moves_nothing(bench: Bench) -> None:
    """A path that was purged stays with those who read it, and its run goes back."""
    request_id = bench.submit([*PROMPT, 1], max_tokens=30)
    chunks = bench.core.scheduler.plan(now=bench.clock())
    bench.core.handle(Purge(seq=1))
    outcomes = bench.runner.run(chunks)
    bench.core.scheduler.absorb(chunks, outcomes, now=bench.clock())
    bench.core.scheduler.check()
    assert compacted(bench) == 0
    bench.abort(request_id)
    assert bench.core.stats().blocks_held == 0


@pytest.mark.parametrize(
    ("pieces", "work", "longest", "pays"),
    [(33, 20, 38, True), (32, 20, 99, False), (33, 19, 99, False), (33, 20, 37, False)],
)
def test_when_a_copy_pays(pieces: int, work: int, longest: int, pays: bool) -> None:
    """Above 32 extents, from 20 tokens of work on, and where a free run holds it all."""
    table = BlockTable(BLOCK, ODD[:pieces])
    assert worth(table, Threshold(), work=work, room=longest) is pays


def test_one_copy_for_each_extent() -> None:
    """Blocks that lie together are copied together, in token order."""
    table = BlockTable(BLOCK, [BlockId(block) for block in (7, 8, 3, 1, 2)])
    run_of_blocks = [BlockId(block) for block in range(10, 15)]
    assert copies(table, run_of_blocks) == (
        Copy(BlockId(7), BlockId(10), 2 * BLOCK),
        Copy(BlockId(3), BlockId(12), BLOCK),
        Copy(BlockId(1), BlockId(13), 2 * BLOCK),
    )


class Roomy(Schedule):
    """A pool with room to spare, in which everything that lies in two places is copied together."""

    blocks = 64
    threshold = Threshold(extents=1, work=0)


@pytest.fixture(scope="module")
def truth() -> Iterator[Truth]:
    """What the tiny model says without any cache."""
    with one_thread(), share_from(1):
        yield Truth(tiny_module(hidden_size=16))


def test_under_random_schedules_what_was_moved_is_the_slow_truth(truth: Truth) -> None:
    """Under fifty random schedules each token's logits are those of a plain forward, and blocks were moved."""
    seen: Counter[str] = Counter()
    with capture_logs():
        for seed in range(50):
            schedule = Roomy(truth, seed=seed)
            schedule.run()
            schedule.verify()
            seen += schedule.happened()
    assert [event for event in ("compacted", "cancelled", "failed", "purged", "read") if not seen[event]] == []
