"""The slow truth decides as the real tree does."""

from __future__ import annotations

import random

import pytest

from benchmarks.traces import SPACE
from gateway.advice.replay import Replay
from prefix_store.radix import RadixTree
from prefix_store.retention import Retention
from prefix_store.reuse import Use

BLOCK = 512


def use(at, blocks, ttl=10.0):
    """One prompt of whole blocks."""
    tokens = len(blocks) * BLOCK
    return Use(at=at, group="a", ttl=ttl, tokens=tokens, covered=tokens, blocks=blocks, block_tokens=BLOCK)


@pytest.mark.parametrize("seed", range(20))
def test_reads_under_pressure_equal_the_trees(seed):
    """Under a TTL and in a room for few blocks, replay and radix tree read the same of every prompt."""
    draw, room, ttl = random.Random(seed), 12, 40.0
    tree: RadixTree[int] = RadixTree(BLOCK)
    replay = Replay(ttl=ttl, capacity=room)
    now, held, number = 0, 0, 0
    talks = [[at * 1000] for at in range(6)]
    for _ in range(200):
        now += draw.randint(1, 5)
        talk = draw.choice(talks)
        if len(talk) < 6:
            number += 1
            talk.append(number)
        elif draw.random() < 0.3:
            del talk[2:]
        prompt = b"".join(block.to_bytes(4, "little") * BLOCK for block in talk)
        lease = tree.lease(SPACE, prompt, float(now))
        found = lease.tokens // BLOCK
        held -= len(tree.release_tail(lease, float(now)))
        held -= len(tree.sweep(float(now), 1000))
        fresh = len(talk) - found
        if held + fresh > room:
            held -= len(tree.evict(held + fresh - room, float(now)))
        retention = Retention(klass="x", ttl_s=ttl, since=float(now))
        tree.publish(lease, prompt[found * BLOCK * 4 :], talk[found:], float(now), retention)
        held += fresh
        held -= len(tree.release(lease, float(now)))
        hashes = [hash(tuple(talk[: end + 1])) for end in range(len(talk))]
        assert replay.feed(use(now, hashes)) == found
    assert replay.evicted > 0


def test_lfu_keeps_what_is_used_often():
    """A block that was used three times outlives one used once and later; by recency it would go."""
    uses = [use(0, [1]), use(1, [1]), use(2, [1]), use(3, [2]), use(4, [3]), use(5, [1])]
    read = {}
    for order in ("lru", "lfu"):
        replay = Replay(capacity=2, order=order)
        read[order] = [replay.feed(one) for one in uses]
    assert read == {"lru": [0, 1, 1, 0, 0, 0], "lfu": [0, 1, 1, 0, 0, 1]}


def test_leaves_go_first():
    """Of one prompt the end goes before the beginning, in either order."""
    for order in ("lru", "lfu"):
        replay = Replay(capacity=3, order=order)
        for one in (use(0, [1, 2, 3]), use(1, [9])):
            replay.feed(one)
        assert replay.feed(use(2, [1, 2, 3])) == 2


def test_what_is_expired_goes_before_what_is_alive():
    """Room comes from expired blocks first, however often they were used."""
    replay = Replay(capacity=2, order="lfu")
    for one in (use(0, [1], ttl=5), use(1, [1], ttl=5), use(2, [2], ttl=50), use(20, [3], ttl=50)):
        replay.feed(one)
    assert (replay.feed(use(21, [2])), replay.evicted) == (1, 0)


def test_a_prompt_larger_than_the_room_keeps_its_beginning():
    """Of five blocks three stay, and they are read the next time."""
    replay = Replay(capacity=3)
    assert [replay.feed(use(at, [1, 2, 3, 4, 5])) for at in (0, 1)] == [0, 3]
    assert replay.blocks == 3
