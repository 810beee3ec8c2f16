"""From logits to the next token of each row.

Owns nothing: a draw depends only on the row's logits, its own sampling values, its seed and the position, so that
neighbours, row order, reuse and preemption never change it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
import xxhash
from torch import Tensor

from engine.messages import Sampling

_MANTISSA = 53


def sample(logits: Tensor, samplings: Sequence[Sampling], seeds: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Return one token per row of `logits` [rows, vocab]."""
    tokens: list[int] = logits.argmax(-1).tolist()
    for row, sampling in enumerate(samplings):
        if sampling.temperature > 0:
            tokens[row] = _draw(logits[row], sampling, uniform(seeds[row], positions[row]))
    return tokens


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that only seed and position decide."""
    bits: int = xxhash.xxh3_64_intdigest(struct.pack("<Qq", seed % 2**64, position))
    return (bits >> (64 - _MANTISSA)) * 2.0**-_MANTISSA


def _draw(logits: Tensor, sampling: Sampling, at: float) -> int:
    """Draw from one row [vocab] by inverting the cumulative distribution at `at`."""
    scaled = logits.double() / sampling.temperature
    ordered, ids = (
        scaled.topk(min(sampling.top_k, len(scaled))) if sampling.top_k else scaled.sort(descending=True, stable=True)
    )
    probabilities = ordered.softmax(-1)
    cumulative = probabilities.cumsum(-1)
    # nucleus: the smallest leading set that reaches top_p; the token that crosses the line belongs to it
    kept = int((cumulative - probabilities < sampling.top_p).sum()) or 1
    index = int(torch.searchsorted(cumulative[:kept], at * cumulative[kept - 1], right=True))
    return int(ids[min(index, kept - 1)])
