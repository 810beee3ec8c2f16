"""From logits to the next token of each row.

Owns nothing: a draw depends only on the row's logits, what its own request asks for, its own tokens, its seed and the
position, so that neighbours, row order, reuse and preemption never change it, not by a bit: each row that asks for
something special is worked on by itself, in float64. A row that does not costs its share of one argmax.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from engine.messages import Sampling
from engine.penalties import Scores, forbid, penalise, withhold
from engine.weighing import Weighing

_MANTISSA = 53
_FLOORS = (1e-3, 1e-6, -1.0)  # of weights, the likeliest being 1: who is below is not sorted unless it is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What decides one row's token beside its logits."""

    sampling: Sampling
    seed: int
    position: int
    weighing: Weighing | None = None  # of the sequence, where penalties or biases are asked for
    allowed: bytes | None = None  # one bit for each token that a grammar lets through; None: no grammar
    withheld: frozenset[int] = frozenset()  # tokens that would end the answer too early

    @property
    def plain(self) -> bool:
        """Whether the likeliest token by the logits is the answer."""
        return self.weighing is None and self.allowed is None and not self.withheld and self.sampling.temperature <= 0


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Return one token per row of float32 `logits` [rows, vocab], which lie on the CPU and stay as they are."""
    rows = logits.numpy()
    tokens: list[int] = rows.argmax(-1).tolist()
    for row, draw in enumerate(draws):
        if not draw.plain:
            tokens[row] = _choose(rows[row].astype(np.float64), draw)
    return tokens


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that only seed and position decide."""
    bits: int = xxhash.xxh3_64_intdigest(struct.pack("<Qq", seed % 2**64, position))
    return (bits >> (64 - _MANTISSA)) * 2.0**-_MANTISSA


def _choose(scores: Scores, draw: Draw) -> int:
    """Choose from one row [vocab], which is changed."""
    if draw.weighing is not None:
        penalise(scores, draw.sampling, draw.weighing)
    if draw.allowed is not None:
        forbid(scores, draw.allowed)
    if draw.withheld:
        withhold(scores, draw.withheld)
    if draw.sampling.temperature <= 0 or not np.isfinite(scores.max()):  # where nothing is possible, nothing is drawn
        return int(scores.argmax())
    kept, weights = survivors(scores, draw.sampling)
    return _drawn(kept, weights, uniform(draw.seed, draw.position))


def survivors(scores: Scores, sampling: Sampling) -> tuple[NDArray[np.int64] | None, Scores]:
    """Return which tokens may be drawn, in order (None: all), and their weights, the likeliest token's being 1.

    `top_k` cuts first; `top_p` and `min_p` each cut what it left, and the shorter cut holds. Of tokens that are equally
    likely where a cut falls, those with the smaller ids stay.
    """
    kept = _largest(scores, sampling.top_k) if 0 < sampling.top_k < len(scores) else None
    left = scores if kept is None else scores[kept]
    with np.errstate(over="ignore"):  # divided by next to nothing, what is not the likeliest is infinitely far away
        weights = np.exp((left - left.max()) / sampling.temperature)
    inside = None
    if sampling.top_p < 1.0:
        inside = _nucleus(weights, sampling.top_p)
    if sampling.min_p > 0.0:
        likely = weights >= sampling.min_p
        inside = likely if inside is None else inside & likely
    if inside is None:
        return kept, weights
    return (np.flatnonzero(inside) if kept is None else kept[inside]), weights[inside]


def _largest(scores: Scores, count: int) -> NDArray[np.int64]:
    """Return the places of the `count` largest scores, in order."""
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    return np.flatnonzero(_down_to(scores, least, count))


def _nucleus(weights: Scores, top_p: float) -> NDArray[np.bool_]:
    """Mark the smallest leading set that reaches `top_p` of all; the token that crosses the line belongs to it."""
    wanted = top_p * weights.sum()
    floors = iter(_FLOORS)
    reached = leading = weights[:0]
    while not len(reached) or (len(reached) < len(weights) and reached[-1] < wanted):
        leading = np.sort(weights[weights > next(floors)])[::-1]
        reached = np.cumsum(leading)
    count = min(int(np.searchsorted(reached, wanted)) + 1, len(leading))
    return _down_to(weights, leading[count - 1], count)


def _down_to(values: Scores, least: float, count: int) -> NDArray[np.bool_]:
    """Mark the `count` largest, of which `least` is the smallest; of those that equal it, the first ones."""
    inside = values >= least
    spare = int(np.count_nonzero(inside)) - count
    if spare > 0:
        inside[np.flatnonzero(values == least)[-spare:]] = False
    return inside


def _drawn(kept: NDArray[np.int64] | None, weights: Scores, at: float) -> int:
    """Invert the cumulative distribution over the tokens in their own order: nothing need be sorted for it."""
    cumulative = np.cumsum(weights)
    place = int(np.searchsorted(cumulative, at * cumulative[-1], side="right"))
    last = int(np.searchsorted(cumulative, cumulative[-1]))  # the last one of any weight
    place = min(place, last)
    return place if kept is None else int(kept[place])
