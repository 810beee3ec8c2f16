"""Who is served first, and how large a chunk may be beside answers."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Keep
from engine.order import AGED_S
from engine.pace import LEAST_TOKENS, Pace
from tests.engine.workbench import Bench, ScriptedRunner, scripted_answer

BLOCK = 4


def one_by_one(**extra: Any) -> Bench:
    """An engine that runs one sequence at a time."""
    return Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, blocks=256, step_tokens=8, max_num_seqs=1, **extra)


def ends(bench: Bench, ids: list[str]) -> list[str]:
    """The ids in the order in which their answers ended."""
    order: list[str] = []
    for _ in range(500):
        bench.step()
        order += [one for one in ids if bench.answers[one].ended and one not in order]
        if len(order) == len(ids):
            return order
    raise AssertionError("not all ended")


def test_a_short_suffix_goes_before_a_long_cold_prompt() -> None:
    """What came first but has most to compute waits for what is nearly known."""
    bench = one_by_one()
    warm = [7] * 40
    bench.ask(warm, max_tokens=1)
    cold = bench.submit([9] * 60, max_tokens=1)
    suffix = bench.submit([*warm, 1, 2], max_tokens=1)
    assert ends(bench, [cold, suffix]) == [suffix, cold]


def test_nobody_waits_for_ever() -> None:
    """A cold prompt that has waited its time goes before every shorter one that came later."""
    bench = one_by_one()
    bench.ask([7] * 40, max_tokens=1)
    busy = bench.submit([5] * 8, max_tokens=3)
    cold = bench.submit([9] * 60, max_tokens=1)
    bench.step()
    bench.clock.tick(AGED_S)
    suffix = bench.submit([*([7] * 40), 1], max_tokens=1)
    assert ends(bench, [busy, cold, suffix]) == [busy, cold, suffix]


@pytest.mark.parametrize("tenants", [["cold"], ["one"], ["one", "two", "three"], ["cold", "one"]])
def test_a_cold_prompt_is_not_starved_by_cached_ones(tenants: list[str]) -> None:
    """With one place and a cached request more at every step, a cold one has its turn once it has waited its time."""
    bench = one_by_one()
    for tenant in tenants:
        bench.ask([7] * 24, max_tokens=1, tenant=tenant)
    bench.submit([5] * 8, max_tokens=2, tenant=tenants[0])
    bench.step()
    cold = bench.submit([9] * 60, max_tokens=1, tenant="cold")
    steps = 0
    while not bench.answers[cold].tokens:
        bench.submit([7] * 24, max_tokens=1, tenant=tenants[steps % len(tenants)])
        bench.step()
        bench.clock.tick(0.25)
        steps += 1
    assert AGED_S / 0.25 < steps <= AGED_S / 0.25 + 8 + len(tenants)  # the prompt itself takes eight steps


def test_a_higher_priority_goes_first() -> None:
    """The operator's word counts before the length."""
    bench = one_by_one()
    low = bench.submit([1] * 5, max_tokens=1)
    high = bench.submit([2] * 50, max_tokens=1, keep=Keep(priority=90))
    assert ends(bench, [low, high]) == [high, low]


def test_a_tenant_that_sends_twelve_at_once_competes_with_itself() -> None:
    """Another tenant's one request takes the next place but one, not the thirteenth."""
    bench = Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, blocks=256, step_tokens=8, max_num_seqs=2)
    many = [bench.submit([n, 1, 2, 3], max_tokens=6, tenant="many") for n in range(12)]
    few = bench.submit([40] * 6, max_tokens=6, tenant="few")
    order = ends(bench, [*many, few])
    assert order.index(few) <= 2


def test_a_tenant_whose_requests_have_all_aged_still_competes_with_itself() -> None:
    """Twelve long prompts that have waited their time leave another tenant's, once it has, the next place."""
    bench = one_by_one()
    many = [bench.submit([n] * 24, max_tokens=1, tenant="many") for n in range(12)]
    bench.step()
    bench.clock.tick(AGED_S)
    few = bench.submit([40] * 24, max_tokens=1, tenant="few")
    bench.step()
    bench.clock.tick(AGED_S)
    assert ends(bench, [*many, few]).index(few) <= 2


def test_no_crowd_hides_who_came_last() -> None:
    """Behind four tenants with forty requests each, a fifth one's turn comes at once, and a tenant's urgent one too."""
    bench = one_by_one(max_waiting=400)
    for tenant in "abcd":
        for n in range(40):
            bench.submit([n, 1, 2], max_tokens=1, tenant=tenant)
    fifth = bench.submit([1, 2, 3], max_tokens=1, tenant="e", keep=Keep(priority=60))
    urgent = bench.submit([4, 5, 6], max_tokens=1, tenant="a", keep=Keep(priority=90))
    assert ends(bench, [urgent, fifth]) == [urgent, fifth]
    assert bench.core.stats().requests_finished_total == 2


@pytest.mark.parametrize(
    ("decode_s", "prefill_s", "limit"),
    [(0.05, 0.25, 750), (0.05, 1.05, 150), (0.05, 10.0, LEAST_TOKENS), (0.0, 0.1, 1000), (0.15, 1.15, 150)],
)
def test_a_chunk_keeps_the_pace(decode_s: float, prefill_s: float, limit: int) -> None:
    """A chunk is what fits between a decode and the target, or two decodes where they are more, within its bounds."""
    pace = Pace(0.2, 1000)
    for _ in range(100):
        pace.measured(0, decode_s)
    for _ in range(100):
        pace.measured(1000, prefill_s)
    assert abs(pace.limit(answering=True) - limit) <= 1
    assert pace.limit(answering=False) == 1000


def test_a_decode_that_was_slow_is_forgotten() -> None:
    """Steps with prompt tokens that are faster than what decodes took before keep a pace, and a cost above zero."""
    pace = Pace(0.2, 1000)
    pace.measured(0, 4.0)
    for _ in range(3_000):
        pace.measured(40, 0.08)
    assert abs(pace.limit(answering=True) - 160) <= 1


def test_before_anything_is_measured_a_step_is_whole() -> None:
    """No guess is made about a machine."""
    assert Pace(0.2, 512).limit(answering=True) == 512


def test_a_decode_waits_for_one_chunk_at_most() -> None:
    """Beside an answer, all prefills together get one chunk a step."""
    bench = Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, blocks=256, step_tokens=200, max_num_seqs=4)
    bench.core.scheduler.pace._token_s = 0.2 / 40
    answer = bench.submit([1, 2, 3], max_tokens=50)
    bench.step()
    for n in range(2):
        bench.submit([n + 10] * 100, max_tokens=1)
    before = bench.core.stats().projected_tokens_total
    bench.step()
    assert bench.core.stats().projected_tokens_total - before == 1 + 40
    bench.run()
    assert len(bench.answers[answer].tokens) == 50


def test_a_short_suffix_overtakes_a_long_prompt_that_is_being_read() -> None:
    """What came while a long cold prompt is computed, and fits into a step, is answered in the next one."""
    bench = Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, blocks=256, step_tokens=8, max_num_seqs=4)
    warm = [7] * 40
    bench.ask(warm, max_tokens=1)
    cold = bench.submit([9] * 60, max_tokens=1)
    bench.step()
    suffix = bench.submit([*warm, 1, 2], max_tokens=1)
    bench.step()
    assert bench.answers[suffix].ended
    bench.run()
    assert bench.answers[cold].tokens == scripted_answer([9] * 60, 1)


@pytest.mark.parametrize(("length", "priority"), [(5, 49), (9, 50)])
def test_a_long_prompt_is_not_overtaken_by_what_weighs_less_or_does_not_fit(length: int, priority: int) -> None:
    """A lower priority, and a prompt that a step cannot hold whole, wait their turn."""
    bench = Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, blocks=256, step_tokens=8, max_num_seqs=4)
    cold = bench.submit([9] * 60, max_tokens=1)
    bench.step()
    other = bench.submit([3] * length, max_tokens=1, keep=Keep(priority=priority))
    assert ends(bench, [cold, other]) == [cold, other]


def test_a_cold_request_among_five_hundred_cached_ones_starts_in_time() -> None:
    """With one slot and a fully cached request every step, the cold one starts as soon as it has waited its time."""
    bench = one_by_one()
    warm = [7] * 40
    bench.ask(warm, max_tokens=1)
    waited, since = None, bench.clock()
    bench.submit([*warm, 50], max_tokens=1)
    cold = bench.submit([9] * 60, max_tokens=1)
    for step in range(500):
        bench.submit([*warm, step % 50], max_tokens=1)
        bench.step()
        if waited is None and any(one.request.id == cold for one in bench.core.scheduler._running):
            waited = bench.clock() - since
        bench.clock.tick(0.25)
    assert waited == AGED_S
    assert bench.answers[cold].ended


def test_a_long_prompt_among_many_short_ones_is_read_in_time() -> None:
    """Overtaken in every step by a short request, a long prompt has whole steps once it was let in long enough ago."""
    bench = Bench(ScriptedRunner(BLOCK), block_tokens=BLOCK, blocks=256, step_tokens=8, max_num_seqs=8)
    cold = bench.submit([60] * 200, max_tokens=1)
    bench.step()
    for step in range(60):
        bench.submit([step % 50, 1, 2, 3, 4, 5, 6, step // 50], max_tokens=1)  # a step's tokens, all of them
        bench.clock.tick(0.25)
        bench.step()
        read = bench.core.scheduler._by_id[cold].computed if cold in bench.core.scheduler else 200
        since = (step + 1) * 0.25
        assert read == (8 if since < AGED_S else min(200, 8 + 8 * (step - int(AGED_S / 0.25) + 2)))
