"""How likely tokens were under the model itself: log-softmax of raw logits, before anything that shapes a choice.

Owns nothing. Rule: row by row, so that what is told of a row does not depend on its neighbours, and never a whole
distribution where only some of its entries are told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.messages import TokenLogprob

Row = NDArray[np.float32]


def tell(logits: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    """Return, for each row of `logits` [rows, vocab], its token's log-probability and the `top` likeliest tokens."""
    return tuple(_row(row, token, top) for row, token in zip(logits.numpy(), tokens, strict=True))


def _row(row: Row, token: int, top: int) -> TokenLogprob:
    highest = float(row.max())
    whole = highest + float(np.log(np.exp(row - row.max()).sum(dtype=np.float64)))
    best = _likeliest(row, min(top, len(row)))
    likeliest = tuple((int(place), min(0.0, float(row[place]) - whole)) for place in best)
    rank = 1 + int(np.count_nonzero(row > row[token]))
    return TokenLogprob(token, min(0.0, float(row[token]) - whole), likeliest, rank)


def _likeliest(row: Row, count: int) -> NDArray[np.int64]:
    """Return the places of the largest, largest first; of equal ones the smaller places come first."""
    if not count:
        return np.empty(0, dtype=np.int64)
    least = np.partition(row, len(row) - count)[len(row) - count]
    places = np.flatnonzero(row >= least)
    return places[np.argsort(-row[places], kind="stable")][:count]
