"""When scattered blocks of a prefix are copied into one run, and which copies that takes. Pure; moves nothing.

Attention reads each contiguous stretch by one call, so a prefix in many small ones costs more at every step than a copy
of its keys and values does once. Rules: it is copied only where the copy is earned back within about two steps
(docs/LOG.md has the measurement), and only into room that nobody has or waits for, so that nothing is evicted for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.block_pool import BlockId
from engine.block_table import BlockTable
from engine.hold import Copy


@dataclass(frozen=True, slots=True)
class Threshold:
    """From where on a copy is earned back."""

    extents: int = 32  # of a prefix that is read as it lies
    work: int = 20  # tokens that a sequence is at least to compute or write


def worth(table: BlockTable, threshold: Threshold, *, work: int, room: int) -> bool:
    """Whether a table's blocks should be copied together, given the blocks in a row that are free for it.

    `work` counts the tokens that the sequence is still to compute and to write.
    """
    if table.pieces <= threshold.extents or work < threshold.work:
        return False
    return room >= len(table) + -(-work // table.block_tokens)


def copies(table: BlockTable, run: Sequence[BlockId]) -> tuple[Copy, ...]:
    """Return the copies that bring a table's blocks, in order, into `run`: one for each extent."""
    size, at, found = table.block_tokens, 0, []
    for slot, tokens in table.extents(table.tokens):
        found.append(Copy(BlockId(slot // size), run[at], tokens))
        at += tokens // size
    return tuple(found)
