"""The retention table row by row, through the whole engine under a hand clock: what is kept, until when, for whom."""

from __future__ import annotations

import random

import pytest

from engine.messages import Keep, Order
from engine.operator_messages import ListEntries, PolicyTerms, Purge, SetPolicies
from tests.engine.workbench import Bench, ScriptedRunner, scripted_answer

B = 4  # tokens a block
MINUTE = 60.0


def mark(tokens: int, ttl_s: float = 60 * MINUTE, klass: str = "1h") -> Order:
    """A granted mark."""
    return Order(tokens=tokens, ttl_s=ttl_s, klass=klass)


def keep(*marks: Order, **fields) -> Keep:
    """How a request is kept: five minutes held unless said otherwise."""
    return Keep(marks=marks, **fields)


def numbers(seed: int, count: int = 4 * B) -> list[int]:
    """A prompt that shares nothing with one of another seed."""
    return [seed] + [(seed * 7 + at) % 60 for at in range(count - 1)]


@pytest.fixture
def bench():
    """Sixteen blocks of four tokens."""
    return Bench(ScriptedRunner(B), blocks=16, block_tokens=B, max_num_seqs=2)


def set_policies(bench: Bench, *policies: PolicyTerms, preview: bool = False):
    """Put policies in force and return what changed."""
    return bench.core.handle(SetPolicies(seq=1, policies=policies, preview=preview))


def read(bench: Bench, prompt: list[int], **fields) -> int:
    """Ask once more and return the tokens read."""
    fields.setdefault("keep", keep())
    tokens: int = bench.ask(prompt, max_tokens=1, **fields).prefilled.read
    return tokens


WHOLE = 4 * B - 1  # what a repeated prompt of four blocks reads: all but the token that is always computed


def test_the_clock_starts_at_admission_not_in_the_queue():
    """A request that waited longer than its TTL is kept for the whole of it from its start."""
    bench = Bench(ScriptedRunner(B), blocks=64, block_tokens=B, max_num_seqs=1)
    bench.submit(numbers(1), max_tokens=8)
    second = bench.submit(numbers(2), max_tokens=1, keep=keep(held_ttl_s=10.0))
    while bench.answers[second].finished is None:
        bench.clock.tick(5.0)
        bench.step()
    assert bench.answers[second].prefilled.queue_s > 30.0
    bench.clock.tick(9.0)
    assert read(bench, numbers(2)) == WHOLE


def test_a_read_renews_a_sliding_class_at_the_lease(bench):
    """Read at three and at seven seconds a five-second prefix lives, at thirteen it is gone, and says since when."""
    answers = []
    for wait in (0.0, 3.0, 4.0, 6.0):
        bench.clock.tick(wait)
        answers.append(bench.ask(numbers(1), max_tokens=1, keep=keep(held_ttl_s=5.0)).prefilled)
    assert [answer.read for answer in answers] == [0, WHOLE, WHOLE, 0]
    (expired,) = answers[3].missed
    assert (expired.fate, expired.tokens, expired.ago_s) == ("expired", 4 * B, 1.0)


def test_a_read_never_moves_a_fixed_deadline(bench):
    """Five fixed seconds are five seconds, however often it is read."""
    fixed = keep(held_ttl_s=5.0, sliding=False)
    reads = []
    for wait in (0.0, 3.0, 1.9, 0.2):
        bench.clock.tick(wait)
        reads.append(read(bench, numbers(1), keep=fixed))
    assert reads == [0, WHOLE, WHOLE, 0]


def test_two_classes_on_one_prefix_the_longest_holds(bench):
    """A shorter mark never shortens, and a mark on what exists is not a write."""
    bench.ask(numbers(1), max_tokens=1, keep=keep(mark(4 * B), write_all=False))
    shorter = bench.ask(numbers(1), max_tokens=1, keep=keep(mark(2 * B, 5.0, "5s"), write_all=False)).prefilled
    assert shorter.write == 0
    bench.clock.tick(59 * MINUTE)
    assert read(bench, numbers(1)) == WHOLE


def test_a_mark_covers_whole_blocks_and_what_follows_is_held(bench):
    """Two marked blocks live for an hour, the two after them for five minutes."""
    bench.ask(numbers(1), max_tokens=1, keep=keep(mark(2 * B)))
    bench.clock.tick(6 * MINUTE)
    answer = bench.ask(numbers(1), max_tokens=1, keep=keep()).prefilled
    assert answer.read == 2 * B
    assert [(missed.fate, missed.tokens) for missed in answer.missed] == [("expired", 2 * B)]


def test_a_parent_lives_as_long_as_its_child(bench):
    """A marked long prompt keeps its unmarked beginning, of another request, alive."""
    bench.ask(numbers(1)[: 2 * B], max_tokens=1, keep=keep(held_ttl_s=10.0))
    bench.ask(numbers(1), max_tokens=1, keep=keep(mark(4 * B)))
    bench.clock.tick(30 * MINUTE)
    assert read(bench, numbers(1)) == WHOLE


def test_looking_renews_nothing(bench):
    """Stats, entries and previews leave every deadline where it is."""
    bench.ask(numbers(1), max_tokens=1, keep=keep(held_ttl_s=10.0))
    bench.clock.tick(9.0)
    bench.core.stats()
    set_policies(bench, PolicyTerms(name="default", default_ttl_s=1.0), preview=True)
    bench.core.handle(Purge(seq=2, preview=True))
    (entry,) = bench.core.handle(ListEntries(seq=3)).entries
    assert (entry.left_s, entry.tokens, entry.reads) == (1.0, 4 * B, 0)
    bench.clock.tick(1.0)
    assert read(bench, numbers(1)) == 0


def test_a_lease_outlives_the_deadline_and_its_blocks_go_at_the_release(bench):
    """An answer longer than its TTL is right, nobody else reads its blocks, and they are free when it ends."""
    running = bench.submit(numbers(1), max_tokens=6, keep=keep(held_ttl_s=2.0))
    bench.step()
    bench.clock.tick(3.0)
    assert read(bench, numbers(1), keep=keep(held_ttl_s=2.0)) == 0
    bench.run()
    assert len(bench.answers[running].tokens) == 6
    bench.clock.tick(3.0)
    bench.core.sweep()
    assert bench.core.stats().blocks_free == 16


def test_pressure_takes_held_before_promised_and_least_recent_first(bench):
    """A full pool gives up what is held and oldest; the promised prefix stays."""
    bench.ask(numbers(1), max_tokens=1, keep=keep(mark(4 * B)))
    for seed in (2, 3, 4, 5):
        bench.clock.tick(1.0)
        bench.ask(numbers(seed), max_tokens=1, keep=keep())
    assert read(bench, numbers(1)) == WHOLE
    answer = bench.ask(numbers(2), max_tokens=1, keep=keep()).prefilled
    assert {missed.fate for missed in answer.missed} == {"evicted"}


def test_promised_go_by_priority_and_a_broken_promise_is_counted_and_named(bench):
    """With nothing held left, the lower priority goes, is counted by class and tenant, and a later miss says so."""
    set_policies(bench, PolicyTerms(name="default", promise_budget=1.0))
    bench.ask(numbers(1), max_tokens=1, keep=keep(mark(4 * B), priority=10))
    bench.ask(numbers(2), max_tokens=1, keep=keep(mark(4 * B), priority=90))
    bench.ask(numbers(3, 11 * B), max_tokens=2, keep=keep(held_ttl_s=None))
    assert read(bench, numbers(2)) == WHOLE
    answer = bench.ask(numbers(1), max_tokens=1, keep=keep()).prefilled
    assert answer.missed[-1].fate == "broken_promise"
    broken = bench.core.stats().broken_promises
    assert list(broken) == ["1h|default"] and broken["1h|default"] == 4 - answer.read // B


def test_a_tenant_over_its_share_gives_way_first():
    """One that fills the pool loses its own prefixes, not the older one of a modest neighbour."""
    bench = Bench(ScriptedRunner(B), blocks=16, block_tokens=B)
    set_policies(bench, PolicyTerms(name="default", pool_share=0.5))
    bench.ask(numbers(1), max_tokens=1, tenant="modest")
    for seed in range(2, 12):
        bench.clock.tick(1.0)
        bench.ask(numbers(seed), max_tokens=1, tenant="greedy")
    assert read(bench, numbers(1), tenant="modest") == WHOLE
    assert bench.core.stats().tenant_blocks["greedy"] <= 12


def test_the_budget_takes_a_mark_whole_or_not_at_all(bench):
    """Half the pool may be promised: two marks of four blocks fit, the third is held for as long, no write, told so."""
    answers = [
        bench.ask(numbers(seed), max_tokens=1, keep=keep(mark(4 * B), write_all=False)).prefilled for seed in (1, 2, 3)
    ]
    outcomes = [answer.marks[0] for answer in answers]
    assert [(outcome.kept, outcome.reason) for outcome in outcomes] == [
        ("promised", ""),
        ("promised", ""),
        ("held", "budget"),
    ]
    assert [answer.write for answer in answers] == [4 * B, 4 * B, 0]
    assert outcomes[2].left_s == 60 * MINUTE
    assert bench.core.stats().blocks_promised == 8


def test_of_two_marks_the_declined_one_is_no_write(bench):
    """A short mark that fits the budget is written; what only the long, declined one covers is held and uncached."""
    set_policies(bench, PolicyTerms(name="default", promise_budget=0.25))
    both = keep(mark(2 * B), mark(6 * B), write_all=False)
    answer = bench.ask(numbers(1, 6 * B), max_tokens=1, keep=both).prefilled
    assert [outcome.kept for outcome in answer.marks] == ["promised", "held"]
    assert (answer.write, answer.uncached) == (2 * B, 4 * B)
    everything = bench.ask(numbers(2, 6 * B), max_tokens=1, keep=keep(mark(6 * B))).prefilled
    assert (everything.marks[0].kept, everything.write) == ("held", 6 * B)


def test_unique_blocks_are_promised_once(bench):
    """A second mark on the same prefix takes nothing more from the budget."""
    for _ in range(5):
        answer = bench.ask(numbers(1, 8 * B), max_tokens=1, keep=keep(mark(8 * B)))
        assert answer.prefilled.marks[0].kept == "promised"
    assert bench.core.stats().blocks_promised == 8


def test_a_reservation_is_given_up_on_cancel_and_published_marks_stand(bench):
    """Cancelled before anything was published, a mark leaves the whole budget; published whole, it stands."""
    bench.core.scheduler.step_tokens = B
    left = bench.submit(numbers(1, 8 * B), max_tokens=1, keep=keep(mark(8 * B)))
    bench.step()
    bench.abort(left)
    bench.step()
    assert bench.core.cache.terms.reserved == 0
    assert bench.core.stats().blocks_promised == 1  # the block that was finished keeps what was asked for it
    again = bench.ask(numbers(2, 4 * B), max_tokens=1, keep=keep(mark(4 * B))).prefilled
    assert again.marks[0].kept == "promised"


def test_a_lowered_policy_acts_at_once_from_the_last_start(bench):
    """Lowered to one minute, two minutes after the last use, a prefix is gone, and the miss names the policy."""
    bench.ask(numbers(1), max_tokens=1, keep=keep())
    bench.clock.tick(2 * MINUTE)
    preview = set_policies(bench, PolicyTerms(name="default", default_ttl_s=MINUTE), preview=True)
    assert read(bench, numbers(9, B)) == 0 and preview.gone["default"].tokens == 4 * B
    changed = set_policies(bench, PolicyTerms(name="default", default_ttl_s=MINUTE))
    assert changed.gone["default"].tokens == 4 * B
    answer = bench.ask(numbers(1), max_tokens=1, keep=keep(held_ttl_s=MINUTE)).prefilled
    assert [(missed.fate, missed.ago_s) for missed in answer.missed] == [("policy_changed", MINUTE)]
    assert bench.core.stats().broken_promises == {}


def test_a_ceiling_lowered_while_a_request_waited_binds_it(bench):
    """A request that was resolved before the change and admitted after it keeps nothing past the new ceiling."""
    waiting = bench.submit(numbers(1), max_tokens=1, keep=keep(mark(4 * B)))
    set_policies(bench, PolicyTerms(name="default", default_ttl_s=5.0, max_ttl_s=5.0))
    bench.run()
    assert bench.answers[waiting].prefilled.marks[0].left_s == 5.0
    bench.clock.tick(5.0)
    assert read(bench, numbers(1)) == 0


def test_a_raised_policy_acts_at_the_next_touch(bench):
    """Raised to ten minutes, a prefix written under five lives longer from its next read on."""
    bench.ask(numbers(1), max_tokens=1, keep=keep())
    set_policies(bench, PolicyTerms(name="default", default_ttl_s=10 * MINUTE))
    bench.clock.tick(4 * MINUTE)
    assert read(bench, numbers(1), keep=keep(held_ttl_s=10 * MINUTE)) == WHOLE
    bench.clock.tick(9 * MINUTE)
    assert read(bench, numbers(1), keep=keep(held_ttl_s=10 * MINUTE)) == WHOLE


def test_a_purge_detaches_and_bars_those_under_way(bench):
    """Purged while in use: nobody reads it, its reader ends right, what it still computes is not cached again."""
    running = bench.submit(numbers(1), max_tokens=10, keep=keep())
    bench.step()
    preview = bench.core.handle(Purge(seq=1, tenant="default", preview=True))
    purged = bench.core.handle(Purge(seq=2, tenant="default"))
    assert preview.gone == purged.gone and purged.gone["default"].tokens == 4 * B
    assert purged.leased_tokens == 4 * B
    answer = bench.ask(numbers(1), max_tokens=1, keep=keep(held_ttl_s=None)).prefilled
    assert answer.read == 0 and answer.missed[0].fate == "purged"
    assert len(bench.answers[running].tokens) == 10
    assert bench.core.stats().blocks_free == 16


def test_a_purge_by_prefix_leaves_what_others_share(bench):
    """Only what continues the given prompt goes; the shared beginning stays."""
    shared = numbers(1, 2 * B)
    one, other = shared + numbers(2, 2 * B), shared + numbers(3, 2 * B)
    bench.ask(one, max_tokens=1, keep=keep())
    bench.ask(other, max_tokens=1, keep=keep())
    packed = b"".join(token.to_bytes(4, "little") for token in one)
    purged = bench.core.handle(Purge(seq=1, prefix=packed))
    assert (purged.gone["default"].tokens, purged.kept["default"].tokens) == (2 * B, 4 * B)
    assert read(bench, other) == WHOLE
    assert read(bench, one) == 2 * B


def test_purges_filter_by_class_model_and_age(bench):
    """Each filter narrows; what matches none stays."""
    bench.ask(numbers(1), max_tokens=1, keep=keep(mark(4 * B)))
    bench.clock.tick(30.0)
    bench.ask(numbers(2), max_tokens=1, keep=keep())

    def tokens(**fields) -> int:
        gone = bench.core.handle(Purge(seq=1, preview=True, **fields)).gone
        return sum(tally.tokens for tally in gone.values())

    assert (tokens(klass="1h"), tokens(klass="5m"), tokens(klass="24h")) == (4 * B, 4 * B, 0)
    assert (tokens(model="tiny"), tokens(model="other")) == (8 * B, 0)
    assert (tokens(older_than_s=20.0), tokens(older_than_s=40.0)) == (4 * B, 0)


def test_below_the_minimum_nothing_is_kept(bench):
    """One token under the minimum reads and writes nothing and says why; at the minimum it is kept."""
    short, exact = keep(mark(4 * B), min_tokens=4 * B + 1), keep(mark(4 * B), min_tokens=4 * B)
    for _ in range(2):
        answer = bench.ask(numbers(1), max_tokens=1, keep=short).prefilled
        assert (answer.read, answer.write) == (0, 0)
        assert [(m.fate, m.tokens) for m in answer.missed] == [("below_minimum", 4 * B)]
        assert [(m.kept, m.reason) for m in answer.marks] == [("none", "below_minimum")]
    assert bench.core.stats().nodes == 0
    assert [bench.ask(numbers(1), max_tokens=1, keep=exact).prefilled.read for _ in range(2)] == [0, WHOLE]


def test_no_caching_neither_reads_nor_writes(bench):
    """A request that asked for none leaves no trace and says so."""
    bench.ask(numbers(1), max_tokens=1, keep=keep())
    before = bench.core.stats().nodes
    answer = bench.ask(numbers(1), max_tokens=4, keep=keep(cache=False)).prefilled
    assert (answer.read, answer.write) == (0, 0)
    assert [(m.fate, m.tokens) for m in answer.missed] == [("no_cache", 4 * B)]
    assert bench.core.stats().nodes == before


def test_unmarked_prompts_are_not_kept_where_the_policy_has_no_default(bench):
    """With no held TTL only what a mark covers is written and stays."""
    answer = bench.ask(numbers(1), max_tokens=8, keep=keep(mark(2 * B), held_ttl_s=None)).prefilled
    assert (answer.write, answer.uncached) == (2 * B, 2 * B)
    assert read(bench, numbers(1), keep=keep(held_ttl_s=None)) == 2 * B


def test_every_unread_token_has_one_fate(bench):
    """Whatever happened, the fates of a prompt sum to prompt − read."""
    for seed in (1, 2, 1, 3, 4, 5, 1):
        facts = bench.ask(numbers(seed, 4 * B + 3), max_tokens=2, keep=keep()).prefilled
        assert sum(missed.tokens for missed in facts.missed) == facts.prompt - facts.read


def test_the_most_specific_policy_governs():
    """Model and tenant before tenant before model before default."""
    from engine.terms import governing

    policies = tuple(
        PolicyTerms(name=f"{model}-{tenant}", model=model, tenant=tenant)
        for model, tenant in ((None, None), ("m", None), (None, "t"), ("m", "t"), (None, "u"), ("x", "v"))
    )
    chosen = {tenant: policy.name for tenant, policy in governing(policies, "m").items()}
    assert chosen == {None: "m-None", "t": "m-t", "u": "None-u"}


def test_a_policy_changed_while_fifty_requests_run():
    """Lowered, raised and lowered again under fifty requests: every answer is right and nothing leaks."""
    bench = Bench(ScriptedRunner(B), blocks=200, block_tokens=B, max_num_seqs=50, step_tokens=64)
    ids = [bench.submit(numbers(seed, 3 * B), max_tokens=12, keep=keep(mark(2 * B))) for seed in range(50)]
    for step in range(30):
        bench.clock.tick(1.0)
        set_policies(bench, PolicyTerms(name="default", default_ttl_s=(2.0, 600.0)[step % 2], max_ttl_s=900.0))
        bench.step()
    bench.run()
    assert all(bench.answers[i].tokens == scripted_answer(numbers(seed, 3 * B), 12) for seed, i in enumerate(ids))
    stats = bench.core.stats()
    assert (stats.blocks_held, bench.core.cache.terms.reserved) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_served_past_its_deadline_and_no_promise_is_lost_while_room_is_left(seed):
    """Against a plain model of deadlines: a marked prompt is read until then, never after, in a pool with room."""
    chance = random.Random(seed)
    bench = Bench(ScriptedRunner(B), blocks=400, block_tokens=B)
    set_policies(bench, PolicyTerms(name="default", promise_budget=1.0))
    deadlines: dict[int, float] = {}
    for _ in range(80):
        bench.clock.tick(chance.choice([0.5, 2.0, 7.0]))
        prompt, now = chance.randrange(6), bench.clock.now
        alive = now < deadlines.get(prompt, 0.0)
        order = mark(4 * B, 10.0, "10s")
        assert read(bench, numbers(prompt), keep=keep(order, held_ttl_s=None)) == (WHOLE if alive else 0)
        deadlines[prompt] = now + 10.0
    assert bench.core.stats().broken_promises == {}
