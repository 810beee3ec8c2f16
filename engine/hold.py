"""What one running sequence holds, and for how long what it writes is to be kept.

Owns nothing beyond the request: the cache moves the blocks. Rule: a block is kept by the longest granted mark that
covers it whole, else as held, else not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.block_pool import BlockId
from engine.block_table import BlockTable
from prefix_store.chain import Namespace
from prefix_store.leases import Lease
from prefix_store.reasons import Absence
from prefix_store.retention import Kept, Retention


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `tokens` tokens from block `source` on to block `target` on, before the step writes anything."""

    source: BlockId
    target: BlockId
    tokens: int


@dataclass(frozen=True, slots=True)
class Granted:
    """One mark as granted: the first `tokens` tokens, whole blocks, under `retention`."""

    tokens: int
    retention: Retention


@dataclass(frozen=True, slots=True)
class KeepPlan:
    """How the blocks of one request are kept: its marks, shortest first, and what no mark covers."""

    marks: tuple[Granted, ...]
    held: Retention | None

    def stretches(self, start: int, end: int) -> Iterator[tuple[int, Retention]]:
        """Cut tokens [start, end) where the retention changes: (end of stretch, retention), up to what is kept."""
        for mark in self.marks:
            if start < mark.tokens and start < end:
                covering = [granted.retention for granted in self.marks if granted.tokens >= mark.tokens]
                start = min(mark.tokens, end)
                yield start, max(covering, key=lambda retention: (retention.kept, retention.ttl_s))
        if start < end and self.held is not None:
            yield end, self.held

    @property
    def promised(self) -> int:
        """Leading tokens that some mark promises."""
        return max((mark.tokens for mark in self.marks if mark.retention.kept is Kept.PROMISED), default=0)


class Hold:
    """A lease on the tree and the blocks after it."""

    __slots__ = (
        "absences",
        "copies",
        "lease",
        "namespace",
        "plan",
        "policy",
        "ready",
        "reserved",
        "run",
        "table",
        "tail",
    )

    def __init__(self, namespace: Namespace, lease: Lease[BlockId], table: BlockTable, plan: KeepPlan) -> None:
        self.namespace = namespace
        self.lease = lease
        self.table = table
        self.plan = plan
        self.policy = ""  # under which `reserved` is counted
        self.reserved = 0  # blocks set aside in the promise budget and not published yet
        self.absences: list[Absence] = []  # what became of the blocks that the lease did not find
        self.tail: Copy | None = None  # of a partial block to go on from, by the sequence's first step
        self.run: list[BlockId] = []  # where the leased blocks go once that step has copied them
        self.copies: tuple[Copy, ...] = ()  # of the leased blocks into `run`
        self.ready = lease.tokens  # tokens reused

    @property
    def published(self) -> int:
        """Leading blocks that belong to the tree."""
        return self.lease.tokens // self.table.block_tokens

    @property
    def last(self) -> BlockId | None:
        """The block behind which the next ones should lie."""
        return self.run[-1] if self.run and len(self.run) == len(self.table) else self.table.last

    @property
    def pending(self) -> tuple[Copy, ...]:
        """Copies that the sequence's first step makes."""
        return self.copies if self.tail is None else (*self.copies, self.tail)
