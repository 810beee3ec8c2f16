"""What fits in a pool of blocks: sequences, and prefixes by retention class at a rate of requests. Pure.

Little's law says how many prefixes are resident once things are steady: new ones a second times how long each lives.
Arrivals by chance make that number a Poisson one, so its peaks are reckoned as three deviations above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

DEVIATIONS: Final = 3.0  # above the mean: exceeded about one moment in a thousand

Verdict = Literal["fits", "tight", "too many"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Prefixes of one length of life, once as many go as come."""

    resident: float  # on average
    peak: int
    room: int  # prefixes that there is room for
    verdict: Verdict
    kept_share: float  # of them that a budget of this room accepts
    lives_s: float  # until its deadline, or until pressure takes it, where none is refused
    most_rate: float  # new prefixes a second that would still fit


def sequences(pool: int, blocks: int) -> int:
    """Return how many sequences of so many blocks a pool holds."""
    return pool // blocks


def sharing(pool: int, blocks: int, prefix: int) -> int:
    """Return how many sequences fit that share one prefix of so many whole blocks."""
    return max(0, pool - prefix) // (blocks - prefix)


def steady(*, rate: float, life_s: float, room: int) -> Steady:
    """Say how many prefixes are resident when `rate` new ones come a second and each lives so long."""
    resident = rate * life_s
    peak = math.ceil(resident + DEVIATIONS * math.sqrt(resident))
    return Steady(
        resident=resident,
        peak=peak,
        room=room,
        verdict="fits" if peak <= room else "tight" if resident <= room else "too many",
        kept_share=min(1.0, room / resident),
        lives_s=life_s if resident <= room else room / rate,
        most_rate=room / life_s,
    )
