"""How results are shown and kept: tables for a person, JSON and Markdown files, one JSON line for a program."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.environment import Card
from benchmarks.measure import Advance, Result, Target

RESULTS = Path(__file__).parent / "results"


@contextlib.contextmanager
def progress(name: str, total: int) -> Iterator[tuple[Advance, Advance]]:
    """Show on standard error how far a benchmark is: a bar on a terminal, lines elsewhere.

    Gives two functions: a step is done; what is going on now.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield (partial(_tell, name), partial(_tell, name))
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=total)
        yield (
            lambda what: bar.update(task, advance=1, description=f"{name}: {what}"),
            lambda what: bar.update(task, description=f"{name}: {what}"),
        )


def _tell(name: str, what: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {name}: {what}", file=sys.stderr, flush=True)


def show_card(console: Console, card: Card) -> None:
    """Print the environment card."""
    table = Table(title="Environment", box=box.SIMPLE_HEAD, show_header=False)
    for name, value in card_rows(card):
        table.add_row(name, value)
    console.print(table)


def show_result(console: Console, result: Result) -> None:
    """Print medians and targets of one benchmark."""
    medians = Table(title=f"{result.name}: measured", box=box.SIMPLE_HEAD)
    for heading in ("", "median", "p99", "runs"):
        medians.add_column(heading, justify="right" if heading else "left")
    for row in _series_rows(result):
        medians.add_row(*row)
    console.print(medians)
    if result.targets:
        show_targets(console, result)


def show_targets(console: Console, result: Result) -> None:
    """Print what was promised of one benchmark, and whether it held."""
    targets = Table(title=f"{result.name}: promised", box=box.SIMPLE_HEAD)
    for heading in ("", "measured", "at most", "", "compared with"):
        targets.add_column(heading, overflow="fold")
    for target in result.targets:
        mark = "[green]met[/green]" if target.met else "[red]missed[/red]"
        targets.add_row(target.name, number(target.value), _limit(target), mark, target.ceiling)
    console.print(targets)


def write(card: Card, load_after: float, result: Result, folder: Path = RESULTS) -> None:
    """Keep one benchmark's result as `NAME.json` and `NAME.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"environment": asdict(card) | {"load_after": load_after}, **result.document()}
    (folder / f"{result.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    (folder / f"{result.name}.md").write_text(markdown(card, load_after, result))


def markdown(card: Card, load_after: float, result: Result) -> str:
    """Return one benchmark's result as a page."""
    facts = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in result.facts.items()]
    promised = [
        (each.name, number(each.value), _limit(each), "met" if each.met else "**missed**", each.ceiling)
        for each in result.targets
    ]
    parts = [
        f"# {result.name}",
        *(["## Promised", grid(("", "measured", "at most", "", "compared with"), promised)] if promised else []),
        "## Measured",
        grid(("", "median", "p99", "runs"), _series_rows(result)),
        "## Facts",
        grid(("", ""), facts),
        "## Environment",
        grid(("", ""), [*card_rows(card), ("load after", f"{load_after}")]),
    ]
    return "\n\n".join(parts) + "\n"


def last_line(card: Card, results: Sequence[Result]) -> str:
    """Return everything as one line of JSON."""
    document = {
        "met": all(result.met for result in results),
        "environment": asdict(card),
        "benchmarks": {result.name: result.document() for result in results},
    }
    return msgspec.json.encode(document).decode()


def number(value: float) -> str:
    """Write a number with three significant digits, thousands whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - a thousand


def _limit(target: Target) -> str:
    unit = "" if target.unit == "ratio" else f" {target.unit}"
    return f"{number(target.limit)}{unit}"


def _series_rows(result: Result) -> list[tuple[str, str, str, str]]:
    return [
        (each.name, f"{number(each.median)} {each.unit}", f"{number(each.p99)} {each.unit}", str(len(each.values)))
        for each in result.series
    ]


def card_rows(card: Card) -> list[tuple[str, str]]:
    """Return the environment card as rows of a table."""
    libraries = ", ".join(f"{name} {number_}" for name, number_ in card.versions.items())
    return [
        ("taken at", card.taken_at),
        ("processor", f"{card.cpu}, {card.cores} cores, {card.threads} threads in the engine"),
        ("memory", f"{card.memory_gib} GiB"),
        ("system", card.system),
        ("software", f"Python {card.python}, {libraries}"),
        ("load before", f"{card.load} (above 0.3, the numbers are another process's too)"),
    ]


def grid(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
