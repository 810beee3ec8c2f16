"""One step as arrays: which tokens go in, where their K/V go, what each row attends to.

Owns nothing: a batch is built from the scheduler's chunks, used for one forward pass and dropped. Rule: ranges are
half-open, rows of one sequence are contiguous, and no Python loop runs per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.cascade import Shared, Stretch, share
from engine.chunk import Chunk
from engine.request import TOKEN_BYTES
from engine.staging import stage


@dataclass(frozen=True, slots=True)
class Band:
    """What only some of a sequence's rows see: stretches of its past, then tokens [first, last) of the batch."""

    past: tuple[Stretch, ...]
    first: int
    last: int
    mask: torch.Tensor  # [rows, tokens] float32: 0 where a row sees a token, -inf where not


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows [first, last) of one sequence and the stretches of slots that hold the K/V they all may see.

    With `causal`, the rows also attend to themselves, each up to its own position; without, the stretches already
    include the one new token.
    """

    first: int
    last: int
    past: tuple[Stretch, ...]  # in token order
    causal: bool
    own: tuple[Stretch, ...]  # of the past, what no other sequence of the batch shares
    band: Band | None = None  # under a window, in place of attending to themselves
    whole: tuple[Stretch, ...] = ()  # where all tokens up to the last row's lie, for those who read by pages

    @property
    def count(self) -> int:
        """Rows."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Sight:
    """Who attends to what under one window; `members` of what is shared are places among these rows."""

    rows: tuple[Rows, ...]
    shared: tuple[Shared, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything a forward pass needs beside the weights and the pool."""

    tokens: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [tokens] int64
    slots: torch.Tensor  # [tokens] int64, where the new K/V go
    rows: tuple[Rows, ...]
    wanted: torch.Tensor  # [wanted] int64, rows whose logits are wanted: scored positions first, then what samples
    copies: tuple[tuple[int, int, int], ...]  # (source slot, target slot, tokens), before anything is written
    shared: tuple[Shared, ...] = ()  # stretches of the past that several rows attend to
    sights: dict[int, Sight] = field(default_factory=dict)  # by window, as layers ask for them


def build(chunks: Sequence[Chunk], device: torch.device) -> Batch:
    """Lay the chunks out one after another. O(chunks + tokens), the tokens in numpy."""
    tokens, positions, slots, spans, copies = [], [], [], [], []
    scored_rows: list[int] = []
    sample_rows: list[int] = []
    first = 0
    for chunk in chunks:
        sequence, start, count = chunk.sequence, chunk.start, chunk.count
        assert sequence.hold is not None
        table = sequence.hold.table
        ids = np.frombuffer(sequence.tokens, dtype="<u4", count=count, offset=start * TOKEN_BYTES)
        tokens.append(ids.astype(np.int64))
        positions.append(np.arange(start, start + count))
        slots += [np.arange(slot, slot + length) for slot, length in table.slots(start, count)]
        whole = tuple(table.extents(start + count))
        past = whole if count == 1 else tuple(table.extents(start))
        spans.append((first, count, past, whole))
        scored_rows += range(first + chunk.scored.start - start, first + chunk.scored.stop - start)
        first += count
        if chunk.samples:
            sample_rows.append(first - 1)
        size = table.block_tokens
        copies += [(copy.source * size, copy.target * size, copy.tokens) for copy in chunk.copies]

    arrays = [np.concatenate(parts) for parts in (tokens, positions, slots)]
    staged = stage([*arrays, np.array([*scored_rows, *sample_rows], dtype=np.int64)], device)
    shared, own = share([past for _, _, past, _ in spans])
    rows = [
        Rows(first, first + count, past, causal=count > 1, own=rest, whole=whole)
        for (first, count, past, whole), rest in zip(spans, own, strict=True)
    ]
    return Batch(
        tokens=staged[0],
        positions=staged[1],
        slots=staged[2],
        rows=tuple(rows),
        wanted=staged[3],
        copies=tuple(copies),
        shared=shared,
    )
