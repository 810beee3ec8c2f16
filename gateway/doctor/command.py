"""`keepwarm doctor`: reads files, looks, prints, and says by its exit code whether something breaks the prefix.

Owns files, standard input and the progress bar. Exit code 1: something breaks the prefix; 0: nothing does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gateway.doctor import report
from gateway.doctor.bodies import APIS, Api, load, read
from gateway.doctor.errors import Unusable
from gateway.doctor.lint import lint
from gateway.doctor.log import look
from gateway.doctor.pair import broken
from gateway.doctor.rates import per_day
from gateway.doctor.seen import Seen, see
from gateway.prompt import Renderer

PAGE_WIDTH = 160  # columns where no terminal bounds them


def run(
    files: list[str],
    *,
    log: str | None,
    rate: str | None,
    api: str | None,
    as_json: bool,
    renderer: Callable[[], Renderer],
) -> int:
    """Look at one or two bodies, or at a log, and return the exit code. Raises Unusable."""
    known = _api(api)
    daily = None if rate is None else per_day(rate)
    console = Console() if sys.stdout.isatty() else Console(width=PAGE_WIDTH, no_color=True)
    if (log is None) == (not files):
        raise Unusable("name one or two files with request bodies (- for standard input), or a log with --log")
    if files.count("-") > 1:
        raise Unusable("standard input can be read only once: give the other body in a file")
    if log is not None:
        return _log(log, daily, known, console if not as_json else None, renderer)
    texts = [_text(name) for name in files]
    documents = [load(text, _named(name)) for text, name in zip(texts, files, strict=True)]
    bodies = [read(document, _named(name), api=known) for document, name in zip(documents, files, strict=True)]
    made = renderer()
    seen = [see(made, body) for body in bodies]
    found = _one(seen[0], daily) if len(seen) == 1 else _two(seen[0], seen[1], daily)
    if as_json:
        _print_json(found)
    elif len(seen) == 1:
        report.show_findings(console, bodies[0].name, found)
    else:
        report.show_pair(console, (bodies[0].name, bodies[1].name), found)
    return int(found["breaks"])


def _one(seen: Seen, daily: float | None) -> report.Json:
    return report.findings_json(lint(seen), seen.made.tokens, daily)


def _two(earlier: Seen, current: Seen, daily: float | None) -> report.Json:
    findings = list(dict.fromkeys([*earlier.body.findings, *current.body.findings]))
    found = report.pair_json(broken(current, earlier), findings, daily)
    found["breaks"] |= any(finding.level == "error" for finding in findings)
    return found


def _log(
    name: str, daily: float | None, api: Api | None, console: Console | None, renderer: Callable[[], Renderer]
) -> int:
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            size = 0 if name == "-" else Path(name).stat().st_size
            found = report.log_json(look(renderer(), _lines(file, size), api=api), daily)
    except OSError as error:
        raise Unusable(f"{name} cannot be read: {error.strerror or error}") from error
    if console is None:
        _print_json(found)
    else:
        report.show_log(console, found)
    return int(found["breaks"])


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield a log's lines with a bar for a person who waits."""
    console = Console(stderr=True)
    columns = (TextColumn("Reading the log"), BarColumn(), TextColumn("{task.fields[lines]:,} requests"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task: TaskID = bar.add_task("", total=size or None, lines=0)
        for number, line in enumerate(file, start=1):
            yield line
            bar.update(task, advance=len(line), lines=number)


def _text(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Unusable(f"{name} cannot be read: {error.strerror or error}") from error


def _api(name: str | None) -> Api | None:
    known = next((api for api in APIS if api == name), None)
    if name is not None and known is None:
        raise Unusable(f"--api {name}: it is one of {', '.join(APIS)}")
    return known


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _print_json(found: report.Json) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
