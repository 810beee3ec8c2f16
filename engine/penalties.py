"""What a request changes in one row of logits before a token is chosen: penalties, bias, and what is ruled out.

Owns nothing and knows no temperature. The order is repetition, then presence and frequency, then bias, then the
grammar, so that nothing makes a forbidden token possible.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from engine.messages import Sampling
from engine.weighing import Weighing

Scores = NDArray[np.float64]


def penalise(scores: Scores, sampling: Sampling, weighing: Weighing) -> None:
    """Change one row [vocab] in place. O(tokens that the sequence has, each once, and biases)."""
    if weighing.ids:
        ids = np.frombuffer(weighing.ids, dtype=np.int64)
        held = scores[ids]
        if sampling.repetition_penalty != 1.0:
            held = np.where(held > 0, held / sampling.repetition_penalty, held * sampling.repetition_penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            times = np.frombuffer(weighing.times, dtype=np.int64)
            held -= times * sampling.frequency_penalty + (times > 0) * sampling.presence_penalty
        scores[ids] = held
    if weighing.biased:
        scores[np.frombuffer(weighing.biased, dtype=np.int64)] += np.frombuffer(weighing.biases, dtype=np.float64)


def forbid(scores: Scores, allowed: bytes) -> None:
    """Rule out, in place, every token whose bit in `allowed` is not set, and those beyond its end."""
    bits = np.unpackbits(np.frombuffer(allowed, dtype=np.uint8), count=len(scores), bitorder="little")
    scores[bits == 0] = -np.inf


def withhold(scores: Scores, tokens: Collection[int]) -> None:
    """Rule out, in place, tokens that would end the answer, unless a grammar lets nothing else come."""
    ids = sorted(tokens)
    held = scores[ids]
    scores[ids] = -np.inf
    if scores.max() == -np.inf:
        scores[ids] = held
