"""The picture of cost: first token, time between tokens and throughput beside the floor, and the price of extents.

The engine alone, in this process, on the default model in float32. What it finds becomes docs/performance.md and its
pictures (`benchmarks.performance`). Rule: torch is imported only when it is measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.measure import Advance, Result, Series, slope
from engine.config import EngineConfig
from engine.weights import DEFAULT_MODEL, resolve_in_subprocess
from gateway.config import Settings, cache_dir

NAME = "cost"
KV_BYTES = 3 << 29  # sixteen prefixes of 1,024 tokens beside the longest and a cold one; untouched pages cost nothing
SUFFIX_TOKENS = 20

WARM, WARM_FLOOR = "prefix cached", "floor, new tokens"
COLD, COLD_FLOOR = "nothing cached", "floor, all tokens"
SHARED, OWN, BATCH_FLOOR = "one shared prefix", "own prefixes", "floor, batch"
CONTEXT, CONTEXT_FLOOR = "one sequence", "floor, one token"
DECODE, SUFFIX, COPY = "attention, decode step", f"attention, {SUFFIX_TOKENS} new tokens", "copy into one extent"
UNITS: Final = {
    **dict.fromkeys((WARM, WARM_FLOOR, COLD, COLD_FLOOR, CONTEXT, CONTEXT_FLOOR), "tokens"),
    **dict.fromkeys((SHARED, OWN, BATCH_FLOOR), "sequences"),
    **dict.fromkeys((DECODE, SUFFIX, COPY), "extents"),
}  # what a curve is drawn over


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and how often. All prefixes but the scattered one are whole blocks."""

    cached: tuple[int, ...] = tuple(range(1024, 7168 + 1, 1024))
    sequences: tuple[int, ...] = (1, 2, 4, 8, 16)
    shared: int = 3072  # tokens of the prefix that all sequences have in common
    own: int = 1024  # tokens of the prefix that each has to itself
    scattered: int = 3340  # tokens of the prefix that lies in many extents
    colds: int = 2
    rounds: int = 7
    decodes: int = 15  # steps timed for each point


class Points:
    """Measured values by curve and place, in the order in which they came."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int], list[float]] = {}

    def add(self, curve: str, at: int, *ms: float) -> None:
        """Take in values of one point."""
        self._values.setdefault((curve, at), []).extend(ms)

    def series(self) -> list[Series]:
        """Return every point, curve by curve along each."""
        ordered = sorted(self._values, key=lambda key: (list(UNITS).index(key[0]), key[1]))
        return [
            Series(
                name=f"{curve}: {at:,} {UNITS[curve] if at > 1 else UNITS[curve][:-1]}",
                unit="ms",
                values=tuple(self._values[curve, at]),
                curve=curve,
                at=at,
            )
            for curve, at in ordered
        ]


def steps(plan: Plan | None = None) -> int:
    """Return how often `run` advances."""
    plan = plan or Plan()
    return 4 + plan.colds * len(plan.cached) + plan.rounds + 2 * len(plan.sequences) + len(plan.cached) + plan.rounds


def run(advance: Advance) -> Result:
    """Measure on the default model."""
    folder = resolve_in_subprocess(DEFAULT_MODEL, cache_dir(Settings(), os.environ), lambda *_: None)
    advance("the model is at hand")
    return measure(Path(folder.path), folder.name, Plan(), advance)


def measure(folder: Path, model: str, plan: Plan, advance: Advance) -> Result:
    """Measure on the model in `folder`."""
    from benchmarks import curves, extents
    from benchmarks.timed import Timed
    from engine.worker import build_core

    core = build_core(EngineConfig(model=model, model_path=str(folder), kv_bytes=KV_BYTES))
    points = Points()
    timed = Timed(core)
    advance("the model is loaded")
    curves.Room(plan, timed, points, advance).measure()
    scattered = extents.Scattered(timed.model, tokens=plan.scattered, block_tokens=core.card.block_tokens)
    extents.measure(scattered, plan.rounds, points, advance)
    core.grammars.close()
    series = points.series()
    return Result(
        name=NAME,
        targets=(),
        series=tuple(series),
        facts={
            "model": model,
            "suffix_tokens": SUFFIX_TOKENS,
            "shared_prefix_tokens": plan.shared,
            "own_prefix_tokens": plan.own,
            "scattered_tokens": plan.scattered,
            "scattered_bytes": plan.scattered * core.card.kv_bytes_per_token,
            "kv_bytes_per_token": core.card.kv_bytes_per_token,
            "ms_per_1000_cached": round(1000 * _slope(series, WARM), 2),
            "ms_per_1000_of_context": round(1000 * _slope(series, CONTEXT), 2),
            "decode_ms_per_extent": round(_slope(series, DECODE), 4),
            "suffix_ms_per_extent": round(_slope(series, SUFFIX), 4),
        },
    )


def break_even(copy: Mapping[int, float], attention: Mapping[int, float]) -> dict[int, float | None]:
    """Return after how many steps a copy has paid, by extents; None: no step was dearer than in one extent."""
    return {
        extents: copy[extents] / (ms - attention[1]) if ms > attention[1] else None
        for extents, ms in attention.items()
        if extents > 1
    }


def pays_from(paid: Mapping[int, float | None], steps: int) -> int | None:
    """Return from how many extents on a copy pays within so many steps, always; None: not even at the most extents."""
    least = None
    for extents in sorted(paid, reverse=True):
        after = paid[extents]
        if after is None or after > steps:
            break
        least = extents
    return least


def _slope(series: Sequence[Series], curve: str) -> float:
    return slope([(each.at, each.median) for each in series if each.curve == curve])
