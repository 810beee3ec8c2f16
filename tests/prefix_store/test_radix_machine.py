"""The tree against the slow truth: every order of operations, on blocks of two tokens over an alphabet of two."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.prefix_store.twins import BLOCK, CLASSES, Twins, space

SPACES = (space(), space(partition="blue"))
CAPACITY = 24  # blocks, beyond which the walk makes room
ODDS = {
    "lease": 5,
    "publish": 8,
    "release": 5,
    "copied": 1,
    "partial": 2,
    "adopt": 2,
    "evict": 1,
    "sweep": 1,
    "wait": 5,
}

spaces = st.sampled_from(SPACES)
prompts = st.lists(st.integers(0, 1), max_size=11).map(tuple)
classes = st.sampled_from(sorted(CLASSES))


class Orders(RuleBasedStateMachine):
    """Lease, publish, release, evict, sweep and wait in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins()

    @rule(namespace=spaces, tokens=prompts)
    def peek(self, namespace, tokens):
        self.twins.peek(namespace, tokens)

    @rule(namespace=spaces, tokens=prompts, klass=classes)
    def lease(self, namespace, tokens, klass):
        self.twins.lease(namespace, tokens, klass)

    @precondition(lambda self: self.twins.requests)
    @rule(data=st.data(), blocks=st.integers(0, 4))
    def publish(self, data, blocks):
        tokens = data.draw(st.lists(st.integers(0, 1), min_size=blocks * BLOCK, max_size=blocks * BLOCK))
        self.twins.publish(data.draw(st.sampled_from(self.twins.requests)), tuple(tokens))

    @precondition(lambda self: self.twins.requests)
    @rule(data=st.data(), token=st.integers(0, 1))
    def keep_partial(self, data, token):
        self.twins.keep_partial(data.draw(st.sampled_from(self.twins.requests)), (token,))

    @precondition(lambda self: self.twins.requests)
    @rule(data=st.data())
    def adopt(self, data):
        self.twins.adopt(data.draw(st.sampled_from(self.twins.requests)))

    @precondition(lambda self: self.twins.requests)
    @rule(data=st.data())
    def copied(self, data):
        self.twins.copied(data.draw(st.sampled_from(self.twins.requests)))

    @precondition(lambda self: self.twins.requests)
    @rule(data=st.data())
    def release(self, data):
        self.twins.release(data.draw(st.sampled_from(self.twins.requests)))

    @rule(blocks=st.integers(0, 6))
    def evict(self, blocks):
        self.twins.evict(blocks)

    @rule(budget=st.integers(0, 4))
    def sweep(self, budget):
        self.twins.sweep(budget)

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0, 41.0]))
    def wait(self, seconds):
        self.twins.now += seconds

    @invariant()
    def both_agree(self):
        self.twins.check()

    def teardown(self):
        self.twins.end()


Orders.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestOrders = Orders.TestCase


@pytest.mark.parametrize(("seed", "block"), [(1, 2), (2, 4)])
def test_twenty_thousand_random_steps(seed, block):
    """After each of 20,000 random steps the tree says what the slow truth says, and evictable + locked = total."""
    walk(random.Random(seed), 20_000, block)


def walk(dice: random.Random, steps: int, block: int = BLOCK) -> None:
    """Take random steps on both, mostly the ones that build."""
    twins = Twins(block)
    for _ in range(steps):
        request = dice.choice(twins.requests) if twins.requests else None
        namespace, tokens = dice.choice(SPACES), tuple(dice.choices((0, 1), k=dice.randrange(12)))
        match step := dice.choices(list(ODDS), list(ODDS.values()))[0]:
            case "lease" if len(twins.requests) < 6:
                twins.lease(namespace, tokens, dice.choice(sorted(CLASSES)))
            case "publish" if request and len(request.end) < 14:
                twins.publish(request, tuple(dice.choices((0, 1), k=dice.randrange(4) * block)))
            case "partial" if request:
                twins.keep_partial(request, tuple(dice.choices((0, 1), k=dice.randrange(1, block))))
            case "release" | "copied" | "adopt" if request:
                getattr(twins, step)(request)
            case "evict":
                twins.evict(dice.randrange(5))
            case "sweep":
                twins.sweep(dice.randrange(4))
            case "wait":
                twins.now += dice.choice((0.0, 0.3, 1.0, 4.0))
        twins.evict(max(0, twins.tree.stats().blocks - CAPACITY))
        twins.check()
    twins.end()
