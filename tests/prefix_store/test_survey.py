"""Going over a tree that changes between two nodes: what stays is told once, after what is above it."""

from __future__ import annotations

import random
from itertools import count

import pytest

from prefix_store.node import Node
from prefix_store.survey import survey
from tests.prefix_store.shelf import HOME, B, Shelf, letters
from tests.prefix_store.twins import retention, space


def test_one_tenants_nodes_are_told_and_purged_ones_are_not(shelf: Shelf) -> None:
    """Another tenant's are left out where one is asked for, and what a lease keeps after a purge always is."""
    other = space(tenant="other")
    shelf.put("aaaa")
    shelf.put("bbbb", namespace=other)
    lease = shelf.take("cccc", 0.0)
    shelf.write(lease, "cccc", 0.0)
    shelf.detach(lease.node, 0.0)
    assert sorted(word for node, _ in survey(shelf) for word in node.payload) == ["aaaa", "bbbb"]
    assert [node.payload for node, _ in survey(shelf, "other")] == [["bbbb"]]
    shelf.release(lease, 0.0)


def test_a_node_cut_in_two_before_it_was_told_is_told_as_two(shelf: Shelf) -> None:
    """The new upper half comes first, under the node that was above the whole."""
    shelf.put("aaaa bbbb cccc")
    shelf.put("aaaa xxxx")
    looking = survey(shelf)
    top, _ = next(looking)
    shelf.hit("aaaa bbbb", 1.0)
    rest = list(looking)
    assert top.payload == ["aaaa"]
    assert {tuple(node.payload): tuple(above.payload) for node, above in rest} == {
        ("xxxx",): ("aaaa",),
        ("bbbb",): ("aaaa",),
        ("cccc",): ("bbbb",),
    }


@pytest.mark.parametrize("seed", range(30))
def test_what_is_there_at_both_ends_is_told_exactly_once(seed: int) -> None:
    """While prompts are read, written, evicted and purged between two nodes, no block is missed or doubled."""
    dice, shelf, names = random.Random(seed), Shelf(), count()

    def prompt() -> str:
        return " ".join(dice.choice("abc") * B for _ in range(dice.randrange(1, 7)))

    def put(text: str, now: float) -> None:
        lease = shelf.take(text, now)
        missing = text.split()[lease.tokens // B :]
        fresh = [str(next(names)) for _ in missing]
        shelf.publish(lease, letters("".join(missing)), fresh, now, retention(since=now))
        shelf.release(lease, now)

    for now in range(40):
        put(prompt(), float(now))
    before, told = set(shelf.payloads()), []
    parents: set[Node[str]] = {shelf.roots[HOME]}
    for now, (node, above) in enumerate(survey(shelf), 100):
        assert above in parents
        parents.add(node)
        told += node.payload
        match dice.randrange(5):
            case 0 | 1:
                put(prompt(), float(now))
            case 2:
                shelf.hit(prompt(), float(now))
            case 3:
                shelf.evict(1, float(now))
            case 4 if dice.random() < 0.2 and (there := list(shelf.nodes())):
                shelf.detach(dice.choice(there), float(now))
    shelf.check()
    assert len(told) == len(set(told))
    stayed = before & set(shelf.payloads())
    assert stayed <= set(told)
