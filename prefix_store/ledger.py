"""What was read, written and missed over time: counts by stretch of time and by who, what and where. Pure.

Owns: the rows that a ledger is made of, the steps of time in which they are kept, which rows make up a range, and the
fixed buckets of durations. Knows no storage, no clock and no meaning of a count: a count is a name and a number from 0.
Rules: everything adds up, so rows merge in any order; a row of an hour is the sum of its minutes; times are seconds
since the epoch, and every stretch begins at a multiple of its length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

MINUTE, FIVE, HOUR, DAY = 60, 300, 3_600, 86_400
STEPS: Final = (MINUTE, FIVE, HOUR, DAY)  # each divides the next
KEEP_S: Final[Mapping[int, float]] = MappingProxyType(  # at most; a shorter retention shortens all of them
    {MINUTE: 2.0 * DAY, FIVE: 7.0 * DAY, HOUR: 90.0 * DAY, DAY: math.inf}
)
RETENTION_S = 400.0 * DAY

SHORTEST_S = 50e-6  # of a duration that is told apart from nothing
PARTS = 3  # buckets of a doubling: each is 26 % wide
LAST = 27 * PARTS  # about two hours; what takes longer is in it too

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Counts = Mapping[str, int]
Cell = tuple[int | None, tuple[str, ...]]  # where a bucket begins, and the values of the fields
Sums = dict[Cell, dict[str, int]]


class Place(NamedTuple):
    """Whose, which and where: what counts are told apart by. "" stands for none, as in a request without a key."""

    tenant: str
    key: str
    model: str
    api: str
    upstream: str


FIELDS: Final = Place._fields


@dataclass(frozen=True, slots=True)
class Row:
    """Counts of one minute, which begins at `start`, and one place."""

    start: int
    place: Place
    counts: Counts


@dataclass(frozen=True, slots=True)
class Span:
    """Stretches of one length, one after the other."""

    step: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Question:
    """What to sum: rows of these spans at places that match, apart by bucket (None: all in one) and by fields."""

    spans: tuple[Span, ...]
    bucket: int | None = None
    fields: tuple[str, ...] = ()
    only: Mapping[str, str] = field(default_factory=lambda: NOTHING)  # field to the one value it must have

    def cell(self, start: int, place: Place) -> Cell:
        """Return which of the sums a row belongs to."""
        begin = None if self.bucket is None else start - start % self.bucket
        return begin, tuple(getattr(place, name) for name in self.fields)

    def asks(self, place: Place) -> bool:
        """Tell whether rows at this place are meant."""
        return all(getattr(place, name) == value for name, value in self.only.items())


class LedgerStore(Protocol):
    """Rows that outlive a gateway and that several may add to. They go when their time is over, the finest first."""

    @property
    def retention_s(self) -> float:
        """How long rows of days are kept."""

    async def add(self, rows: Sequence[Row]) -> None:
        """Add counts to their minutes and to every longer stretch around them, all or none. Raises StoreUnavailable."""

    async def sums(self, question: Question) -> Sums:
        """Return the sums that were asked for; where nothing was counted there is no cell. Raises StoreUnavailable."""

    async def close(self) -> None:
        """Let go of everything. Closing twice is allowed."""


def floor(at: float, step: int) -> int:
    """Return where the stretch begins in which `at` lies."""
    return int(at // step) * step


def merge(into: dict[str, int], counts: Counts) -> None:
    """Add counts to others."""
    for name, by in counts.items():
        into[name] = into.get(name, 0) + by


def keep_s(step: int, retention_s: float) -> float:
    """Return how long rows of this step are kept after their end."""
    return min(KEEP_S[step], retention_s)


def is_kept(step: int, at: float, now: float, retention_s: float) -> bool:
    """Tell whether the row of this step around `at` is still kept."""
    return floor(at, step) + step + keep_s(step, retention_s) > now


def steps_of(bucket: int | None) -> tuple[int, ...]:
    """Return the steps that buckets of this length can be made of, the finest first."""
    return tuple(step for step in STEPS if bucket is None or bucket % step == 0)


def spans(start: float, end: float, *, bucket: int | None, now: float, retention_s: float) -> tuple[Span, ...]:
    """Return the rows that make up a range, as few as may be; its edges move outwards to those that are kept."""
    steps = steps_of(bucket)
    coarsest = steps[-1]
    first = next((step for step in steps if is_kept(step, start, now, retention_s)), coarsest)
    at, found = floor(start, first), list[Span]()
    while at < end:
        fitting = [step for step in steps if at % step == 0 and is_kept(step, at, now, retention_s)] or [first]
        step = max((step for step in fitting if at + step <= end), default=fitting[0])
        count = _run(at, end, step, steps)
        since = found.pop().start if found and found[-1].step == step else at
        found.append(Span(step, since, at + count * step))
        at += count * step
    return tuple(found)


def _run(at: int, end: float, step: int, steps: Sequence[int]) -> int:
    """Return how many rows of `step` follow each other before a longer step fits, or the end comes."""
    longer = min((other for other in steps if other > step), default=None)
    until = end if longer is None else min(end, -(-(at + 1) // longer) * longer)
    return max(int((until - at) // step), 1)


# ---- durations ----


def slot(seconds: float) -> int:
    """Return the bucket of a duration: 0 holds up to `SHORTEST_S`, each of the others `2 ** (1 / PARTS)` times more."""
    if seconds <= SHORTEST_S:
        return 0
    return min(math.ceil(math.log2(seconds / SHORTEST_S) * PARTS), LAST)


def ceiling(number: int) -> float:
    """Return the longest duration that a bucket holds; the last one holds longer ones too."""
    return float(SHORTEST_S * 2 ** (number / PARTS))


def quantiles(slots: Mapping[int, int], shares: Iterable[float]) -> Iterator[float]:
    """Yield a duration for each share, at most one bucket from the exact one. There is at least one count."""
    total, ordered = sum(slots.values()), sorted(slots.items())
    for share in shares:
        rank, seen = share * total, 0
        for number, count in ordered:
            if count and seen + count >= rank:
                yield SHORTEST_S if not number else ceiling(number - 1) * 2 ** ((rank - seen) / count / PARTS)
                break
            seen += count
