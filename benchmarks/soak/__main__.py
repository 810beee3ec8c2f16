"""`python -m benchmarks.soak`: mixed traffic on a real server and a tiny model, and whether its memory stays flat.

The table goes to standard output and progress to standard error; `--json` prints one line instead of the table. The
exit status is 0 when every series is flat, every answer was as expected and nothing is left over, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.soak.traffic import TENANTS, Traffic
from benchmarks.soak.verdict import Bound, Verdict, judge
from benchmarks.soak.watch import COUNTERS, Sample, Watcher
from gateway.demo.server import new_server, serve_command
from tests.tiny_model import save_tiny_model

MIB: Final = 1 << 20
CLIENTS: Final = 6
MEMORY: Final = Bound(share=0.03, more=2.0)  # MiB
FILES: Final = Bound(share=0.0, more=8.0)  # clients come and go between two looks
NODES: Final = Bound(share=0.25, more=16.0)
QUIET_S: Final = 30.0  # for the last requests to end
LOOK_S: Final = 0.1  # between two looks at that
FLAGS: Final = {  # small bounds, so that all that fills has filled in the first third
    "--kv-bytes": "1MiB",
    "--ttl": "20s",
    "--max-num-seqs": "8",
    "--recent-requests": "500",
    "--text-memory": "1MiB",
    "--open-tenants": ",".join(TENANTS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a soak found."""

    minutes: float
    verdicts: tuple[Verdict, ...]
    sent: dict[str, int]
    wrong: dict[str, int]
    happened: dict[str, float]  # the engine's counters at the end
    left_over: float  # blocks still held once nobody asks
    samples: tuple[Sample, ...]

    @property
    def flat(self) -> bool:
        """Whether nothing grew, nothing went wrong and nothing was left."""
        return all(verdict.flat for verdict in self.verdicts) and not self.wrong and not self.left_over


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, show, judge."""
    parser = argparse.ArgumentParser(prog="soak", description="Mixed traffic for a while: does memory stay flat?")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic (default: 0)")
    parser.add_argument("--json", action="store_true", help="one line of JSON in place of the table")
    options = parser.parse_args(arguments)
    if options.minutes * 60 < 4 * options.every or options.every <= 0:
        parser.error("--minutes must hold at least four looks of --every seconds")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=options.minutes * 60)

        def advance(sample: Sample) -> None:
            sizes = f"gateway {sample.gateway_bytes / MIB:.0f} MiB, engine {sample.engine_bytes / MIB:.0f} MiB"
            progress.update(task, completed=sample.at_s, description=sizes)

        outcome = asyncio.run(soak(options.minutes, options.every, options.seed, advance))
    if options.json:
        sys.stdout.write(msgspec.json.encode(asdict(outcome) | {"flat": outcome.flat}).decode() + "\n")
    else:
        show(Console(), outcome)
    return 0 if outcome.flat else 1


async def soak(minutes: float, every_s: float, seed: int, advance: Callable[[Sample], None]) -> Outcome:
    """Start a server, send traffic for so long, look now and then, wait until it is quiet, stop it."""
    with tempfile.TemporaryDirectory(prefix="keepwarm-soak-") as folder:
        model = save_tiny_model(Path(folder) / "tiny-llama")
        environ = (f"XDG_STATE_HOME={folder}", "OMP_NUM_THREADS=1")  # one thread is faster with so small matrices
        admin: list[int] = []

        def command(port: int, admin_port: int) -> list[str]:
            admin.append(admin_port)
            flags = [word for pair in FLAGS.items() for word in pair]
            return ["/usr/bin/env", *environ, *serve_command(port, admin_port), "--model", str(model), *flags]

        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            new_server(session, command=command, on_wait=lambda _: None) as server,
        ):
            admin_url = f"http://127.0.0.1:{admin[0]}"
            traffic = Traffic(session, server.url, admin_url, model.name, seed)
            watcher = Watcher(session, admin_url)
            samples = await _under(traffic, watcher, minutes * 60, every_s, advance)
            end = await _quiet(watcher, samples[-1].at_s)
    return Outcome(
        minutes=minutes,
        verdicts=verdicts(samples),
        sent=dict(traffic.sent),
        wrong=dict(traffic.wrong),
        happened={name: end.engine[name] for name in COUNTERS},
        left_over=end.engine["blocks_held"],
        samples=tuple(samples),
    )


async def _under(
    traffic: Traffic, watcher: Watcher, seconds: float, every_s: float, advance: Callable[[Sample], None]
) -> list[Sample]:
    """Send from several clients, and look at every so many seconds."""
    stop, began, samples = asyncio.Event(), time.monotonic(), []
    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(traffic.client(stop))
        while (at_s := time.monotonic() - began) < seconds:
            await asyncio.sleep(min(every_s, seconds - at_s))
            samples.append(await watcher.sample(time.monotonic() - began))
            advance(samples[-1])
        stop.set()
    return samples


async def _quiet(watcher: Watcher, at_s: float) -> Sample:
    """Look until nothing runs, or for as long as that may take."""
    sample = await watcher.sample(at_s)
    for _ in range(int(QUIET_S / LOOK_S)):
        if sample.idle:
            break
        await asyncio.sleep(LOOK_S)
        sample = await watcher.sample(at_s)
    return sample


def verdicts(samples: Sequence[Sample]) -> tuple[Verdict, ...]:
    """Judge what must not grow."""
    return (
        judge("memory of the gateway", "MiB", [one.gateway_bytes / MIB for one in samples], MEMORY),
        judge("memory of the engine", "MiB", [one.engine_bytes / MIB for one in samples], MEMORY),
        judge("open files of the gateway", "", [one.gateway_files for one in samples], FILES),
        judge("open files of the engine", "", [one.engine_files for one in samples], FILES),
        judge("nodes of the tree", "", [one.engine["nodes"] for one in samples], NODES),
    )


def show(console: Console, outcome: Outcome) -> None:
    """Print medians by third, what was sent, and the verdict."""
    table = Table(title=f"{outcome.minutes:g} minutes: medians of the thirds", box=box.SIMPLE_HEAD)
    for heading in ("", "first", "middle", "last", "last at most", "most", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for one in outcome.verdicts:
        numbers = (one.first, one.middle, one.last, one.limit, one.most)
        mark = "[green]flat[/green]" if one.flat else "[red]grows[/red]"
        table.add_row(f"{one.name}{one.unit and f', {one.unit}'}", *(f"{number:,.1f}" for number in numbers), mark)
    console.print(table)
    for title, counts in (("sent", outcome.sent), ("happened", outcome.happened), ("wrong", outcome.wrong)):
        told = ", ".join(f"{name.replace('_', ' ')} {count:,.0f}" for name, count in sorted(counts.items()))
        console.print(f"{title}: {told or 'nothing'}", highlight=False)
    console.print(f"blocks held at the end: {outcome.left_over:.0f}", highlight=False)
    console.print("[green]flat[/green]" if outcome.flat else "[red]not flat[/red]")


if __name__ == "__main__":
    sys.exit(main())
