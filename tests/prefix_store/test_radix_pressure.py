"""The tree under pressure: what goes first, and what never goes."""

from __future__ import annotations

import random

from prefix_store.retention import Kept
from tests.prefix_store.shelf import HOME, B
from tests.prefix_store.twins import pack, retention, space


def test_promised_outlives_held_under_pressure(shelf):
    """However long unused, a promised block goes after every held one."""
    shelf.put("prom", 0.0, retention(kept=Kept.PROMISED))
    shelf.put("held", 100.0)
    assert shelf.evict(2, 101.0) == ["held", "prom"]


def test_promised_go_by_priority_and_then_by_least_recent_use(shelf):
    """The lowest priority first; among equals the one unused longest."""
    for now, (word, priority) in enumerate([("high", 90), ("old ", 50), ("new ", 50), ("low ", 10)]):
        shelf.put(word.strip().ljust(B, "_"), float(now), retention(kept=Kept.PROMISED, priority=priority))
    assert shelf.evict(4, 10.0) == ["low_", "old_", "new_", "high"]


def test_held_go_by_least_recent_use(shelf):
    """A hit moves a block to the end of the line."""
    for now, word in enumerate(["aaaa", "bbbb", "cccc"]):
        shelf.put(word, float(now))
    shelf.hit("aaaa", 5.0)
    assert shelf.evict(3, 6.0) == ["bbbb", "cccc", "aaaa"]


def test_a_promise_that_was_written_again_as_held_is_held(shelf):
    """An expired promise renewed without one goes like any held block, before a promise of the same age."""
    shelf.put("lost", 0.0, retention(10.0, kept=Kept.PROMISED, priority=90))
    reader = shelf.take("lost", 5.0)
    shelf.put("lost", 50.0)
    shelf.put("prom", 0.0, retention(kept=Kept.PROMISED, priority=50))
    shelf.release(reader, 50.0)
    assert shelf.evict(2, 51.0) == ["lost", "prom"]


def test_a_promise_taken_over_by_a_longer_one_has_that_ones_priority(shelf):
    """The longest live class holds, its priority with it: the order of pressure follows at once."""
    shelf.put("over", 0.0, retention(100.0, kept=Kept.PROMISED, priority=90))
    shelf.put("prom", 0.0, retention(900.0, kept=Kept.PROMISED, priority=50))
    lease = shelf.take("", 0.0)
    shelf.write(lease, "over", 0.0, retention(900.0, kept=Kept.PROMISED, priority=10))
    shelf.release(lease, 0.0)
    assert shelf.evict(2, 1.0) == ["over", "prom"]


def test_expired_go_before_anything_else(shelf):
    """Under pressure what is expired goes first, though it was promised and used last."""
    shelf.put("held", 0.0)
    shelf.put("dead", 1.0, retention(10.0, since=1.0, kept=Kept.PROMISED))
    assert shelf.evict(1, 11.0) == ["dead"]


def test_truncation_cuts_only_as_far_as_needed(shelf):
    """A long leaf loses as many blocks from its end as room is needed for."""
    shelf.put("abcd efgh ijkl mnop")
    assert shelf.evict(1, 1.0) == ["mnop"]
    assert sorted(shelf.evict(2, 1.0)) == ["efgh", "ijkl"]
    assert shelf.look("abcd efgh", 2.0) == "abcd"


def test_eviction_takes_leaves_first_and_leaves_no_hole(shelf):
    """With the middle of a path unused longest, its end still goes first, and what is left is reached in full."""
    path = ["aaaa", "bbbb", "cccc", "dddd"]
    for length in range(1, 5):
        shelf.put(" ".join(path[:length]), 1.0)
    for node in shelf.nodes():
        node.used = 0.0 if node.payload == ["bbbb"] else node.used
    for left in (3, 2, 1, 0):
        assert shelf.evict(1, 10.0) == [path[left]]
        assert shelf.look(" ".join(path), 10.0) == " ".join(path[:left])
        shelf.check()
    assert (shelf.stats().nodes, shelf.stats().blocks, shelf.stats().idle) == (0, 0, 0)


def test_evicting_everything_returns_everything(shelf):
    """Memory goes back to nothing, namespaces included."""
    for number in range(40):
        shelf.put(
            f"{number % 3:04} {number % 7:04} {number:04}", float(number), namespace=space(tenant=f"{number % 2}")
        )
    blocks = shelf.all()
    assert sorted(shelf.evict(10_000, 50.0)) == blocks
    assert (shelf.all(), shelf._roots, shelf.evict(1, 50.0)) == ([], {}, [])


def test_queues_stay_bounded_under_churn(shelf):
    """After each of 50,000 steps both queues hold at most twice the nodes and a little."""
    dice, lease = random.Random(3), shelf.take("", 0.0)
    for step in range(50_000):
        now = float(step)
        if dice.random() < 0.5:
            key = pack([dice.randrange(40), 0, 0, 0])
            held = shelf.lease(HOME, key, now)
            if not held.tokens:
                shelf.publish(held, key, ["x"], now, retention(dice.choice((3.0, 30.0, 3000.0)), since=now))
            shelf.release(held, now)
        elif dice.random() < 0.5:
            shelf.evict(1, now)
        else:
            shelf.sweep(now, 2)
        longest = max(len(shelf._expiring), len(shelf._pressed))
        assert longest <= 2 * shelf.stats().nodes + 64
    shelf.release(lease, now)


def test_the_order_stands_while_a_queue_is_cleared_out(shelf):
    """Leaves are in the right order though half of a queue was moved and nodes that are gone are still in it."""
    used = random.Random(4).sample(range(1000), 250)
    words = {now: chr(0x1000 + now) + "___" for now in used}  # no two begin alike, so that none is another's tail
    for now, word in words.items():
        shelf.put(word, float(now), retention(9000.0))
    for name in range(150):
        shelf.put(f"{chr(0x2000 + name)}___", 0.0, retention(10.0))
    for _ in range(150):
        shelf.sweep(1000.0, 1)
    assert shelf._pressed._heap and shelf._pressed._aged
    evicted = [block for _ in used for block in shelf.evict(1, 1000.0)]
    assert evicted == [words[now] for now in sorted(used)]
