"""A batch as the arguments of a paged kernel: whose rows come where, which pages each sees, how many tokens of them.

Owns nothing and calls no kernel. One call has every sequence over its own pages, causal and aligned at the end: the
last row sees all tokens. Another has what several sequences share, once for all of them and without a mask. Rule: each
row sees each token up to its own exactly once, over both calls; a sequence's new tokens are always its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch
from engine.cascade import Stretch
from engine.staging import stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of one call over so many sequences, or stretches that sequences share."""

    starts_q: Tensor  # [sequences + 1] int32, where each one's rows begin, and the end of all
    starts_k: Tensor  # [sequences + 1] int32, the same of the tokens they see
    used: Tensor  # [sequences] int32, tokens that each sees
    pages: Tensor  # [sequences, most pages] int32, in token order; behind a sequence's last one anything
    most_q: int
    most_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One batch for a kernel with pages of one size."""

    own: Call  # rows as they stand in the batch
    shared: Call | None
    gathered: Tensor  # [rows of the shared call] int64, their places in the batch
    levels: tuple[tuple[int, int], ...]  # parts of `gathered` in which no row stands twice
    longest: int  # tokens of the longest sequence


@dataclass(frozen=True, slots=True)
class _Part:
    """A sequence or a shared stretch, before it becomes one row of the arrays."""

    level: int
    rows: tuple[tuple[int, int], ...]  # [first, last) of the batch
    pages: np.ndarray  # [pages]
    used: int


def plan(batch: Batch, page: int, *, sharing: bool = True) -> Tables:
    """Lay a batch out in pages of `page` tokens. O(pages). Raises ValueError when it does not lie in whole pages."""
    pages = [pages_of(rows.whole, page) for rows in batch.rows]
    lengths = [sum(tokens for _, tokens in rows.whole) for rows in batch.rows]
    if any(length < rows.count for rows, length in zip(batch.rows, lengths, strict=True)):
        raise ValueError("a sequence does not say where all of its tokens lie")
    shared, begun = _shared(batch, pages, lengths, page) if sharing else ([], [0] * len(pages))
    own = [
        _Part(0, ((rows.first, rows.last),), held[skip:], length - skip * page)
        for rows, held, length, skip in zip(batch.rows, pages, lengths, begun, strict=True)
    ]
    shared.sort(key=lambda part: part.level)
    order = [np.arange(first, last) for part in shared for first, last in part.rows]
    arrays = [*_arrays(own), np.concatenate([np.empty(0, np.int64), *order]), *(_arrays(shared) if shared else ())]
    staged = stage(arrays, batch.positions.device)
    return Tables(
        own=_call(own, staged[:4]),
        shared=_call(shared, staged[5:]) if shared else None,
        gathered=staged[4],
        levels=_levels(shared),
        longest=max(lengths),
    )


def pages_of(stretches: Sequence[Stretch], page: int) -> np.ndarray:
    """Return the pages that hold a sequence's tokens, in order. Raises ValueError where one is not held as a whole."""
    pages: list[np.ndarray] = []
    at, last = 0, -1
    for slot, tokens in stretches:
        first = slot // page
        if slot % page != at % page or (at % page and first != last):
            raise ValueError(f"token {at} lies in slot {slot}: the sequence is not laid out in whole pages of {page}")
        end = (slot + tokens - 1) // page
        pages.append(np.arange(first + (at % page > 0), end + 1))
        at, last = at + tokens, end
    return np.concatenate([np.empty(0, np.int64), *pages])


def _shared(batch: Batch, pages: list[np.ndarray], lengths: list[int], page: int) -> tuple[list[_Part], list[int]]:
    """Return what is shared in whole pages, and how many pages of each sequence that is.

    Stretches come in token order for each of their members, and all members have come the same way. What the same
    members share one after the other is one part, wherever it lies.
    """
    runs: dict[tuple[int, ...], tuple[int, int, int]] = {}  # by members: level, first page and end in each one's table
    told, begun, depth = ([0] * len(pages) for _ in range(3))  # tokens and pages that were shared so far; parts
    for stretch in batch.shared:
        members, one = stretch.members, stretch.members[0]
        first, end = begun[one], (told[one] + stretch.tokens) // page
        end = min(end, *((lengths[place] - batch.rows[place].count) // page for place in members))
        level, start, _ = runs.get(members, (depth[one], first, 0))
        for place in members:
            told[place] += stretch.tokens
            if end > first:
                begun[place], depth[place] = end, level + 1
        if end > first:
            runs[members] = (level, start, end)
    parts = [
        _Part(
            level,
            tuple((batch.rows[place].first, batch.rows[place].last) for place in members),
            pages[members[0]][first:end],
            (end - first) * page,
        )
        for members, (level, first, end) in runs.items()
    ]
    return parts, begun


def _levels(shared: list[_Part]) -> tuple[tuple[int, int], ...]:
    counts: dict[int, int] = {}
    for part in shared:
        counts[part.level] = counts.get(part.level, 0) + _count(part)
    ends = np.cumsum([counts[level] for level in sorted(counts)]).tolist()
    return tuple(zip([0, *ends[:-1]], ends, strict=True)) if ends else ()


def _count(part: _Part) -> int:
    return sum(last - first for first, last in part.rows)


def _arrays(parts: list[_Part]) -> list[np.ndarray]:
    """Return starts_q, starts_k, used and pages."""
    used = np.array([part.used for part in parts], dtype=np.int32)
    table = np.zeros((len(parts), max(len(part.pages) for part in parts)), dtype=np.int32)
    for row, part in zip(table, parts, strict=True):
        row[: len(part.pages)] = part.pages
    return [_starts([_count(part) for part in parts]), _starts(used), used, table]


def _starts(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _call(parts: list[_Part], staged: list[torch.Tensor]) -> Call:
    starts_q, starts_k, used, pages = staged
    return Call(
        starts_q=starts_q,
        starts_k=starts_k,
        used=used,
        pages=pages,
        most_q=max(_count(part) for part in parts),
        most_k=max(part.used for part in parts),
    )
