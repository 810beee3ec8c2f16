"""What runs come to: what a gateway adds to each time, and how that compares with the rivals. Pure.

Rule: a gateway's times are compared with those of the run straight to the upstream that came just before, so that a
machine that is slow for a while is slow for both; what is told is the median over such pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.gateway_peers.load import LARGE, SHAPES, SMALL, Run, Shape
from benchmarks.measure import Result, Series, Target, ratio

NAME: Final = "gateway_peers"
OURS: Final = "keepwarm"
FASTEST: Final = "vllm-router"
PYTHON: Final = "litellm"

Pairs = Mapping[tuple[str, Shape], Sequence[tuple[Run, Run]]]  # by gateway and shape: straight, then through it


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What one gateway adds for one shape, in milliseconds, and its rate."""

    gateway: str
    shape: Shape
    first_p50: tuple[float, ...]
    first_p99: tuple[float, ...]
    total_p50: tuple[float, ...]
    total_p99: tuple[float, ...]
    per_second: tuple[float, ...]
    direct_per_second: tuple[float, ...]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def added(gateway: str, shape: Shape, pairs: Sequence[tuple[Run, Run]]) -> Added:
    """Subtract, pair by pair."""

    def over(what: str, share: float) -> tuple[float, ...]:
        return tuple(
            1000 * (quantile(getattr(through, what), share) - quantile(getattr(straight, what), share))
            for straight, through in pairs
        )

    return Added(
        gateway=gateway,
        shape=shape,
        first_p50=over("first", 0.5),
        first_p99=over("first", 0.99),
        total_p50=over("total", 0.5),
        total_p99=over("total", 0.99),
        per_second=tuple(through.per_second for _, through in pairs),
        direct_per_second=tuple(straight.per_second for straight, _ in pairs),
    )


def rows(pairs: Pairs) -> list[Added]:
    """Return one row for each gateway and shape, shape by shape."""
    return [added(gateway, shape, pairs[gateway, shape]) for shape in SHAPES for gateway in _gateways(pairs)]


def best_rival(all_rows: Sequence[Added], row: Added, what: str) -> float | None:
    """Return the best rival's median of a column for the same shape: the least, of rates the greatest."""
    theirs: list[float] = [
        statistics.median(getattr(other, what))
        for other in all_rows
        if other.shape == row.shape and other.gateway != OURS
    ]
    if not theirs:
        return None
    return float(max(theirs) if what == "per_second" else min(theirs))


def result(all_rows: Sequence[Added], facts: Mapping[str, float | int | str]) -> Result:
    """Return what was promised and what was measured."""
    series = [
        Series(name=f"{row.gateway}: {row.shape.name}: {words}", unit=unit, values=getattr(row, what))
        for row in all_rows
        for what, words, unit in (
            ("first_p50", "added first token p50", "ms"),
            ("first_p99", "added first token p99", "ms"),
            ("total_p50", "added total p50", "ms"),
            ("total_p99", "added total p99", "ms"),
            ("per_second", "answers", "/s"),
            ("direct_per_second", "straight to the upstream", "/s"),
        )
    ]
    return Result(name=NAME, targets=tuple(_targets(all_rows)), series=tuple(series), facts=facts)


def _targets(all_rows: Sequence[Added]) -> list[Target]:
    medians = {
        (row.gateway, row.shape): (statistics.median(row.first_p50), statistics.median(row.per_second))
        for row in all_rows
    }
    targets = []
    for rival, size, limit in ((FASTEST, SMALL, 1.3), (FASTEST, LARGE, 1.5), (PYTHON, SMALL, 1 / 12)):
        shape = Shape(size=size, streamed=True, at_once=1)
        ours, theirs = (medians.get((name, shape), (0.0, 0.0))[0] for name in (OURS, rival))
        by = ratio(ours, theirs)
        if by is not None:
            ceiling = f"{rival} adds {theirs:.2f} ms, Keepwarm {ours:.2f} ms"
            name = f"added first token p50 at {size // 1000} kB, by {rival}'s"
            targets.append(Target(name=name, value=by, limit=limit, unit="ratio", ceiling=ceiling))
    many = Shape(size=SMALL, streamed=True, at_once=16)
    ours, theirs = (medians.get((name, many), (0.0, 0.0))[1] for name in (OURS, FASTEST))
    by = ratio(theirs, ours)
    if by is not None and theirs:
        ceiling = f"{FASTEST} serves {theirs:.0f} a second, Keepwarm {ours:.0f}"
        name = f"{FASTEST}'s streams a second at 16, by Keepwarm's"
        targets.append(Target(name=name, value=by, limit=2.0, unit="ratio", ceiling=ceiling))
    return targets


def _gateways(pairs: Pairs) -> list[str]:
    return list(dict.fromkeys(gateway for gateway, _ in pairs))
