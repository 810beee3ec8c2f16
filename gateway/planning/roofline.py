"""How fast a machine can be at most: the longer of computing and of moving bytes. Pure.

A bound and no forecast: no kernel reaches both roofs, and nothing but matrices, attention, weights, K and V is counted.
Rules: a step reads the weights once for all its tokens; of experts it reads as many as its tokens are expected to
choose, evenly and independently; a sliding layer reads its window; only sampled tokens go through the last projection.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gateway.planning.kv import layer_bytes, read_bytes
from gateway.planning.parameters import Parameters
from gateway.planning.shape import Layer

MOST_BATCH: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """A machine's two."""

    flops: float  # operations a second
    bandwidth: float  # bytes a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What some work takes."""

    flops: float
    bytes: float
    seconds: float
    compute_s: float  # what of it computing alone would take
    memory_s: float

    @property
    def bound(self) -> str:
        """Which roof is the lower."""
        return "compute" if self.compute_s >= self.memory_s else "memory"


@dataclass(frozen=True)
class Model:
    """What of a model its speed depends on."""

    parameters: Parameters
    dense_bytes: float  # weights that every step reads
    expert_bytes: float
    layers: tuple[Layer, ...]
    kv_dtype: str

    @cached_property
    def kinds(self) -> Counter[Layer]:
        """Its layers, equal ones together."""
        return Counter(self.layers)


def step(model: Model, roofs: Roofs, *, new: int, past: int, batch: float = 1, sampled: bool = True) -> Cost:
    """Return what one step takes: `batch` sequences of `past` tokens each, with `new` more to compute."""
    tokens = batch * new
    kept = model.parameters
    flops = 2.0 * tokens * (kept.body + kept.active_experts) + 2.0 * batch * sampled * kept.last
    moved = model.dense_bytes + model.expert_bytes * touched(kept, tokens)
    for layer, count in model.kinds.items():
        flops += 4.0 * batch * count * layer.heads * layer.head_dim * pairs(new, past, layer.window)
        seen = past if layer.window is None else min(past, layer.window - 1)
        kv = seen * read_bytes(layer, model.kv_dtype) + new * layer_bytes(layer, model.kv_dtype)
        moved += batch * count * kv
    return _cost(flops, moved, flops / roofs.flops, moved / roofs.bandwidth)


def prefill(model: Model, roofs: Roofs, *, new: int, past: int, chunk: int) -> Cost:
    """Return what computing `new` tokens after `past` cached ones takes, so many a step."""
    parts = [
        step(model, roofs, new=min(chunk, new - at), past=past + at, sampled=at + chunk >= new)
        for at in range(0, new, chunk)
    ]
    return Cost(
        flops=sum(part.flops for part in parts),
        bytes=sum(part.bytes for part in parts),
        seconds=sum(part.seconds for part in parts),
        compute_s=sum(part.compute_s for part in parts),
        memory_s=sum(part.memory_s for part in parts),
    )


def break_even(model: Model, roofs: Roofs, *, past: int) -> int | None:
    """Return the smallest batch at which decoding is bound by computing; None where it never is.

    What computing takes beyond moving is convex in the batch and below zero at none, so it crosses zero once.
    """
    low, high = 0, 1
    while step(model, roofs, new=1, past=past, batch=high).bound == "memory":
        low, high = high, 2 * high
        if high > MOST_BATCH:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if step(model, roofs, new=1, past=past, batch=middle).bound == "memory":
            low = middle
        else:
            high = middle
    return high


def touched(parameters: Parameters, tokens: float) -> float:
    """Return the share of the experts that so many tokens are expected to choose."""
    if not parameters.expert_count:
        return 0.0
    return 1.0 - float((1.0 - parameters.chosen / parameters.expert_count) ** tokens)


def pairs(new: int, past: int, window: int | None) -> int:
    """Return how many pairs of a new token and one that it sees there are, itself included."""
    growing = new if window is None else max(0, min(new, window - past))  # tokens that see all before them
    full = 0 if window is None else (new - growing) * window
    return growing * past + growing * (growing + 1) // 2 + full


def _cost(flops: float, moved: float, compute_s: float, memory_s: float) -> Cost:
    return Cost(flops=flops, bytes=moved, seconds=max(compute_s, memory_s), compute_s=compute_s, memory_s=memory_s)
