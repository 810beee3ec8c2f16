"""What a benchmark hands back, and the few statistics it needs. Pure.

Rule: a target carries its limit and its ceiling beside the measured value, and whether it was met follows from them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One promise about speed or memory: met when `value <= limit`."""

    name: str
    value: float
    limit: float
    unit: str
    ceiling: str  # what it is compared with, and the best that could be had

    @property
    def met(self) -> bool:
        """Whether the promise held in this run."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Repeated measurements of one thing, in the order they were made."""

    name: str
    unit: str
    values: tuple[float, ...]
    curve: str = ""  # the one it is a point of, where it is one
    at: int = 0  # where on that curve

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        """The value that 99 % do not exceed (nearest rank; the largest of fewer than a hundred)."""
        return sorted(self.values)[math.ceil(0.99 * len(self.values)) - 1]

    def document(self) -> dict[str, object]:
        """Return the series as plain values for JSON."""
        place = {"curve": self.curve, "at": self.at} if self.curve else {}
        told = {"name": self.name, "unit": self.unit, "median": self.median, "p99": self.p99, "values": self.values}
        return told | place


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one benchmark found."""

    name: str
    targets: tuple[Target, ...]
    series: tuple[Series, ...]
    facts: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether every target was met."""
        return all(target.met for target in self.targets)

    def document(self) -> dict[str, object]:
        """Return the result as plain values for JSON."""
        return {
            "name": self.name,
            "met": self.met,
            "targets": [asdict(target) | {"met": target.met} for target in self.targets],
            "series": [each.document() for each in self.series],
            "facts": dict(self.facts),
        }


Advance = Callable[[str], None]  # called with what was just measured
Benchmark = Callable[[Advance], Result]


def ratio(ours: float, theirs: float | None) -> float | None:
    """Return how many times theirs ours is; None where theirs is nothing that can be divided by."""
    return None if theirs is None or theirs <= 0 else ours / theirs


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through `(x, y)` points."""
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope
