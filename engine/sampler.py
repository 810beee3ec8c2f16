"""From logits to the next token of each row.

Owns nothing: a draw depends only on the row's logits, what its own request asks for, its own tokens, its seed and the
position, so that neighbours, row order, reuse and preemption never change it. A row that asks for nothing special
costs its share of one argmax.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from engine.messages import Sampling
from engine.penalties import forbid, penalise, penalises, withhold

_MANTISSA = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What decides one row's token beside its logits."""

    sampling: Sampling
    seed: int
    position: int
    tokens: bytes | bytearray = b""  # prompt and answer so far, as little-endian uint32
    prompt: int = 0  # of them, the prompt's
    allowed: bytes | None = None  # one bit for each token that a grammar lets through; None: no grammar
    withheld: frozenset[int] = frozenset()  # tokens that would end the answer too early


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Return one token per row of `logits` [rows, vocab], which stay as they are."""
    tokens: list[int] = logits.argmax(-1).tolist()
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        penalised = penalises(sampling)
        if not (penalised or draw.allowed is not None or draw.withheld or sampling.temperature > 0):
            continue
        scores = logits[row].to(torch.float64, copy=True)
        if penalised:
            penalise(scores, sampling, draw.tokens, draw.prompt)
        if draw.allowed is not None:
            forbid(scores, draw.allowed)
        if draw.withheld:
            withhold(scores, draw.withheld)
        if sampling.temperature > 0:
            tokens[row] = _draw(scores, sampling, uniform(draw.seed, draw.position))
        else:
            tokens[row] = int(scores.argmax())
    return tokens


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that only seed and position decide."""
    bits: int = xxhash.xxh3_64_intdigest(struct.pack("<Qq", seed % 2**64, position))
    return (bits >> (64 - _MANTISSA)) * 2.0**-_MANTISSA


def _draw(scores: Tensor, sampling: Sampling, at: float) -> int:
    """Draw from one row [vocab] by inverting the cumulative distribution at `at`.

    `top_k` cuts first; `top_p` and `min_p` each cut what it left, and the shorter cut holds.
    """
    scaled = (scores - scores.max()) / sampling.temperature
    ordered, ids = (
        scaled.topk(min(sampling.top_k, len(scaled))) if sampling.top_k else scaled.sort(descending=True, stable=True)
    )
    probabilities = ordered.softmax(-1)
    cumulative = probabilities.cumsum(-1)
    # nucleus: the smallest leading set that reaches top_p; the token that crosses the line belongs to it
    inside = (cumulative - probabilities < sampling.top_p) & (probabilities > 0)
    if sampling.min_p:
        inside &= ordered >= math.log(sampling.min_p)  # the likeliest token stands at 0
    kept = int(inside.sum()) or 1
    index = int(torch.searchsorted(cumulative[:kept], at * cumulative[kept - 1], right=True))
    return int(ids[min(index, kept - 1)])
