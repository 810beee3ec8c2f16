"""Looks at a running cache: right against a slow walk, in slices, and without a trace. And what the snapshot counts."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from engine.messages import Keep, Order
from engine.operator_messages import (
    SPANS_S,
    AskRetention,
    AskStats,
    AskTree,
    PolicyTerms,
    Purge,
    RetentionView,
    SetPolicies,
    Tree,
)
from engine.survey import Surveys
from prefix_store import lifetimes
from prefix_store.retention import Kept
from tests.engine.workbench import Bench, ScriptedRunner

B = 4


@pytest.fixture
def bench() -> Bench:
    """A hundred blocks of four tokens."""
    return Bench(ScriptedRunner(B), blocks=100, block_tokens=B, max_num_seqs=4)


def fill(bench: Bench, seed: int = 1) -> None:
    """Thirty prompts that share beginnings, of two tenants and three classes, over half an hour."""
    dice = random.Random(seed)
    for _ in range(30):
        prompt = [dice.randrange(2) for _ in range(dice.randrange(1, 9)) for _ in range(B)]
        marks = (Order(tokens=B, ttl_s=3600.0, klass="1h"),) if dice.random() < 0.3 else ()
        keep = Keep(marks=marks, held_ttl_s=dice.choice((300.0, 1800.0)), held_klass="5m")
        bench.ask(prompt, max_tokens=2, keep=keep, tenant=dice.choice(("a", "b")))
        bench.clock.tick(dice.choice((0.5, 20.0, 90.0)))


def look(bench: Bench, question: AskTree | AskRetention) -> Tree | RetentionView:
    """Ask, and step until there is the answer."""
    assert bench.core.handle(question) is None
    while bench.core.looking:
        for answer in bench.core.look():
            assert answer.seq == question.seq
            return answer
    raise AssertionError("no answer came")


def traces(bench: Bench) -> list[tuple[object, ...]]:
    """All that a look could have changed."""
    return [
        (node, node.deadline, node.used, node.renewed, node.reads, node.leases, node.queued, tuple(node.payload))
        for node in bench.core.cache.tree.nodes()
    ]


def test_a_look_renews_nothing(bench: Bench) -> None:
    """Tree, retention and snapshot leave times, order, shape and holds as they were, and each other's numbers too."""
    fill(bench)
    before, counted = traces(bench), bench.core.stats()
    look(bench, AskTree(seq=1))
    look(bench, AskRetention(seq=2))
    bench.core.handle(AskStats())
    assert (traces(bench), bench.core.stats()) == (before, counted)


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_is_what_a_slow_walk_says(bench: Bench, seed: int) -> None:
    """Every node has its place, its own tokens and those below it, and its times as the tree has them."""
    fill(bench, seed)
    now, nodes = bench.clock.now, list(bench.core.cache.tree.nodes())
    shown = look(bench, AskTree(seq=7))
    assert isinstance(shown, Tree) and shown.total == len(nodes) == len(shown.nodes)
    told = {view.id: view for view in shown.nodes}
    for node in nodes:
        view, parent = told[node.last_hash.hex()], node.parent
        assert parent is not None and node.retention is not None
        assert view.parent == (None if parent.retention is None else parent.last_hash.hex())
        assert view.start == sum(len(above.payload) for above in lifetimes.path_up(parent)) * B
        assert view.tokens == len(node.payload) * B
        assert view.subtree_tokens == sum(len(below.payload) for below in node.subtree()) * B
        assert (view.left_s, view.idle_s, view.age_s) == (node.deadline - now, now - node.used, now - node.born)
        assert (view.tenant, view.reads, view.leases) == (node.namespace.tenant, node.reads, node.leases)
        assert (view.klass, view.kept == "promised") == (node.retention.klass, node.kept is Kept.PROMISED)


@pytest.mark.parametrize("limit", [1, 3, 10, 1000])
def test_the_largest_come_first_and_parents_before_children(bench: Bench, limit: int) -> None:
    """Bounded to the largest subtrees of one tenant, the tree has no node whose parent is not shown before it."""
    fill(bench)
    whole = look(bench, AskTree(seq=1, tenant="a"))
    shown = look(bench, AskTree(seq=2, tenant="a", limit=limit))
    assert isinstance(whole, Tree) and isinstance(shown, Tree)
    sizes = sorted((node.subtree_tokens for node in whole.nodes), reverse=True)
    assert (shown.total, [node.subtree_tokens for node in shown.nodes]) == (whole.total, sizes[:limit])
    seen: set[str | None] = {None}
    for node in shown.nodes:
        assert node.parent in seen and node.tenant == "a"
        seen.add(node.id)


def histogram(pairs: list[tuple[float, int]]) -> tuple[int, ...]:
    """The slow truth of a histogram: pairs of seconds and tokens."""
    return tuple(
        sum(tokens for seconds, tokens in pairs if low < seconds <= high)
        for low, high in pairwise((-1.0, *SPANS_S, float("inf")))
    )


def test_ages_and_deadlines_are_what_a_slow_walk_says(bench: Bench) -> None:
    """Live tokens by class over the edges; what has expired and waits for a sweep is in neither."""
    fill(bench)
    bench.clock.tick(120.0)
    now, tree = bench.clock.now, bench.core.cache.tree
    live = [node for node in tree.nodes() if node.deadline > now]
    assert 0 < len(live) < len(list(tree.nodes()))
    view = look(bench, AskRetention(seq=1))
    assert isinstance(view, RetentionView)
    assert view.ages.keys() == view.deadlines.keys() == {"5m", "1h"}
    for klass in ("5m", "1h"):
        nodes = [node for node in live if node.retention is not None and node.retention.klass == klass]
        births = [(now - born, blocks * B) for node in nodes for born, blocks in node.births]
        assert view.ages[klass] == histogram(births)
        assert view.deadlines[klass] == histogram([(node.deadline - now, len(node.payload) * B) for node in nodes])


def test_a_large_tree_is_looked_at_in_slices_between_steps(bench: Bench) -> None:
    """With three nodes a slice, answers go on a token a step while the look is under way, and the look is whole."""
    fill(bench)
    bench.core.surveys = Surveys(bench.core.cache.tree, slice_nodes=3)
    running = bench.submit([1] * B, max_tokens=40, tenant="a")
    bench.step()
    bench.core.handle(AskTree(seq=1))
    nodes, looks = bench.core.cache.stats().nodes, 0
    answers: list[Tree | RetentionView] = []
    while not answers:
        answers = bench.core.look()
        looks += 1
        before = len(bench.answers[running].tokens)
        bench.step()
        assert len(bench.answers[running].tokens) == before + 1
    assert looks >= nodes / 3
    (shown,) = answers
    assert isinstance(shown, Tree) and len(shown.nodes) == shown.total >= nodes


def test_who_asks_the_same_meanwhile_shares_the_look(bench: Bench) -> None:
    """Three who ask for one tree get it with their own numbers, from one walk; another question is answered after."""
    fill(bench)
    for question in (AskTree(seq=1), AskRetention(seq=2), AskTree(seq=3)):
        bench.core.handle(question)
    bench.core.look()
    bench.core.handle(AskTree(seq=4))
    order, trees = [], set()
    while bench.core.looking:
        for answer in bench.core.look():
            order.append(answer.seq)
            trees |= {answer.nodes} if isinstance(answer, Tree) else set()
    assert (order, len(trees)) == ([1, 3, 4, 2], 1)


def test_an_empty_cache_has_an_empty_tree_and_no_class(bench: Bench) -> None:
    """Nothing kept is an answer too."""
    assert look(bench, AskTree(seq=1)) == Tree(seq=1, total=0)
    assert look(bench, AskRetention(seq=2)) == RetentionView(seq=2)


def test_entries_and_tokens_are_told_by_class_and_firmness(bench: Bench) -> None:
    """One marked block is an hour's promise, the rest of the prompt is held for five minutes."""
    keep = Keep(marks=(Order(tokens=B, ttl_s=3600.0, klass="1h"),))
    bench.ask([1] * 3 * B, max_tokens=1, keep=keep)
    stats = bench.core.stats()
    assert stats.entries_by == {"1h|promised": 1, "5m|held": 1}
    assert stats.tokens_by == {"1h|promised": B, "5m|held": 2 * B}


def test_answers_are_counted_by_how_they_ended(bench: Bench) -> None:
    """Each reason is there from the start, and an answer that was left counts as cancelled."""
    assert bench.core.stats().finished_by == {"stop": 0, "length": 0, "cancelled": 0}
    bench.ask([1, 2, 3], max_tokens=2)
    bench.ask([1, 2, 3], max_tokens=9, stop_ids=tuple(range(61)))
    bench.abort(bench.submit([1, 2, 3], max_tokens=9))
    assert bench.core.stats().finished_by == {"stop": 1, "length": 1, "cancelled": 1}


def test_blocks_that_go_are_told_by_their_cause(bench: Bench) -> None:
    """A purged block that its reader frees later has not expired, and what a policy cut short is told apart."""
    running = bench.submit([1] * 2 * B, max_tokens=6)
    bench.step()
    bench.core.handle(Purge(seq=1, tenant="default"))
    bench.run()
    assert bench.answers[running].ended
    purged = bench.core.stats()
    assert (purged.purged_total, purged.blocks_expired_total, purged.blocks_evicted_total) == (2, 0, 0)
    bench.ask([2] * 3 * B, max_tokens=1)
    bench.core.handle(SetPolicies(seq=2, policies=(PolicyTerms(name="default", default_ttl_s=1.0),)))
    bench.clock.tick(2.0)
    bench.core.sweep()
    cut = bench.core.stats()
    assert (cut.purged_total, cut.blocks_expired_total, cut.blocks_policy_changed_total) == (2, 3, 3)
    assert cut.lifetime.counts == (2, 3) + (0,) * (len(SPANS_S) - 1)


def test_pressure_that_meets_expired_blocks_does_not_call_them_evicted() -> None:
    """Room made of what had expired is no eviction."""
    bench = Bench(ScriptedRunner(B), blocks=8, block_tokens=B, ttl_s=5.0)
    bench.ask([1] * 7 * B, max_tokens=1)
    bench.clock.tick(6.0)
    hold = bench.core.cache.pool.free
    taken = bench.core.cache._take(hold + 2, None, now=bench.clock.now)
    bench.core.cache.pool.give(taken)
    stats = bench.core.stats()
    assert (len(taken), stats.blocks_evicted_total, stats.blocks_expired_total) == (hold + 2, 0, 7)


def test_a_preempted_request_that_comes_back_is_no_reuse() -> None:
    """Of two answers that do not fit together the younger one leases its own blocks again, which reads nothing."""
    bench = Bench(ScriptedRunner(2), blocks=8, block_tokens=2, step_tokens=4, max_num_seqs=2)
    for bit in (0, 1):
        bench.submit([bit] * 6, max_tokens=9)
    while bench.core.busy:
        bench.step()
        bench.clock.tick(1.0)
    stats = bench.core.stats()
    assert stats.preemptions_total > 0
    assert (sum(stats.reuse_gap.counts), sum(stats.age_at_read.counts)) == (0, 0)
