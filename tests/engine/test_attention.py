"""Packed attention says what the plain reference says, at any fragmentation."""

from __future__ import annotations

import pytest
import torch

from engine.attention import packed, reference
from engine.batch import Batch, Rows

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
        rows.append(Rows(first, first + count, _scattered(generator, past), causal))
        first += count
    batch = Batch(*(torch.zeros(first, dtype=torch.int64),) * 3, tuple(rows), torch.zeros(0, dtype=torch.int64), ())
    query, key, value = (
        normal(first, HEADS, HEAD_DIM),
        normal(first, KV_HEADS, HEAD_DIM),
        normal(first, KV_HEADS, HEAD_DIM),
    )
    keys, values = normal(SLOTS, KV_HEADS, HEAD_DIM), normal(SLOTS, KV_HEADS, HEAD_DIM)
    got = packed.attend(query, key, value, keys, values, batch, HEAD_DIM**-0.5)
    expected = reference.attend(query, key, value, keys, values, batch, HEAD_DIM**-0.5)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_merge_of_disjoint_keys_equals_attention_over_all():
    """Two halves merged by log-sum-exp are attention over the whole, even when one half dominates."""
    torch.manual_seed(3)
    query, keys, values = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 20, 8) * 5, torch.randn(1, 1, 20, 8)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    whole, _ = flash(query, keys, values, 0.0, False)
    halves = [flash(query, keys[:, :, part], values[:, :, part], 0.0, False) for part in (slice(0, 7), slice(7, 20))]
    torch.testing.assert_close(packed.merge([(out, lse) for out, lse in halves]), whole, rtol=1e-5, atol=1e-5)
