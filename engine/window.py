"""What a sliding window leaves of a batch: which stretches all rows of a sequence see whole, and which only some. Pure.

A row sees the `window` tokens up to its own. So of the past, a run of rows sees one part whole (no mask needed), and a
band before it row by row less; the band and the new tokens are one masked part. Rule: each row attends to each token
that it sees exactly once, and to itself at least. Long runs are cut, so that a band is never much wider than the rows
that share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.batch import Band, Batch, Rows, Sight
from engine.cascade import Shared, Stretch

FEWEST_ROWS, MOST_ROWS = 64, 256  # rows of a run under a mask of their own


def within(batch: Batch, window: int) -> Sight:
    """Return what rows see under this window; worked out once for all layers that have it."""
    sight = batch.sights.get(window)
    if sight is None:
        sight = batch.sights[window] = narrow(batch, window)
    return sight


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows [at, end) of one sequence's rows; tokens of its past from `whole` on are seen by all of them."""

    rows: Rows
    at: int
    end: int
    past: int  # tokens before the new ones; with a single row that is in the pool already, that one too
    low: int  # the first token that the first row sees
    whole: int


def narrow(batch: Batch, window: int) -> Sight:
    """Cut rows and shared stretches down to the window. O(stretches + rows · window) for masks, once a step."""
    if all(_reach(rows) <= window for rows in batch.rows):
        return Sight(batch.rows, batch.shared)
    runs = [(place, run) for place, rows in enumerate(batch.rows) for run in _runs(rows, window)]
    taken: list[list[tuple[int, int]]] = [[] for _ in runs]  # parts of the past that are shared: (first, end)
    shared = []
    begun = [0] * len(batch.rows)  # where in a sequence its next shared stretch begins
    for stretch in batch.shared:
        first = begun[stretch.members[0]]
        end = first + stretch.tokens
        for place in stretch.members:
            begun[place] = end
        seeing = [(max(first, run.whole), at) for at, (place, run) in enumerate(runs) if place in stretch.members]
        start, members = _best(sorted(one for one in seeing if one[0] < end), end)
        if members:
            shared.append(Shared(stretch.slot + start - first, end - start, members))
            for at in members:
                taken[at].append((start, end))
    rows = tuple(_rows(run, window, gone, batch) for (_, run), gone in zip(runs, taken, strict=True))
    return Sight(rows, tuple(shared))


def cut(past: tuple[Stretch, ...], first: int, end: int) -> Iterator[Stretch]:
    """Return the stretches that hold tokens [first, end) of a past."""
    at = 0
    for slot, tokens in past:
        low, high = max(first, at), min(end, at + tokens)
        if low < high:
            yield slot + low - at, high - low
        at += tokens


def _reach(rows: Rows) -> int:
    """Return how many tokens the last row would see without a window."""
    return sum(tokens for _, tokens in rows.past) + (rows.count if rows.causal else 0)


def _runs(rows: Rows, window: int) -> Iterator[_Run]:
    """Cut a sequence's rows into runs."""
    past = sum(tokens for _, tokens in rows.past)
    first = past if rows.causal else past - 1  # the first row's own place
    most = min(MOST_ROWS, max(FEWEST_ROWS, window)) if first + rows.count > window else rows.count
    for at in range(0, rows.count, most):
        end = min(rows.count, at + most)
        low, whole = max(0, first + at + 1 - window), max(0, first + end - window)
        yield _Run(rows, at, end, past, low, min(whole, past))


def _best(seeing: list[tuple[int, int]], end: int) -> tuple[int, tuple[int, ...]]:
    """Return from where on which runs share a stretch, so that most is read once less: (first token, runs)."""
    best, start, members = 0, end, 0
    for count, (low, _) in enumerate(seeing, 1):
        saved = (count - 1) * (end - low)
        if saved > best:
            best, start, members = saved, low, count
    return start, tuple(at for _, at in seeing[:members])


def _rows(run: _Run, window: int, taken: list[tuple[int, int]], batch: Batch) -> Rows:
    """Return a run as rows of their own: what they see whole beside what is shared, and the band."""
    rows, at = run.rows, run.whole
    own: list[Stretch] = []
    for first, end in taken:
        own += cut(rows.past, at, first)
        at = end
    own += cut(rows.past, at, run.past)
    first, last = rows.first + run.at, rows.first + run.end
    if not rows.causal:
        return Rows(first, last, rows.past, causal=False, own=tuple(own))
    if run.at == 0 and run.past + run.end <= window:  # the window reaches back to the first token
        return Rows(first, last, rows.past, causal=True, own=tuple(own))
    fresh = max(0, run.low - run.past)
    device = batch.positions.device
    places = torch.arange(run.past + run.at, run.past + run.end, device=device)[:, None]
    tokens = torch.cat(
        [
            torch.arange(min(run.low, run.past), run.whole, device=device),
            torch.arange(run.past + fresh, run.past + run.end, device=device),
        ]
    )
    hidden = (tokens > places) | (tokens <= places - window)
    band = Band(
        past=tuple(cut(rows.past, run.low, run.whole)),
        first=rows.first + fresh,
        last=last,
        mask=torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf")),
    )
    return Rows(first, last, rows.past, causal=True, own=tuple(own), band=band)
