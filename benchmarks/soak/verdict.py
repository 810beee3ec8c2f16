"""Whether a series of samples stayed flat. Pure.

Rule: the first third is warming up: caches fill, allocators take what they will need. The median of the last third is
held against that of the middle third; more than a stated bound above it is growth.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

THIRDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How far the last third may lie above the middle one: a share of it, and so much more."""

    share: float
    more: float

    def limit(self, middle: float) -> float:
        """Return the largest median that still is flat."""
        return middle * (1 + self.share) + self.more


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One series, judged."""

    name: str
    unit: str
    first: float  # medians of the thirds
    middle: float
    last: float
    most: float
    limit: float

    @property
    def flat(self) -> bool:
        """Whether it did not grow."""
        return self.last <= self.limit


def judge(name: str, unit: str, values: Sequence[float], bound: Bound) -> Verdict:
    """Judge one series. Raises ValueError when there are fewer samples than thirds."""
    if len(values) < THIRDS:
        raise ValueError(f"{name}: {len(values)} samples are too few to be compared")
    third = len(values) // THIRDS
    first, middle, last = values[: -2 * third], values[-2 * third : -third], values[-third:]
    return Verdict(
        name=name,
        unit=unit,
        first=statistics.median(first),
        middle=statistics.median(middle),
        last=statistics.median(last),
        most=max(values),
        limit=bound.limit(statistics.median(middle)),
    )
