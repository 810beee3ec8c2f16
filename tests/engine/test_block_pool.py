"""The pool: no block is lost or doubled, and neighbours stay together."""

from __future__ import annotations

import random

import pytest

from engine.block_pool import BlockPool, OutOfBlocks
from engine.block_table import BlockTable


def test_taking_more_than_is_free_takes_nothing():
    """A refused take leaves the pool as it was."""
    pool = BlockPool(4)
    pool.take(3)
    with pytest.raises(OutOfBlocks, match="wanted 2 blocks, 1 are free"):
        pool.take(2)
    assert pool.free == 1
    pool.check()


def test_a_pool_without_blocks_is_refused():
    """A pool needs at least one block."""
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_growth_stays_contiguous():
    """A sequence that grows beside another one gets the block after its last, because runs start apart."""
    pool = BlockPool(64)
    one, other = pool.take(4), pool.take(4)
    for _ in range(5):
        one += pool.take(1, after=one[-1])
        other += pool.take(1, after=other[-1])
    assert one == list(range(one[0], one[0] + 9))
    assert other == list(range(other[0], other[0] + 9))
    pool.check()


def test_a_run_that_fits_nowhere_is_made_of_the_largest_extents():
    """Fragmentation splits a run, it never refuses one that fits in all."""
    pool = BlockPool(10)
    blocks = pool.take(10)
    pool.give([blocks[i] for i in (0, 1, 2, 5, 6, 9)])
    assert pool.extents == 3
    assert sorted(pool.take(6)) == [0, 1, 2, 5, 6, 9]
    pool.check()


def test_the_tightest_extent_that_fits_is_used():
    """A short run does not break the long extent."""
    pool = BlockPool(12)
    blocks = pool.take(12)
    pool.give(blocks[0:2] + blocks[4:9])
    assert pool.take(2) == [0, 1]
    pool.check()


def test_giving_back_twice_is_our_bug():
    """A block given back twice is caught at once."""
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.give(blocks)
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give(blocks[:1])


@pytest.mark.parametrize("seed", range(5))
def test_random_traffic_loses_nothing(seed):
    """After 2,000 random takes and gives every block is free or held exactly once, and all come back."""
    chance, pool, held = random.Random(seed), BlockPool(23), []
    for _ in range(2_000):
        if held and chance.random() < 0.5:
            pool.give(held.pop(chance.randrange(len(held))))
        else:
            count = chance.randint(1, 6)
            if count <= pool.free:
                after = held[-1][-1] if held and chance.random() < 0.5 else None
                held.append(pool.take(count, after=after))
        pool.check()
        everything = [block for blocks in held for block in blocks]
        assert len(everything) == len(set(everything)) == pool.size - pool.free
    for blocks in held:
        pool.give(blocks)
    assert (pool.free, pool.extents) == (23, 1)


def test_extents_follow_the_table():
    """Extents are the runs of the table, cut at the token asked for."""
    table = BlockTable(4, [7, 8, 9, 2, 3])
    assert table.extents(18) == [(28, 12), (8, 6)]
    assert table.extents(3) == [(28, 3)]
    assert table.slots(10, 6) == [(38, 2), (8, 4)]
    assert table.slots(13, 2) == [(9, 2)]
    table.replace(3, [10, 11])
    assert table.extents(20) == [(28, 20)]
    assert (len(table), table.tokens, table.last) == (5, 20, 11)
    table.check()
