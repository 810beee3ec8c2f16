"""What a sitting comes to: one value for each server and measure, ratios to the best peer, and the promises. Pure.

Rule: a value is the median over the sitting's rounds, and a ratio is of two such values of the same sitting.
"""

from __future__ import annotations

import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.measure import Result, Series, Target, ratio
from benchmarks.peers.rows import Row, RowsRefused

NAME: Final = "peers"
OURS: Final = "keepwarm"
OURS_COMPILED: Final = "keepwarm-compiled"  # shown beside the others; promises are held as it starts
VLLM, VLLM_ALL_CORES = "vllm", "vllm-all-cores"
LEAST_CACHED: Final = 0.5  # of warm prompts, on a server that tells; less would not be warm

Rounds = Mapping[str, Sequence[Sequence[Row]]]  # by server: the rows of each round


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One column: which number of which row, as people read it."""

    key: str
    heading: str
    row: str
    field: str
    unit: str = "ms"

    def of(self, rows: Sequence[Row]) -> float:
        """Return the value in this measure's unit. Raises RowsRefused."""
        for each in rows:
            if each.name == self.row:
                value = getattr(each, self.field)
                if value is None:
                    raise RowsRefused(f"{self.row}: there is no {self.field}")
                return float(value) * (1000 if self.unit == "ms" else 1)
        raise RowsRefused(f"there is no row {self.row!r}")


COLD: Final = Measure(key="cold", heading="cold\nfirst ms", row="qa cold", field="ttft_p50")
WARM: Final = Measure(key="warm", heading="warm\nfirst ms", row="qa warm", field="ttft_p50")
TURNS: Final = Measure(key="turns", heading="later turns\nfirst ms", row="chat turns 2-6", field="ttft_p50")
GAP: Final = Measure(key="gap", heading="between\ntokens ms", row="qa warm", field="itl")
TURNS_GAP: Final = Measure(key="turns_gap", heading="in turns\nms", row="chat turns 2-6", field="itl")
BURST: Final = Measure(key="burst", heading="burst\nall s", row="burst 8x2", field="wall", unit="s")
MIX_GAP: Final = Measure(key="mix_gap", heading="mix between\ntokens ms", row="mix short", field="itl")
MIX_LONG: Final = Measure(key="mix_long", heading="mix long\nfirst s", row="mix long", field="ttft_max", unit="s")
MEASURES: Final = (COLD, WARM, TURNS, GAP, TURNS_GAP, BURST, MIX_GAP, MIX_LONG)
WORDS: Final = {
    "cold": "cold first token",
    "warm": "warm first token",
    "turns": "first token of later turns",
    "gap": "between two tokens of warm answers",
    "turns_gap": "between two tokens of later turns",
    "burst": "burst, all answers",
    "mix_gap": "mix: between two tokens of short answers",
    "mix_long": "mix: first token of long prompts",
}
AGAINST_BEST: Final = ((COLD, 0.70), (WARM, 0.65), (TURNS, 0.60), (GAP, 1.2), (BURST, 0.60))
AGAINST_VLLM: Final = ((GAP, 0.85), (MIX_GAP, 0.6), (MIX_LONG, 1.0))
BURST_IN_COLDS: Final = 1.3


def check(rows: Sequence[Row], *, tells: bool) -> None:
    """Insist that every measure is there, and that the warm was warm where the server tells. Raises RowsRefused."""
    for measure in MEASURES:
        measure.of(rows)
    warm = next(each for each in rows if each.name == WARM.row)
    if tells and warm.cached < LEAST_CACHED * warm.prompt:
        raise RowsRefused(f"{warm.name}: only {warm.cached} of {warm.prompt} prompt tokens were cached")


def median(rounds: Rounds, server: str, measure: Measure) -> float | None:
    """Return a server's value, or None where it was not measured."""
    values = [measure.of(rows) for rows in rounds.get(server, ())]
    return statistics.median(values) if values else None


def best_peer(rounds: Rounds, measure: Measure, among: Container[str] | None = None) -> tuple[str, float] | None:
    """Return the peer with the least value, of all or of those named."""
    peers = [name for name in rounds if name not in (OURS, OURS_COMPILED) and (among is None or name in among)]
    found = [(value, name) for name in peers if (value := median(rounds, name, measure)) is not None]
    return (min(found)[1], min(found)[0]) if found else None


def result(rounds: Rounds, facts: Mapping[str, float | int | str]) -> Result:
    """Return what was promised and what was measured."""
    series = [
        Series(
            name=f"{server}: {WORDS[measure.key]}",
            unit=measure.unit,
            values=tuple(measure.of(rows) for rows in all_rows),
        )
        for measure in MEASURES
        for server, all_rows in rounds.items()
        if all_rows
    ]
    return Result(name=NAME, targets=tuple(targets(rounds)), series=tuple(series), facts=facts)


def targets(rounds: Rounds) -> list[Target]:
    """Hold ours against the best peer, against vLLM and against itself, as far as they were measured."""
    found = [
        _against(measure, limit, median(rounds, OURS, measure), best_peer(rounds, measure, among), among)
        for among, held in ((None, AGAINST_BEST), ((VLLM, VLLM_ALL_CORES), AGAINST_VLLM))
        for measure, limit in held
    ]
    wall, cold = median(rounds, OURS, BURST), median(rounds, OURS, COLD)
    by = None if wall is None or cold is None else ratio(1000 * wall, 2 * cold)
    if by is not None and wall is not None and cold is not None:
        ceiling = f"two cold prefills one after the other take {2 * cold / 1000:.2f} s, the burst {wall:.2f} s"
        name = f"{WORDS['burst']}, by two own cold first tokens"
        found.append(Target(name=name, value=by, limit=BURST_IN_COLDS, unit="ratio", ceiling=ceiling))
    return [each for each in found if each is not None]


def _against(
    measure: Measure, limit: float, ours: float | None, best: tuple[str, float] | None, among: Container[str] | None
) -> Target | None:
    if ours is None or best is None:
        return None
    peer, theirs = best
    by = ratio(ours, theirs)
    if by is None:
        return None
    whose = "the best peer's" if among is None else "vLLM's"
    ceiling = f"{peer}: {_told(theirs, measure)}, Keepwarm: {_told(ours, measure)}"
    return Target(name=f"{WORDS[measure.key]}, by {whose}", value=by, limit=limit, unit="ratio", ceiling=ceiling)


def _told(value: float, measure: Measure) -> str:
    return f"{value:,.1f} ms" if measure.unit == "ms" else f"{value:,.2f} s"
