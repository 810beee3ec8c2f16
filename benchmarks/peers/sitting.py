"""One sitting: every server in turn, round by round, each fresh, alone, and under the same load.

Owns the sitting's file, which is written whole after every run: what was measured survives whatever comes next.
Rule: a server that fails is noted and the others go on; going on with a sitting repeats only what is not there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
import msgspec

from benchmarks import processes
from benchmarks.environment import Card
from benchmarks.measure import Advance
from benchmarks.peers import figures
from benchmarks.peers.rows import Row, RowsRefused, read_rows
from benchmarks.peers.servers import Place, Server
from benchmarks.processes import end_of, own_environ
from gateway.demo.server import free_ports

PATIENCE_S: Final = 3600.0  # for one load on one server
ROUND_SEEDS: Final = 10_000  # texts of two rounds have nothing in common


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and by what."""

    servers: tuple[str, ...]
    repeat: int
    prefix_words: int
    seed: int
    generator: str  # "own", or a file's name and digest


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One server in one round."""

    server: str
    round: int
    start_s: float  # until it was ready
    load_s: float
    rows: list[Row]


class Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """All that a sitting has measured so far."""

    plan: Plan
    card: Card
    runs: tuple[Run, ...] = ()
    goings_on: int = 0  # how often it was broken off and gone on with

    def rounds(self) -> dict[str, list[list[Row]]]:
        """Return the rows by server, in the plan's order."""
        return {name: [run.rows for run in self.runs if run.server == name] for name in self.plan.servers}

    def left(self) -> list[tuple[int, str]]:
        """Return what is still to be measured: rounds outside, servers inside."""
        done = {(run.round, run.server) for run in self.runs}
        every = [(number, name) for number in range(self.plan.repeat) for name in self.plan.servers]
        return [each for each in every if each not in done]


class SittingRefused(ValueError):
    """There is nothing to go on with, or something else."""


def named(generator: Path | None) -> str:
    """Return what a plan calls a generator."""
    if generator is None:
        return "own"
    return f"{generator.name} (sha256 {hashlib.sha256(generator.read_bytes()).hexdigest()[:16]})"


def keep(sitting: Sitting, path: Path) -> None:
    """Write the file anew, by one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(msgspec.json.encode(sitting))
    Path(part.name).rename(path)


def go_on(path: Path, plan: Plan) -> Sitting:
    """Read a sitting that was broken off. Raises SittingRefused where there is none, or one of another plan."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Sitting)
    except FileNotFoundError as error:
        raise SittingRefused(f"there is no sitting to go on with at {path}") from error
    except msgspec.DecodeError as error:
        raise SittingRefused(f"{path}: {error}") from error
    if found.plan != plan:
        raise SittingRefused(f"the sitting at {path} has another plan: {found.plan}")
    return msgspec.structs.replace(found, goings_on=found.goings_on + 1)


def command_of(generator: Path | None, url: str, model: str, plan: Plan, number: int, out: Path) -> list[str]:
    """Return the command that puts the load on a server and writes its rows to `out`."""
    program = ["-m", "benchmarks.peers.load"] if generator is None else [str(generator)]
    seed = str(plan.seed + ROUND_SEEDS * number)
    options = ["--prefix-words", str(plan.prefix_words), "--seed", seed, "--json", str(out)]
    return [sys.executable, *program, url, model, *options]


async def sit(
    found: Sitting,
    ready: Sequence[Server],
    *,
    model: Path,
    generator: Path | None,
    path: Path,
    advance: Advance,
    now: Advance,
) -> tuple[Sitting, list[str]]:
    """Measure on the servers that are ready what is not there yet. Return it all, and what failed."""
    by_name = {server.name: server for server in ready}
    failures: list[str] = []
    for number, name in found.left():
        if name not in by_name:
            continue
        what = f"{name}, round {number + 1} of {found.plan.repeat}"
        say = partial(_say, now, what)
        try:
            done = await run(by_name[name], number, found.plan, model=model, generator=generator, say=say)
        except (RuntimeError, RowsRefused, OSError) as error:
            failures.append(f"{what}: {error}")
            advance(f"{what}: failed: {error}")
            continue
        found = msgspec.structs.replace(found, runs=(*found.runs, done))
        keep(found, path)
        advance(f"{what}: done; ready after {done.start_s:.0f} s, measured in {done.load_s:.0f} s")
    return found, failures


def _say(now: Advance, what: str, line: str) -> None:
    now(f"{what}: {line}")


async def run(
    server: Server, number: int, plan: Plan, *, model: Path, generator: Path | None, say: Callable[[str], None]
) -> Run:
    """Start a server, put the load on it, stop it. Raises RuntimeError and RowsRefused."""
    port, other = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory(prefix="keepwarm-peers-") as folder:
        home = Path(folder)
        began = time.monotonic()
        say("starting")
        started = server.start(server, Place(home=home, model=model, port=port, other=other))
        async with aiohttp.ClientSession() as http, processes.running(http, started, url, home):
            ready = time.monotonic()
            say("ready")
            out = home / "rows.json"
            try:
                await _load(command_of(generator, url, server.called(model), plan, number, out), home, say)
            except RuntimeError as error:
                raise RuntimeError(f"{error}\nthe server's last words: {end_of(home / 'log')}") from error
            done = time.monotonic()
        rows = read_rows(out.read_bytes())
        figures.check(rows, tells=server.tells)
    return Run(server=server.name, round=number, start_s=ready - began, load_s=done - ready, rows=rows)


async def _load(command: Sequence[str], home: Path, say: Callable[[str], None]) -> None:
    errors = home / "load.log"
    with errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=os.environ | own_environ(home),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    assert process.stdout is not None, "stdout is a pipe"
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for line in process.stdout:
                say(line.decode(errors="replace").strip())
            await process.wait()
    except TimeoutError as error:
        raise RuntimeError(f"the load did not end within {PATIENCE_S:.0f} s") from error
    finally:
        await processes.stopped(process)
    if process.returncode:
        raise RuntimeError(f"the load ended with status {process.returncode}: {end_of(errors)}")
