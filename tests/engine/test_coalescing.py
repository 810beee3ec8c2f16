"""One prefill for all who need it: leaders, those who stand back, and who takes over."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Keep, Sampling
from engine.operator_messages import Purge
from tests.engine.workbench import Bench, ScriptedRunner, close, scripted_answer, tiny_module

BLOCK = 4
PREFIX = [i % 50 for i in range(40)]


def busy(step_tokens: int = 8, **extra: Any) -> Bench:
    """An engine of which each step computes a small part of the prefix."""
    return Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, step_tokens=step_tokens, blocks=128, **extra)


def computed(bench: Bench) -> int:
    """Prompt and answer tokens that were really projected."""
    return bench.core.stats().projected_tokens_total


def test_eight_equal_prefixes_are_computed_once() -> None:
    """Of eight requests over one new prefix one computes it, and the others read all but what is theirs."""
    bench = busy()
    ids = [bench.submit([*PREFIX, n, 51, 52], max_tokens=2) for n in range(8)]
    bench.run()
    facts = [bench.answers[one].prefilled for one in ids]
    assert [one.read for one in facts if one] == [0] + [40] * 7
    assert [one.write + one.read + one.uncached for one in facts if one] == [43] * 8
    assert computed(bench) == 40 + 8 * (3 + 1)
    assert bench.core.stats().coalesced_tokens_total == 7 * 40
    for n, one in enumerate(ids):
        assert bench.answers[one].tokens == scripted_answer([*PREFIX, n, 51, 52], 2)


def test_who_stands_back_holds_nothing() -> None:
    """While the leader computes, the others hold no slot and no blocks."""
    bench = busy()
    for n in range(4):
        bench.submit([*PREFIX, n])
    bench.step()
    stats = bench.core.stats()
    assert (stats.running, stats.waiting) == (1, 3)
    assert stats.blocks_held == 2


@pytest.mark.parametrize("after", range(6))
def test_a_leader_that_is_cancelled_leaves_its_work_to_the_next(after: int) -> None:
    """At whatever chunk the leader goes, the next computes only what is missing, and every answer is right."""
    bench = busy()
    ids = [bench.submit([*PREFIX, n], max_tokens=2) for n in range(3)]
    for _ in range(after):
        bench.step()
    bench.abort(ids[0])
    bench.run()
    second = bench.answers[ids[1]].prefilled
    assert second is not None
    assert second.read == min(40, 8 * after)
    for n, one in enumerate(ids[1:], 1):
        assert bench.answers[one].tokens == scripted_answer([*PREFIX, n], 2)


def test_a_leader_that_fails_is_followed() -> None:
    """A step that goes wrong takes the leader only; who stood back leads, and is right."""
    bench = Bench(module=tiny_module(), block_tokens=BLOCK, step_tokens=8, blocks=128)
    bench.runner.fail_at_step = 3
    ids = [bench.submit([*PREFIX, n], max_tokens=2) for n in range(2)]
    bench.run()
    assert bench.answers[ids[0]].refused is not None
    alone = Bench(module=tiny_module(), block_tokens=BLOCK, blocks=128)
    other = alone.submit([*PREFIX, 1], max_tokens=2)
    alone.run()
    assert bench.answers[ids[1]].tokens == alone.answers[other].tokens
    assert close(bench.first_logits(ids[1]), alone.first_logits(other))


def test_a_request_that_asked_for_no_caching_never_leads_and_never_waits() -> None:
    """It computes its own prompt at once; the one after it leads for those that may share."""
    bench = busy(step_tokens=64)
    private = bench.submit([*PREFIX, 1], keep=Keep(cache=False))
    shared = [bench.submit([*PREFIX, n]) for n in (2, 3)]
    bench.step()
    sequences = bench.core.scheduler.running
    assert sequences == 2
    bench.run()
    reads = [bench.answers[one].prefilled.read for one in (private, *shared) if bench.answers[one].prefilled]
    assert reads == [0, 0, 40]


def test_tenants_never_wait_for_each_other() -> None:
    """The same prompt of two tenants is computed twice, side by side."""
    bench = busy(step_tokens=64)
    for tenant in ("a", "b"):
        bench.submit([*PREFIX, 1], tenant=tenant)
    bench.step()
    assert bench.core.scheduler.running == 2
    bench.run()
    assert bench.core.stats().coalesced_tokens_total == 0


def test_who_stands_back_keeps_its_own_deadline() -> None:
    """Waiting for a leader is waiting: too long of it is told."""
    bench = busy(queue_timeout_s=5)
    leader, late = bench.submit([*PREFIX, 1]), bench.submit([*PREFIX, 2])
    bench.step()
    bench.clock.tick(5)
    bench.step()
    refusal = bench.answers[late].refused
    assert refusal is not None and refusal.kind == "QueueTimeout"
    bench.run()
    assert bench.answers[leader].refused is None


def test_others_are_served_meanwhile() -> None:
    """A request that needs nothing of the leader's is not held up by those who stand back before it."""
    bench = busy(step_tokens=16)
    for n in range(3):
        bench.submit([*PREFIX, n])
    other = bench.submit([9, 8, 7], max_tokens=1)
    bench.step()
    assert bench.answers[other].ended


def test_a_crowd_that_stands_back_hides_nobody() -> None:
    """However many of a tenant wait for one leader, its request that needs nothing of it is served in the next step."""
    bench = busy(step_tokens=16)
    for n in range(40):
        bench.submit([*PREFIX, n])
    bench.step()
    other = bench.submit([9, 8, 7], max_tokens=1)
    bench.step()
    assert bench.answers[other].ended
    bench.run()


def test_a_preempted_leader_is_taken_over() -> None:
    """When an older answer takes a leader's blocks, somebody goes on at once, and all of them say what is right."""
    bench = Bench(ScriptedRunner(2), block_tokens=2, blocks=12, step_tokens=4, max_num_seqs=4)
    old = bench.submit([1, 2, 3, 4], max_tokens=18)
    bench.step()
    ids = [bench.submit([5] * 13 + [n], max_tokens=2) for n in range(3)]
    while not bench.core.stats().preemptions_total:
        assert not any(bench.answers[one].ended for one in ids)
        bench.step()
    bench.run()
    assert bench.answers[old].tokens == scripted_answer([1, 2, 3, 4], 18)
    for n, one in enumerate(ids):
        assert bench.answers[one].tokens == scripted_answer([5] * 13 + [n], 2)
        assert bench.answers[one].prefilled.read == (0 if n == 0 else 13)


@pytest.mark.parametrize("after", range(5))
def test_nobody_waits_for_what_was_purged(after: int) -> None:
    """From a purge on, at whatever chunk, a leader of before leads no more, and a new one computes what all read."""
    bench = busy(max_num_seqs=2)
    ids = [bench.submit([*PREFIX, n], max_tokens=2, tenant="a") for n in range(4)]
    for _ in range(after):
        bench.step()
    bench.core.handle(Purge(seq=1, tenant="a"))
    bench.run()
    for n, one in enumerate(ids):
        assert bench.answers[one].tokens == scripted_answer([*PREFIX, n], 2)
    reads = [bench.answers[one].prefilled.read for one in ids]
    assert reads == ([0, 40, 40, 40] if after == 0 else [0, 0, 40, 40])
    assert computed(bench) == (1 if after == 0 else 2) * 40 + 4 * (1 + 1)


@pytest.mark.parametrize("priority", [20, 90])
def test_a_leader_is_lent_the_priority_of_who_waits_for_it(priority: int) -> None:
    """Beside a shorter prefill of more weight, a leader comes first as soon as someone of still more waits for it."""
    bench = busy()
    bench.core.scheduler.scored_rows = 4  # leaves half of each step to the other
    other = bench.submit([9] * 24, max_tokens=1, prompt_logprobs=0, keep=Keep(priority=50))
    leader = bench.submit([*PREFIX, 1], max_tokens=1, keep=Keep(priority=10))
    for _ in range(2):
        bench.step()
    assert computed(bench) == 16
    bench.submit([*PREFIX, 2], max_tokens=1, keep=Keep(priority=priority))
    while not (bench.answers[leader].ended or bench.answers[other].ended):
        bench.step()
    assert bench.answers[leader].ended is (priority > 50)
    bench.run()


def test_nobody_waits_for_who_computes_what_is_cached() -> None:
    """A request for log-probabilities computes its prompt again; who finds that prompt cached goes on beside it."""
    bench = busy()
    bench.ask([9] * 40, max_tokens=1)
    scoring = bench.submit([9] * 40, max_tokens=1, prompt_logprobs=0)
    bench.step()
    warm = bench.submit([9] * 40, max_tokens=1)
    for _ in range(3):
        bench.step()
    assert bench.answers[warm].ended and not bench.answers[scoring].ended


@pytest.mark.parametrize("length", [40, 41, 42, 43])
def test_four_choices_of_one_prompt_cost_one_prefill(length):
    """Each further choice computes only what the prompt has beyond its whole blocks, or one token to draw from."""
    bench = busy()
    prompt = [at % 50 for at in range(length)]
    ids = [bench.submit(prompt, max_tokens=5, sampling=Sampling(temperature=1.0, seed=seed)) for seed in range(4)]
    bench.run()
    assert computed(bench) == length + 3 * (length % BLOCK or 1) + 4 * (5 - 1)
    assert [bench.answers[one].prefilled.read for one in ids] == [0] + [length - (length % BLOCK or 1)] * 3
