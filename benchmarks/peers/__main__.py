"""`python -m benchmarks.peers`: install the peers, load every server in turn, show one table, keep the result.

Tables go to standard output, progress to standard error; with `--json` standard output is one line of JSON instead.
A server that fails is told at the end, and the exit status is 1; `--resume` measures what is not there yet.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import environment, report
from benchmarks.measure import Advance, ratio
from benchmarks.packages import peers_dir
from benchmarks.peers import figures, servers, sitting
from benchmarks.peers.load import WORDS
from benchmarks.peers.servers import Server
from benchmarks.peers.sitting import Plan, Sitting, SittingRefused

SEED = 1000
WIDTH = 130  # columns of the table, where no terminal is wider


def main() -> None:
    """Measure, show, keep."""
    given = _given()
    plan = Plan(
        servers=tuple(server.name for server in servers.ALL if not given.names or server.name in given.names),
        repeat=given.repeat,
        prefix_words=given.prefix_words,
        seed=given.seed,
        generator=sitting.named(given.generator),
    )
    path: Path = given.sitting or peers_dir() / "sitting.json"
    try:
        found = sitting.go_on(path, plan) if given.resume else Sitting(plan=plan, card=environment.take_card())
    except SittingRefused as error:
        sys.exit(f"--resume: {error}")
    found, failures = _sit(found, given.generator, path)
    result = figures.result(found.rounds(), _facts(found))
    if not failures and not given.no_results:
        report.write(found.card, environment.load(), result)
    if not given.json:
        console = Console()
        console.width = max(console.width, WIDTH)
        report.show_card(console, found.card)
        console.print(table_of(found.rounds()))
        report.show_targets(console, result)
    print(report.last_line(found.card, [result]))
    if failures:
        sys.exit("\n".join(["not measured (go on with --resume):", *failures]))


def _given() -> argparse.Namespace:
    names = [server.name for server in servers.ALL]
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description="Keepwarm beside other engines.")
    parser.add_argument("names", nargs="*", metavar="SERVER", help=f"of: {', '.join(names)} (default: all)")
    parser.add_argument("--repeat", type=int, default=1, help="rounds over all servers (default: 1)")
    parser.add_argument("--prefix-words", type=int, default=WORDS, help=f"words of a long text (default: {WORDS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"number of the first text (default: {SEED})")
    parser.add_argument("--generator", type=Path, metavar="PATH", help="another program that puts the load on")
    parser.add_argument("--sitting", type=Path, metavar="FILE", help="what was measured so far (default: cache folder)")
    parser.add_argument("--resume", action="store_true", help="go on with the sitting that was broken off")
    parser.add_argument("--json", action="store_true", help="print one line of JSON and no table")
    parser.add_argument("--no-results", action="store_true", help="leave benchmarks/results as it is")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(names))
    if unknown:
        parser.error(f"there is no server {unknown[0]!r}; choose from: {', '.join(names)}")
    if given.repeat < 1 or given.prefix_words < 2:  # noqa: PLR2004 - a chat takes half of them
        parser.error("--repeat: at least 1; --prefix-words: at least 2")
    if given.generator is not None:
        given.generator = given.generator.resolve()
        if not given.generator.is_file():
            parser.error(f"--generator: there is no file {given.generator}")
    return given


def _sit(found: Sitting, generator: Path | None, path: Path) -> tuple[Sitting, list[str]]:
    """Install what is missing, then measure what is not there yet. Return it all, and what failed."""
    by_name = {server.name: server for server in servers.ALL}
    chosen = [by_name[name] for name in found.plan.servers]
    with report.progress(figures.NAME, 1 + len(chosen) + len(found.left())) as (advance, now):
        now("the model's weights")
        model = servers.model_folder()
        advance("the model's weights are there")
        ready, failures = _prepared(chosen, advance, now)
        sit = partial(sitting.sit, found, ready, model=model, generator=generator, path=path, advance=advance, now=now)
        try:
            found, failed = asyncio.run(_stoppable(sit))
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit("stopped; go on with --resume")
    return found, failures + failed


def _prepared(chosen: Sequence[Server], advance: Advance, now: Advance) -> tuple[list[Server], list[str]]:
    ready, failures = [], []
    for server in chosen:
        now(f"{server.name} {server.version}: installing")
        try:
            server.prepare()
        except (RuntimeError, OSError) as error:
            failures.append(f"{server.name}: {error}")
        else:
            ready.append(server)
        advance(f"{server.name}: installed")
    return ready, failures


async def _stoppable(work: Callable[[], Coroutine[None, None, tuple[Sitting, list[str]]]]) -> tuple[Sitting, list[str]]:
    """Do the work; SIGTERM ends it as an interrupt does, so that no server outlives us."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work()


def _facts(found: Sitting) -> dict[str, float | int | str]:
    plan, rounds = found.plan, found.rounds()
    facts: dict[str, float | int | str] = {
        "load": plan.generator,
        "words of a long text": plan.prefix_words,
        "rounds": plan.repeat,
        "number of the first text": plan.seed,
        "broken off and gone on with": found.goings_on,
    }
    for server in servers.ALL:
        for rows in rounds.get(server.name, ())[:1]:
            facts[server.name] = server.told
            for each in rows:
                if each.name in {"qa cold", "qa warm"}:
                    cached = f"{each.cached:,} cached" if server.tells else "cached: not told"
                    facts[f"{server.name}: {each.name}"] = (
                        f"{each.prompt:,} prompt tokens, {cached}, {each.out} answered"
                    )
            starts = statistics.median(run.start_s for run in found.runs if run.server == server.name)
            facts[f"{server.name}: seconds until ready"] = round(starts, 1)
    return facts


def table_of(rounds: figures.Rounds) -> Table:
    """Return one row for each server; in Keepwarm's, how many times the best peer's a value is."""
    table = Table(title="Medians (in brackets: times the best peer's)", box=box.SIMPLE_HEAD)
    table.add_column("server")
    for measure in figures.MEASURES:
        table.add_column(measure.heading, justify="right")
    for name, measured in rounds.items():
        if measured:
            table.add_row(name, *(_cell(rounds, name, measure) for measure in figures.MEASURES))
    return table


def _cell(rounds: figures.Rounds, name: str, measure: figures.Measure) -> str:
    value = figures.median(rounds, name, measure)
    if value is None:
        return "not measured"
    text = f"{value:,.2f}" if measure.unit == "s" else f"{value:,.1f}"
    best = figures.best_peer(rounds, measure)
    by = ratio(value, best[1]) if best is not None and name == figures.OURS else None
    return text if by is None else f"{text} ({by:.2f})"


if __name__ == "__main__":
    main()
