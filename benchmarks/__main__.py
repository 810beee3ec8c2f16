"""`python -m benchmarks [NAME …]`: run the benchmarks, keep their results, end in one JSON line.

Tables go to standard output, progress to standard error. A missed target is a result, not a failure: the exit status
is 0 whenever everything could be measured.
"""

from __future__ import annotations

import argparse
import os

from rich.console import Console

from benchmarks import cost, environment, front, kv_dtypes, performance, report, second_turn, seeing, store
from benchmarks.measure import Benchmark, Result
from engine.client import TUNING

BENCHMARKS: dict[str, tuple[Benchmark, int]] = {  # what to run, and how often it advances
    second_turn.NAME: (second_turn.run, second_turn.steps()),
    cost.NAME: (cost.run, cost.steps()),
    store.NAME: (store.run, store.steps()),
    front.NAME: (front.run, front.steps()),
    seeing.NAME: (seeing.run, seeing.steps()),
    kv_dtypes.NAME: (kv_dtypes.run, kv_dtypes.steps()),
}


def main() -> None:
    """Run what was asked for, or everything."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure what Keepwarm costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHMARKS)} (default: all)")
    names: list[str] = parser.parse_args().names or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; choose from: {', '.join(BENCHMARKS)}")
    for name, value in TUNING.items():  # as the engine's own process starts, before anything imports torch here
        os.environ.setdefault(name, value)
    card = environment.take_card()
    console = Console()
    report.show_card(console, card)
    results = []
    for name in names:
        result = _run(name)
        report.show_result(console, result)
        report.write(card, environment.load(), result)
        if name == cost.NAME:
            performance.write()
        results.append(result)
    print(report.last_line(card, results))


def _run(name: str) -> Result:
    benchmark, steps = BENCHMARKS[name]
    with report.progress(name, steps) as (advance, _):
        return benchmark(advance)


if __name__ == "__main__":
    main()
