"""What is believed of replicas: against a plain dictionary of prefixes, in every order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefix_store.residency import Residency
from prefix_store.residency_node import LINK_BYTES, Held

REPLICAS = ("a", "b", "c")
LETTERS = st.text(alphabet="xy", min_size=1, max_size=7)


def path(text: str) -> bytes:
    """A chain in which each link commits to all letters before it."""
    return b"".join(text[: end + 1].encode().rjust(LINK_BYTES, b".") for end in range(len(text)))


def blocks(held: dict[str, Held]) -> dict[str, int]:
    """How much of a path each replica holds."""
    return {name: one.blocks for name, one in held.items()}


class Beliefs(RuleBasedStateMachine):
    """The tree beside a dictionary from every believed prefix to its deadline and last use."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Residency()
        self.now = 0.0
        self.known: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in REPLICAS}

    def live(self, name: str, text: str) -> int:
        """How many letters of `text` the dictionary believes a replica to hold."""
        depth = 0
        while depth < len(text) and self.known[name].get(text[: depth + 1], (0.0, 0.0))[0] > self.now:
            depth += 1
        return depth

    @rule(by=st.floats(0.5, 20))
    def wait(self, by: float) -> None:
        self.now += by

    @rule(name=st.sampled_from(REPLICAS), text=LETTERS, ttl=st.sampled_from([5.0, 60.0]))
    def note(self, name: str, text: str, ttl: float) -> None:
        self.tree.note(name, path(text), self.now + ttl, self.now)
        for end in range(1, len(text) + 1):
            before = self.known[name].get(text[:end], (0.0, 0.0))
            self.known[name][text[:end]] = max(before[0], self.now + ttl), self.now

    @rule(name=st.sampled_from(REPLICAS))
    def forget(self, name: str) -> None:
        assert self.tree.forget(name) == len(self.known[name])
        self.known[name] = {}

    @rule(text=LETTERS)
    def match(self, text: str) -> None:
        expected = {name: depth for name in REPLICAS if (depth := self.live(name, text))}
        assert blocks(self.tree.match(path(text), self.now)) == expected

    @rule(text=LETTERS, among=st.lists(st.sampled_from(REPLICAS), unique=True))
    def match_among(self, text: str, among: list[str]) -> None:
        expected = {name: depth for name in among if (depth := self.live(name, text))}
        assert blocks(self.tree.match(path(text), self.now, among)) == expected

    @precondition(lambda self: any(self.known.values()))
    @rule(name=st.sampled_from(REPLICAS), text=LETTERS)
    def contradict(self, name: str, text: str) -> None:
        depth = self.live(name, text)
        used = self.tree.last_use(name, path(text), depth) if depth else None
        if used is None:
            return
        assert used == self.known[name][text[:depth]][1]
        self.tree.contradict(name, used)
        gone = {prefix for prefix, (_, last) in self.known[name].items() if last <= used}
        self.known[name] = {
            prefix: times
            for prefix, times in self.known[name].items()
            if not any(prefix.startswith(one) for one in gone)
        }

    @rule()
    def sweep(self) -> None:
        self.tree.sweep(self.now, 100)
        for name in REPLICAS:
            gone = {prefix for prefix, (deadline, _) in self.known[name].items() if deadline <= self.now}
            for prefix in gone:
                del self.known[name][prefix]

    @invariant()
    def right(self) -> None:
        self.tree.check()
        assert {name: self.tree.blocks(name) for name in REPLICAS} == {n: len(held) for n, held in self.known.items()}


Beliefs.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestBeliefs = Beliefs.TestCase


def test_a_replica_is_believed_to_hold_no_more_than_it_can() -> None:
    """The end used longest ago goes first, the shared beginning last."""
    tree = Residency()
    tree.bound("a", 6)
    tree.note("a", path("xxx"), 100.0, 0.0)
    tree.note("a", path("xxyyy"), 100.0, 1.0)
    assert blocks(tree.match(path("xxx"), 2.0)) == {"a": 3}
    tree.note("a", path("xxyyyy"), 100.0, 2.0)
    assert blocks(tree.match(path("xxx"), 3.0)) == {"a": 2}
    assert blocks(tree.match(path("xxyyyy"), 3.0)) == {"a": 6}
    tree.bound("a", 3)
    assert blocks(tree.match(path("xxyyyy"), 3.0)) == {"a": 3}
    tree.check()


def test_a_path_longer_than_a_replica_keeps_its_beginning() -> None:
    """What cannot be held whole is held as far as it fits."""
    tree = Residency()
    tree.bound("a", 2)
    tree.note("a", path("xyxyxy"), 100.0, 0.0)
    assert blocks(tree.match(path("xyxyxy"), 1.0)) == {"a": 2}
    tree.check()


def test_renewing_a_beginning_does_not_renew_what_follows() -> None:
    """A longer promise for the first part leaves the rest its own deadline."""
    tree = Residency()
    tree.note("a", path("xxxx"), 10.0, 0.0)
    tree.note("a", path("xx"), 50.0, 1.0)
    assert blocks(tree.match(path("xxxx"), 9.0)) == {"a": 4}
    assert blocks(tree.match(path("xxxx"), 10.0)) == {"a": 2}
    assert blocks(tree.match(path("xxxx"), 50.0)) == {}
    tree.check()


@pytest.mark.parametrize("forgotten", ["a", "b"])
def test_one_replica_forgotten_leaves_the_other(forgotten: str) -> None:
    """Both held the same run; only one's beliefs end."""
    tree = Residency()
    for name in ("a", "b"):
        tree.note(name, path("xyxy"), 10.0, 0.0)
    assert tree.forget(forgotten) == 4
    other = "b" if forgotten == "a" else "a"
    assert blocks(tree.match(path("xyxy"), 1.0)) == {other: 4}
    assert tree.forget(other) == 4
    assert tree.nodes == 0
    tree.check()
