"""Packed attention says what the plain reference says, at any fragmentation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention import Scoring, packed, reference
from engine.batch import Batch, Rows
from engine.block_pool import BlockId
from engine.block_table import BlockTable
from engine.cascade import Shared, Stretch, share

HEADS, KV_HEADS, HEAD_DIM, SLOTS = 6, 2, 8, 96


def _scattered(generator: torch.Generator, tokens: int) -> tuple[tuple[int, int], ...]:
    """Cut `tokens` into stretches that lie anywhere in the pool."""
    stretches = []
    while tokens:
        count = min(tokens, int(torch.randint(1, 9, (1,), generator=generator)))
        stretches.append((int(torch.randint(0, SLOTS - count, (1,), generator=generator)), count))
        tokens -= count
    return tuple(stretches)


@pytest.mark.parametrize("seed", range(12))
def test_packed_equals_reference(seed):
    """Decodes, cold prefills and warm prefills in one batch, over scattered stretches, agree within float32 noise."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    shapes = [(1, 13, False), (7, 0, True), (5, 21, True), (1, 1, False), (2, 40, True)]
    rows, first = [], 0
    for count, past, causal in shapes:
        stretches = _scattered(generator, past)
        rows.append(Rows(first, first + count, stretches, causal, stretches))
        first += count
    batch = Batch(*(torch.zeros(first, dtype=torch.int64),) * 3, tuple(rows), torch.zeros(0, dtype=torch.int64), ())
    query, key, value = (
        normal(first, HEADS, HEAD_DIM),
        normal(first, KV_HEADS, HEAD_DIM),
        normal(first, KV_HEADS, HEAD_DIM),
    )
    keys, values = normal(SLOTS, KV_HEADS, HEAD_DIM), normal(SLOTS, KV_HEADS, HEAD_DIM)
    got = packed.attend(query, key, value, keys, values, batch, Scoring(scaling=HEAD_DIM**-0.5))
    expected = reference.attend(query, key, value, keys, values, batch, Scoring(scaling=HEAD_DIM**-0.5))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_merge_of_disjoint_keys_equals_attention_over_all():
    """Two halves merged by log-sum-exp are attention over the whole, even when one half dominates."""
    torch.manual_seed(3)
    query, keys, values = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 20, 8) * 5, torch.randn(1, 1, 20, 8)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    whole, _ = flash(query, keys, values, 0.0, False)
    halves = [flash(query, keys[:, :, part], values[:, :, part], 0.0, False) for part in (slice(0, 7), slice(7, 20))]
    torch.testing.assert_close(packed.merge([(out, lse) for out, lse in halves]), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_shared_stretches_equal_each_on_its_own(seed):
    """Sequences that share beginnings, some of them further than others, attend as if each stood alone."""
    generator = torch.Generator().manual_seed(100 + seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    trunk = ((0, 40),)
    branch = (*trunk, (50, 20))
    pasts = [trunk, (*trunk, (80, 3)), branch, (*branch, (90, 2)), ((0, 30), (44, 4)), ((70, 6),), ()]
    counts = [1, 3, 1, 2, 1, 1, 4]
    shared, own = share(pasts, least=2)
    assert len(shared) == 3
    rows, first = [], 0
    for count, past, rest in zip(counts, pasts, own, strict=True):
        rows.append(Rows(first, first + count, past, count > 1, rest))
        first += count
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = Batch(*(torch.zeros(first, dtype=torch.int64),) * 3, tuple(rows), nothing, (), shared)
    query, key, value = (
        normal(first, HEADS, HEAD_DIM),
        normal(first, KV_HEADS, HEAD_DIM),
        normal(first, KV_HEADS, HEAD_DIM),
    )
    keys, values = normal(SLOTS, KV_HEADS, HEAD_DIM), normal(SLOTS, KV_HEADS, HEAD_DIM)
    got = packed.attend(query, key, value, keys, values, batch, Scoring(scaling=HEAD_DIM**-0.5))
    expected = reference.attend(query, key, value, keys, values, batch, Scoring(scaling=HEAD_DIM**-0.5))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def _covered(shared: tuple[Shared, ...], own: tuple[tuple[Stretch, ...], ...], place: int) -> list[int]:
    """Every slot that a sequence attends to, in no order."""
    stretches = [(one.slot, one.tokens) for one in shared if place in one.members] + list(own[place])
    return sorted(slot for first, tokens in stretches for slot in range(first, first + tokens))


@given(st.data())
def test_what_is_shared_and_what_is_left_are_the_whole_past(data: st.DataObject) -> None:
    """For random trees of blocks, every sequence attends to each slot of its past exactly once."""
    trunks = data.draw(st.lists(st.permutations(range(12)), min_size=1, max_size=3))
    pasts = []
    for _ in range(data.draw(st.integers(1, 6))):
        blocks = data.draw(st.sampled_from(trunks))[: data.draw(st.integers(0, 12))]
        table = BlockTable(4, [BlockId(block) for block in blocks])
        pasts.append(table.extents(data.draw(st.integers(0, table.tokens))))
    shared, own = share(pasts, least=data.draw(st.integers(1, 9)))
    for place, past in enumerate(pasts):
        assert _covered(shared, own, place) == sorted(slot for first, n in past for slot in range(first, first + n))
    assert all(len(one.members) > 1 for one in shared)
