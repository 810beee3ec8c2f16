"""How long a prefix is kept, and how durations are written.

Values only: knows no tree and no clock. Rule: alive while `now < deadline`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
LONGEST_S = 10 * 365 * 86_400.0


class Kept(IntEnum):
    """How firmly a prefix is kept; the order is the order in which pressure takes."""

    HELD = 0  # reusable until the deadline, first to go under pressure
    PROMISED = 1  # kept until the deadline as far as the promise budget goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What one request asks for the blocks it writes."""

    klass: str  # name of the retention class, such as "5m"
    ttl_s: float
    since: float  # when the engine admitted the request: queueing must not age an entry
    kept: Kept = Kept.HELD
    sliding: bool = True  # a read renews; else the first deadline stands
    priority: int = 50  # among promised ones, lower goes first

    @property
    def deadline(self) -> float:
        """When blocks written under it expire, if nobody reads them."""
        return self.since + self.ttl_s


def parse_duration(text: str) -> float:
    """Read `"5s"`, `"5m"`, `"1.5h"`, `"1d"` as seconds. Raises ValueError for anything else, zero included."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(f"expected a duration above zero such as 30s, 5m, 1h or 1d, not {text!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """Write seconds the way `parse_duration` reads them, in the largest unit that is whole."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.12g}ms" if seconds < 1 else f"{seconds:.12g}s"
