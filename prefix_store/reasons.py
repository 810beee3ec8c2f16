"""Why a block is not there any more: a bounded memory of what went.

Owns the tombstones. Knows no tree and no clock. Rules: what is remembered is a run of chain hashes, a cause and a time,
never tokens; the memory is bounded in blocks, and the oldest runs are forgotten first; a block that is written again
has no tombstone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from prefix_store.chain import HASH_BYTES


class Fate(StrEnum):
    """What became of tokens that were not read."""

    NEVER_WRITTEN = "never_written"
    BELOW_MINIMUM = "below_minimum"
    NO_CACHE = "no_cache"
    EXPIRED = "expired"
    EVICTED = "evicted"
    BROKEN_PROMISE = "broken_promise"
    PURGED = "purged"
    POLICY_CHANGED = "policy_changed"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A run of blocks that went together."""

    hashes: bytes  # packed chain
    fate: Fate
    at: float  # monotonic seconds; for what expired, its deadline

    @property
    def blocks(self) -> int:
        """Blocks in the run."""
        return len(self.hashes) // HASH_BYTES


@dataclass(frozen=True, slots=True)
class Absence:
    """A run of missing blocks with one fate."""

    fate: Fate
    blocks: int
    at: float | None = None


class Tombstones:
    """What is remembered of at most `limit` blocks, newest last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: OrderedDict[bytes, Tombstone] = OrderedDict()  # by the hash of the first block
        self._blocks = 0

    def __len__(self) -> int:
        """Count the runs."""
        return len(self._runs)

    def __iter__(self) -> Iterator[Tombstone]:
        """Go over the runs, oldest first."""
        return iter(self._runs.values())

    @property
    def blocks(self) -> int:
        """Blocks that are remembered."""
        return self._blocks

    def bury(self, hashes: bytes, fate: Fate, at: float) -> None:
        """Remember a run of blocks that went. O(1) amortised; a run longer than the limit keeps its beginning."""
        stone = Tombstone(hashes[: self._limit * HASH_BYTES], fate, at)
        self.forget(stone.hashes[:HASH_BYTES])
        self._runs[stone.hashes[:HASH_BYTES]] = stone
        self._blocks += stone.blocks
        while self._blocks > self._limit:
            _, oldest = self._runs.popitem(last=False)
            self._blocks -= oldest.blocks

    def forget(self, first: bytes) -> None:
        """Drop the run that begins with the block `first`: it has been written again."""
        if (stone := self._runs.pop(first, None)) is not None:
            self._blocks -= stone.blocks

    def explain(self, missing: bytes) -> list[Absence]:
        """Say what became of a packed chain's blocks, in order; neighbours with one fate are one run. O(blocks)."""
        told: list[Absence] = []
        at, end = 0, len(missing)
        while at < end:
            stone = self._runs.get(missing[at : at + HASH_BYTES])
            if stone is None:
                absence, size = Absence(Fate.NEVER_WRITTEN, 1), HASH_BYTES
            else:
                size = _agree(stone.hashes, missing[at : at + len(stone.hashes)])
                absence = Absence(stone.fate, size // HASH_BYTES, stone.at)
            if told and (told[-1].fate, told[-1].at) == (absence.fate, absence.at):
                absence = Absence(absence.fate, told.pop().blocks + absence.blocks, absence.at)
            told.append(absence)
            at += size
        return told


def _agree(one: bytes, other: bytes) -> int:
    """Return how many leading bytes, in whole hashes, two packed chains share; chains that part never meet again."""
    low, high = 1, min(len(one), len(other)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if (
            one[(middle - 1) * HASH_BYTES : middle * HASH_BYTES]
            == other[(middle - 1) * HASH_BYTES : middle * HASH_BYTES]
        ):
            low = middle
        else:
            high = middle - 1
    return low * HASH_BYTES
