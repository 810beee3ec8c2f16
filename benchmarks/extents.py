"""What it costs that a prefix lies in many extents, and when copying it into one pays. The attention of all layers.

Keys and values lie in a pool of their own, in blocks that are scattered on purpose. Decisions about copying are the
engine's; this only says from how many extents and steps on a copy would have been worth its time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import torch

from benchmarks.cost import COPY, DECODE, SUFFIX, SUFFIX_TOKENS, Points
from benchmarks.measure import Advance
from engine.attention import Scoring
from engine.batch import Batch, Rows
from engine.block_pool import BlockId
from engine.block_table import BlockTable
from engine.kv_tensors import KVTensors
from engine.model import PagedModel


class Scattered:
    """One prefix of `tokens`, laid out again and again; its copy goes behind all layouts."""

    def __init__(self, model: PagedModel, *, tokens: int, block_tokens: int) -> None:
        self.model, self.tokens, self.block_tokens = model, tokens, block_tokens
        self.blocks = -(-(tokens + 1) // block_tokens)  # a decode step's own token too
        self.kv = KVTensors(
            model.layout, blocks=3 * self.blocks, block_tokens=block_tokens, device=model.device
        )  # a layout with a gap after every block, and the copy
        for stored in chain.from_iterable(self.kv.rows):
            stored.data.normal_()

    def layouts(self) -> tuple[int, ...]:
        """Return numbers of extents: powers of two, and every block on its own."""
        return (*(1 << power for power in range(self.blocks.bit_length()) if 1 << power < self.blocks), self.blocks)

    def table(self, extents: int) -> BlockTable:
        """Lay the prefix out in exactly so many extents, in shuffled places."""
        return BlockTable(self.block_tokens, scatter(self.blocks, extents))

    def attention_ms(self, table: BlockTable, new: int) -> float:
        """Time the attention of all layers for so many new tokens; one is a decode step."""
        layout, heads = self.model.layout, self.model.config.num_attention_heads
        past = tuple(table.extents(self.tokens + 1 if new == 1 else self.tokens))
        nothing = torch.empty(0, dtype=torch.int64)
        rows = Rows(0, new, past, causal=new > 1, own=past)
        batch = Batch(nothing, nothing, nothing, (rows,), nothing, ())
        query = torch.randn(new, heads, layout.head_dim)
        key, value = torch.randn(2, new, layout.kv_heads, layout.head_dim)

        def attend() -> None:
            for layer in range(layout.layers):
                keys, values = self.kv.read(layer, query.dtype)
                self.model.attend(query, key, value, keys, values, batch, Scoring(layout.head_dim**-0.5))

        return _ms(attend)

    def copy_ms(self, table: BlockTable) -> float:
        """Time copying every extent of every layer behind each other."""

        def copy() -> None:
            at = 2 * self.blocks * self.block_tokens
            for slot, count in table.extents(self.tokens):
                self.kv.copy(slot, at, count)
                at += count

        return _ms(copy)


def measure(scattered: Scattered, rounds: int, points: Points, advance: Advance) -> None:
    """Time every layout in each round, in another order; one round to warm up is thrown away."""
    dice = random.Random(13)
    for round_ in range(rounds + 1):
        for extents in dice.sample(scattered.layouts(), len(scattered.layouts())):
            table = scattered.table(extents)
            took = {
                DECODE: scattered.attention_ms(table, 1),
                SUFFIX: scattered.attention_ms(table, SUFFIX_TOKENS),
                COPY: scattered.copy_ms(table),
            }
            for curve, ms in took.items() if round_ else ():
                points.add(curve, extents, ms)
        advance(f"a prefix in 1 to {scattered.blocks} extents, round {round_} of {rounds}")


def scatter(blocks: int, extents: int) -> list[BlockId]:
    """Return so many blocks in exactly so many extents: near equal lengths, shuffled places, a gap after each."""
    bounds = [blocks * at // extents for at in range(extents + 1)]
    lengths = [last - first for first, last in pairwise(bounds)]
    places, at = {}, 0
    for which in random.Random(extents).sample(range(extents), extents):
        places[which] = at
        at += lengths[which] + 1
    return [BlockId(places[which] + step) for which in range(extents) for step in range(lengths[which])]


@torch.inference_mode()
def _ms(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)
