"""Pool, tree and scheduler together under random schedules: a model made of hashes notices every wrong block."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.messages import Keep, Order
from engine.operator_messages import PolicyTerms, Purge, SetPolicies
from engine.sequence import NEXT, Phase
from tests.engine.workbench import Bench, ScriptedRunner, scripted_answer

BLOCK = 2


class Schedules(RuleBasedStateMachine):
    """Submit with and without marks, scores and an answer, cancel, purge, change policies, step, wait, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(
            ScriptedRunner(BLOCK),
            blocks=8,
            block_tokens=BLOCK,
            step_tokens=5,
            max_num_seqs=3,
            ttl_s=10.0,
            queue_timeout_s=1e9,
        )
        self.wanted: dict[str, tuple[list[int], int]] = {}
        self.left: set[str] = set()

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        count=st.integers(0, 6),
        scored=st.sampled_from([None, None, 0]),
        marked=st.integers(0, 4),
        ttl_s=st.sampled_from([3.0, 30.0]),
        held_ttl_s=st.sampled_from([None, 10.0]),
        tenant=st.sampled_from(["a", "b"]),
    )
    def submit(
        self,
        prompt: list[int],
        count: int,
        scored: int | None,
        marked: int,
        ttl_s: float,
        held_ttl_s: float | None,
        tenant: str,
    ) -> None:
        tokens = min(marked, len(prompt) // BLOCK) * BLOCK
        marks = (Order(tokens=tokens, ttl_s=ttl_s, klass=f"{ttl_s:g}s"),) if tokens else ()
        keep = Keep(marks=marks, held_ttl_s=held_ttl_s, held_klass="10s")
        self.wanted[self.bench.submit(prompt, max_tokens=count, keep=keep, tenant=tenant, prompt_logprobs=scored)] = (
            prompt,
            count,
        )

    @rule(held_ttl_s=st.sampled_from([None, 2.0, 10.0]), budget=st.sampled_from([0.0, 0.5, 1.0]))
    def change_policy(self, held_ttl_s: float | None, budget: float) -> None:
        terms = PolicyTerms(name="default", default_ttl_s=held_ttl_s, promise_budget=budget, pool_share=0.6)
        foreseen, done = (
            self.bench.core.handle(SetPolicies(seq=1, policies=(terms,), preview=preview)) for preview in (True, False)
        )
        assert foreseen == done

    @rule(tenant=st.sampled_from([None, "a", "b"]), older_than_s=st.sampled_from([None, 2.0]))
    def purge(self, tenant: str | None, older_than_s: float | None) -> None:
        foreseen, done = (
            self.bench.core.handle(Purge(seq=1, tenant=tenant, older_than_s=older_than_s, preview=preview))
            for preview in (True, False)
        )
        assert foreseen == done

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.wanted)))
        if not self.bench.answers[request_id].ended:
            self.left.add(request_id)
        self.bench.abort(request_id)

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.step()

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.bench.clock.tick(seconds)

    @invariant()
    def everything_adds_up(self) -> None:
        self.bench.core.scheduler.check()

    def teardown(self) -> None:
        self.bench.run()
        self.bench.core.scheduler.check()
        for request_id, (prompt, count) in self.wanted.items():
            answer = self.bench.answers[request_id]
            truth = scripted_answer(prompt, count)
            if request_id in self.left:
                assert answer.tokens == truth[: len(answer.tokens)]
                continue
            assert answer.tokens == truth
            facts = answer.prefilled
            assert facts.read + facts.write + facts.uncached == facts.prompt == len(prompt)
            assert min(facts.read, facts.write, facts.uncached) >= 0
            assert sum(missed.tokens for missed in facts.missed) == facts.prompt - facts.read
            assert answer.finished.projected >= facts.prompt - facts.read + max(0, count - 1)
            if facts.logprobs:
                assert facts.read == 0 and [told.token for told in facts.logprobs[1:]] == prompt[1:]
        stats = self.bench.core.stats()
        assert self.bench.core.cache.terms.reserved == 0
        assert stats.blocks_held == 0 and stats.blocks_free + stats.blocks_cached == 8


Schedules.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestSchedules = Schedules.TestCase


def test_phases_that_end_lead_nowhere():
    """Done, cancelled and failed are final; every other phase can reach an end."""
    ends = {Phase.DONE, Phase.CANCELLED, Phase.FAILED}
    assert {phase for phase, after in NEXT.items() if not after} == ends
    assert all(after & ends for phase, after in NEXT.items() if phase not in ends)


def test_decodes_go_first_and_share_the_step_with_a_prefill():
    """While a long prompt is read in chunks, a running answer gets a token in every step."""
    bench = Bench(ScriptedRunner(4), blocks=64, step_tokens=8)
    short = bench.submit([1, 2], max_tokens=20)
    bench.step()
    long = bench.submit([0] * 60, max_tokens=2)
    for step in range(2, 8):
        bench.step()
        assert len(bench.answers[short].tokens) == step
    bench.run()
    assert bench.answers[long].tokens == scripted_answer([0] * 60, 2)


def test_two_prefills_that_hold_half_the_pool_each_do_not_deadlock():
    """The older one goes on; the younger one gives way and answers later."""
    bench = Bench(ScriptedRunner(2), blocks=8, block_tokens=2, step_tokens=4, max_num_seqs=2)
    ids = [bench.submit([bit] * 10, max_tokens=5) for bit in (0, 1)]
    bench.run()
    assert [bench.answers[i].tokens for i in ids] == [scripted_answer([bit] * 10, 5) for bit in (0, 1)]
