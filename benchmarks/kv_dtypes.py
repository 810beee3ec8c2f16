"""What storing keys and values in another dtype costs and saves: bytes of a token, a decode step and a short suffix.

One model in this process, one pool for each dtype with the same past in it; all take turns in every round, in another
order each time, so that a busy moment hits all. Whole forward passes, and the attention of all layers alone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Advance, Result, Series, Target
from engine.attention import Scoring
from engine.batch import Batch, Rows
from engine.kv_tensors import KVTensors
from engine.model import PagedModel, load
from engine.stored import STORED
from engine.weights import DEFAULT_MODEL, resolve_in_subprocess
from gateway.config import Settings, cache_dir

NAME = "kv_dtypes"
CACHED_TOKENS = 6144
SUFFIX_TOKENS = 20
ROUNDS = 15
BLOCK = 16
PLAIN = "float32"
DECODE, ATTENTION, SUFFIX = "decode step", "attention of a decode step", f"{SUFFIX_TOKENS} new tokens"
INT8_OVER_PLAIN = 1.5
INT8_BYTES_OVER_HALF = 0.55

Times = dict[tuple[str, str], list[float]]  # milliseconds by what was timed and dtype


class Filled:
    """A pool in one dtype with `tokens` in it, in one stretch, and room for a suffix behind them."""

    def __init__(self, model: PagedModel, name: str, tokens: int) -> None:
        self.model = PagedModel(model.module, weights=model.weights, kv_cache_dtype=name)
        self.tokens = tokens
        layout = self.model.layout
        blocks = -(-(tokens + SUFFIX_TOKENS) // BLOCK)
        self.kv = KVTensors(layout, blocks=blocks, block_tokens=BLOCK, device=torch.device("cpu"))
        slots = torch.arange(tokens)
        for layer in range(layout.layers):
            self.kv.write(layer, slots, *torch.randn(2, tokens, layout.kv_heads, layout.head_dim))

    def step_ms(self, new: int) -> float:
        """Time one forward pass of so many new tokens behind what is there."""
        batch = self._batch(new)
        return _ms(lambda: self.model.forward(batch, self.kv))

    def attention_ms(self) -> float:
        """Time the attention of all layers in a decode step."""
        layout, batch = self.model.layout, self._batch(1)
        query = torch.randn(1, self.model.config.num_attention_heads, layout.head_dim)
        key, value = torch.randn(2, 1, layout.kv_heads, layout.head_dim)
        scoring = Scoring(layout.head_dim**-0.5)

        def attend() -> None:
            for layer in range(layout.layers):
                self.model.attend(query, key, value, *self.kv.read(layer, query.dtype), batch, scoring)

        return _ms(attend)

    def _batch(self, new: int) -> Batch:
        slots = torch.arange(self.tokens, self.tokens + new)
        past = ((0, self.tokens + 1 if new == 1 else self.tokens),)
        rows = Rows(0, new, past, causal=new > 1, own=past)
        ids = slots % int(self.model.config.vocab_size)
        return Batch(ids, slots, slots, (rows,), torch.tensor([new - 1]), ())


def steps() -> int:
    """Return how often `run` advances."""
    return 1 + ROUNDS + 1


def run(advance: Advance) -> Result:
    """Measure on the default model."""
    folder = resolve_in_subprocess(DEFAULT_MODEL, cache_dir(Settings(), os.environ), lambda *_: None)
    model = load(Path(folder.path))
    pools = {name: Filled(model, name, CACHED_TOKENS) for name in STORED}
    advance("the pools are full")
    return result(pools, measure(pools, ROUNDS, advance), folder.name)


def measure(pools: dict[str, Filled], rounds: int, advance: Advance) -> Times:
    """Time everything in each round, in another order; one round to warm up is thrown away."""
    dice = random.Random(17)
    times: Times = {(what, name): [] for what in (DECODE, ATTENTION, SUFFIX) for name in pools}
    for round_ in range(rounds + 1):
        for what, name in dice.sample(list(times), len(times)):
            pool = pools[name]
            took = pool.attention_ms() if what == ATTENTION else pool.step_ms(1 if what == DECODE else SUFFIX_TOKENS)
            if round_:
                times[what, name].append(took)
        advance(f"round {round_} of {rounds}")
    return times


def result(pools: dict[str, Filled], times: Times, model: str) -> Result:
    """Hold what was measured against what is promised."""
    sizes = {name: pool.model.layout.bytes_per_token for name, pool in pools.items()}
    tokens = next(iter(pools.values())).tokens
    return Result(
        name=NAME,
        targets=(
            Target(
                name=f"a decode step on {tokens:,} cached tokens, int8 / {PLAIN}",
                value=_paired(times[DECODE, "int8"], times[DECODE, PLAIN]),
                limit=INT8_OVER_PLAIN,
                unit="ratio",
                ceiling=f"int8 reads {sizes['int8'] / sizes[PLAIN]:.2f} of the bytes; all else is the same",
            ),
            Target(
                name="bytes of a token, int8 / float16",
                value=sizes["int8"] / sizes["float16"],
                limit=INT8_BYTES_OVER_HALF,
                unit="ratio",
                ceiling="half, and the scales",
            ),
        ),
        series=tuple(
            Series(name=f"{what}, {name}", unit="ms", values=tuple(values)) for (what, name), values in times.items()
        ),
        facts={
            "model": model,
            "cached_tokens": tokens,
            **{f"bytes_per_token_{name}": size for name, size in sizes.items()},
            **{
                f"{what}, {name} / {PLAIN}": round(_paired(times[what, name], times[what, PLAIN]), 2)
                for what, name in times
                if name != PLAIN
            },
        },
    )


def _paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return Series(name="", unit="", values=tuple(a / b for a, b in zip(ours, theirs, strict=True))).median


@torch.inference_mode()
def _ms(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)
