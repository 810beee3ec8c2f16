"""`python -m benchmarks.gateway_peers`: install the rivals, measure every gateway, show one table, keep the result.

Tables go to standard output, progress to standard error; with `--json` standard output is one line of JSON instead.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence

import aiohttp
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import environment, report
from benchmarks.gateway_peers import figures, gateways
from benchmarks.gateway_peers.figures import OURS, Added
from benchmarks.gateway_peers.load import SHAPES, SMALL, Run, Shape, run
from benchmarks.measure import Advance, Result, ratio

REQUESTS = 200
ROUNDS = 3
LARGE_SHARE = 5  # of long bodies so many times fewer are sent
LEAST = 20
WIDTH = 120  # columns of the table, where no terminal is wider
COLUMNS = (
    ("first_p50", "added first\ntoken p50 ms"),
    ("first_p99", "p99"),
    ("total_p50", "added total\np50 ms"),
    ("total_p99", "p99"),
    ("per_second", "answers\n/s"),
)


def main() -> None:
    """Measure, show, keep."""
    names = [gateway.name for gateway in gateways.ALL]
    parser = argparse.ArgumentParser(prog="benchmarks.gateway_peers", description="What gateways add.")
    parser.add_argument("names", nargs="*", metavar="GATEWAY", help=f"of: {', '.join(names)} (default: all)")
    parser.add_argument("-n", type=int, default=REQUESTS, help=f"requests of a run (default: {REQUESTS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"pairs of runs (default: {ROUNDS})")
    parser.add_argument("--json", action="store_true", help="print one line of JSON and no table")
    parser.add_argument("--no-results", action="store_true", help="leave benchmarks/results as it is")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(names))
    if unknown:
        parser.error(f"there is no gateway {unknown[0]!r}; choose from: {', '.join(names)}")
    if given.n < 1 or given.rounds < 1:
        parser.error("-n and --rounds: at least 1")
    chosen = [gateway for gateway in gateways.ALL if not given.names or gateway.name in given.names]
    card = environment.take_card()
    rows = _measured(chosen, given.n, given.rounds)
    facts = {"requests of a run": given.n, "rounds": given.rounds} | {one.name: one.version for one in chosen}
    result = figures.result(rows, facts)
    if not given.no_results:
        report.write(card, environment.load(), result)
    if not given.json:
        console = Console()
        console.width = max(console.width, WIDTH)
        _show(console, card, rows, result)
    print(report.last_line(card, [result]))


def _measured(chosen: Sequence[gateways.Gateway], requests: int, rounds: int) -> list[Added]:
    with report.progress(figures.NAME, len(chosen) * (1 + rounds * len(SHAPES))) as (advance, now):
        for gateway in chosen:
            now(f"{gateway.name} {gateway.version}: installing")
            gateway.prepare()
            advance(f"{gateway.name}: installed")
        return figures.rows(asyncio.run(_pairs(chosen, requests, rounds, advance)))


async def _pairs(
    chosen: Sequence[gateways.Gateway], requests: int, rounds: int, advance: Advance
) -> dict[tuple[str, Shape], list[tuple[Run, Run]]]:
    pairs: dict[tuple[str, Shape], list[tuple[Run, Run]]] = {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(connector=connector, read_bufsize=1 << 22, timeout=timeout) as http,
        gateways.upstream_process(http) as straight,
    ):
        for gateway in chosen:
            async with gateways.running(http, gateway, straight) as url:
                for shape in SHAPES:
                    count = requests if shape.size == SMALL else max(LEAST, requests // LARGE_SHARE)
                    for each in (straight, url):
                        await run(http, each, gateways.KEY, shape, LEAST)  # connections, first allocations
                    for round_ in range(rounds):
                        direct = await run(http, straight, gateways.KEY, shape, count)
                        through = await run(http, url, gateways.KEY, shape, count)
                        pairs.setdefault((gateway.name, shape), []).append((direct, through))
                        advance(f"{gateway.name}: {shape.name}: round {round_ + 1}")
    return pairs


def _show(console: Console, card: environment.Card, rows: Sequence[Added], result: Result) -> None:
    report.show_card(console, card)
    table = Table(title="What a gateway adds (medians; in brackets: times the best rival's)", box=box.SIMPLE_HEAD)
    table.add_column("body, answer, at a time")
    table.add_column("gateway")
    for _, heading in COLUMNS:
        table.add_column(heading, justify="right")
    table.add_column("straight\n/s", justify="right")
    before: Shape | None = None
    for row in rows:
        shape = "" if row.shape == before else row.shape.name
        direct = f"{statistics.median(row.direct_per_second):.0f}"
        table.add_row(shape, row.gateway, *(_cell(rows, row, what) for what, _ in COLUMNS), direct)
        before = row.shape
    console.print(table)
    report.show_targets(console, result)


def _cell(rows: Sequence[Added], row: Added, what: str) -> str:
    value = statistics.median(getattr(row, what))
    by = ratio(value, figures.best_rival(rows, row, what)) if row.gateway == OURS else None
    text = f"{value:.0f}" if what == "per_second" else f"{value:.2f}"
    return text if by is None else f"{text} ({by:.2f})"


if __name__ == "__main__":
    main()
