"""`python -m benchmarks.deterministic`: what deterministic answers cost, beside the normal mode.

Two servers, alike but for the flag, started together and loaded in turns with the same texts: round by round, the
second of one round first in the next. Each ratio is of one round, and its median over the rounds is held against the
promise. The load is that of `benchmarks.peers`, questions over one text and one growing conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
from rich.console import Console

from benchmarks import environment, processes, report
from benchmarks.measure import Advance, Result, Series, Target
from benchmarks.peers.rows import Row, read_rows
from benchmarks.peers.sitting import named
from engine.weights import DEFAULT_MODEL
from gateway.demo.server import free_ports

NAME: Final = "deterministic"
MODES: Final = {"normal": (), "deterministic": ("--deterministic",)}
WORK: Final = "qa,chat"
ROUNDS, WORDS = 3, 2400
ROUND_SEEDS: Final = 10_000  # texts of two rounds have nothing in common
PATIENCE_S: Final = 1800.0
STRAY_SHARE: Final = 0.02  # of a cold prompt that may have been read: the template's opening


@dataclass(frozen=True, slots=True)
class Promise:
    """How many times the normal mode's time it may take."""

    name: str
    row: str
    between: bool  # tokens, or until the first one
    limit: float

    def of(self, rows: dict[str, Row]) -> float:
        """Return the time in milliseconds."""
        time_s = rows[self.row].itl if self.between else rows[self.row].ttft_p50
        if time_s is None:
            raise RuntimeError(f"{self.row}: no answer had two tokens")
        return time_s * 1000


PROMISES: Final = (
    Promise("cold first token, questions", "qa cold", between=False, limit=1.3),
    Promise("cold first token, conversation", "chat turn 1", between=False, limit=1.3),
    Promise("warm first token, questions", "qa warm", between=False, limit=1.5),
    Promise("warm first token, conversation", "chat turns 2-6", between=False, limit=1.5),
    Promise("between tokens, questions", "qa warm", between=True, limit=2.0),
    Promise("between tokens, conversation", "chat turns 2-6", between=True, limit=2.0),
)

Round = dict[str, dict[str, Row]]  # by mode, by row


def order(number: int) -> list[str]:
    """Return who is first in a round: the other one in the next."""
    modes = list(MODES)
    return modes if number % 2 == 0 else modes[::-1]


def result_of(rounds: Sequence[Round], facts: dict[str, float | int | str]) -> Result:
    """Hold the rounds against the promises."""
    targets, series = [], []
    for promise in PROMISES:
        times = {mode: tuple(promise.of(each[mode]) for each in rounds) for mode in MODES}
        ratios = [ours / theirs for ours, theirs in zip(times["deterministic"], times["normal"], strict=True)]
        targets.append(
            Target(
                name=promise.name,
                value=statistics.median(ratios),
                limit=promise.limit,
                unit="ratio",
                ceiling=", ".join(f"{mode} {statistics.median(values):,.0f} ms" for mode, values in times.items()),
            )
        )
        series += [Series(name=f"{promise.name}, {mode}", unit="ms", values=values) for mode, values in times.items()]
    return Result(name=NAME, targets=tuple(targets), series=tuple(series), facts=facts)


def insist(rows: dict[str, Row]) -> None:
    """Refuse to compare what was not cold and warm as meant."""
    cold, warm = rows["qa cold"], rows["qa warm"]
    if cold.cached > STRAY_SHARE * cold.prompt:
        raise RuntimeError(f"a cold prompt found {cold.cached} of {cold.prompt} tokens in the cache")
    if warm.cached < (1 - 2 * STRAY_SHARE) * warm.prompt:
        raise RuntimeError(f"warm prompts found only {warm.cached} of {warm.prompt} tokens in the cache")


async def measure(given: argparse.Namespace, advance: Advance) -> list[Round]:
    """Start both servers, put the load on them in turns, stop them."""
    async with contextlib.AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="keepwarm-deterministic-")))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        urls = {}
        for mode, flags in MODES.items():
            port, other = free_ports(2)
            own = home / mode
            own.mkdir()
            command = [sys.executable, "-m", "gateway.cli", "serve", "--model", given.model, *flags]
            started = processes.Started(
                command=[*command, "--port", str(port), "--admin-port", str(other)],
                ready="/ready",
                environ=processes.own_environ(own),
                start_s=PATIENCE_S,
            )
            urls[mode] = f"http://127.0.0.1:{port}"
            began = time.monotonic()
            await stack.enter_async_context(processes.running(http, started, urls[mode], own))
            advance(f"{mode}: ready after {time.monotonic() - began:.0f} s")
        rounds: list[Round] = []
        for number in range(given.repeat):
            found: Round = {}
            for mode in order(number):
                out = home / f"{mode}-{number}.json"
                await load(given, urls[mode], number, out)
                found[mode] = {row.name: row for row in read_rows(out.read_bytes())}
                insist(found[mode])
                advance(f"round {number + 1}: {mode}")
            rounds.append(found)
    return rounds


async def load(given: argparse.Namespace, url: str, number: int, out: Path) -> None:
    """Put one round's load on a server. Raises RuntimeError when the generator fails."""
    program = ["-m", "benchmarks.peers.load"] if given.generator is None else [str(given.generator)]
    options = ["--work", WORK, "--prefix-words", str(given.prefix_words), "--json", str(out)]
    seed = str(given.seed + ROUND_SEEDS * number)
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, *program, url, called(given.model), *options, "--seed", seed],
        env=os.environ | processes.own_environ(out.parent),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    finally:
        await processes.stopped(process)
    if process.returncode:
        raise RuntimeError(f"the load on {url} ended with status {process.returncode}")


def called(model: str) -> str:
    """Return what requests call a model that was given as a name or as a folder."""
    return Path(model).name if Path(model).is_dir() else model


def options() -> argparse.ArgumentParser:
    """Return what may be asked for."""
    parser = argparse.ArgumentParser(prog="benchmarks.deterministic", description="What deterministic answers cost.")
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"what both serve (default: {DEFAULT_MODEL})")
    parser.add_argument("--repeat", type=int, default=ROUNDS, help=f"rounds over both servers (default: {ROUNDS})")
    parser.add_argument("--prefix-words", type=int, default=WORDS, help=f"words of the text (default: {WORDS})")
    parser.add_argument("--seed", type=int, default=1, help="number of the first text")
    parser.add_argument("--generator", type=Path, metavar="PATH", help="another program that puts the load on")
    parser.add_argument("--no-results", action="store_true", help="keep no files")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show, keep; the last line is one JSON object."""
    parser = options()
    given = parser.parse_args(arguments)
    if given.repeat < 1:
        parser.error("--repeat: one round at least")
    if given.generator is not None:
        given.generator = given.generator.resolve()
        if not given.generator.is_file():
            parser.error(f"--generator: there is no file {given.generator}")
    card = environment.take_card()
    console = Console()
    report.show_card(console, card)
    with progress(len(MODES) * (1 + given.repeat)) as advance:
        rounds = asyncio.run(measure(given, advance))
    result = result_of(
        rounds, {"model": given.model, "prefix_words": given.prefix_words, "generator": named(given.generator)}
    )
    report.show_result(console, result)
    if not given.no_results:
        report.write(card, environment.load(), result)
    print(report.last_line(card, [result]))


@contextlib.contextmanager
def progress(steps: int) -> Iterator[Advance]:
    """Show how far it is."""
    with report.progress(NAME, steps) as (advance, _):
        yield advance


if __name__ == "__main__":
    main()
