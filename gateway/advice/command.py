"""What `keepwarm advise` does: asks a gateway or reads a trace, and shows what comes of it.

Rule: with `--json` what the API would answer is printed unchanged; a trace is read in one pass and never held, but for
the order of eviction and for `--check`, which replay it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from gateway.admin.client import AdminClient
from gateway.advice import picture
from gateway.advice.advise import MS, Adviser, Pool, Trial, Unpriced, pass_over
from gateway.advice.errors import Unreadable
from gateway.advice.replay import Replay
from gateway.advice.trace import Group, read_trace
from gateway.telling import page, print_json, save
from prefix_store.classes import CLASSES
from prefix_store.retention import parse_duration
from prefix_store.reuse import Use

Json = dict[str, Any]

HELD = 1 << 20  # sampled blocks of a trace that are held for the trial of the orders; above it they are thinned
PAGE_WIDTH = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a trace is to be read."""

    ttl: str = "5m"
    blocks: int | None = None
    bytes_per_token: int | None = None
    check: bool = False
    tenant: str | None = None
    model: str | None = None


def asked(url: str, key: str | None, *, tenant: str | None, model: str | None) -> Json:
    """Ask a running gateway. Raises CallFailed."""
    return AdminClient(url, key).call("GET", "advice", query={"tenant": tenant, "model": model})


def traced(path: Path, wanted: Wanted) -> Json:
    """Read a trace. Raises Unreadable."""
    try:
        ttl_s = CLASSES.seconds(wanted.ttl)
    except ValueError as error:
        raise Unreadable(f"--ttl: {error}") from error
    grain: set[int] = set()
    reuse = pass_over(Pool(blocks=wanted.blocks), [ttl_s])
    sample: list[Use] = []
    held = 0
    with _progress(path) as advance:
        for use in read_trace(path, ttl=lambda _group, _class: ttl_s * MS, limit=lambda: reuse.limit, advance=advance):
            reuse.observe(use)
            grain.add(use.block_tokens)
            if wanted.blocks is not None and use.blocks:
                sample.append(use)
                held += len(use.blocks)
                if held > HELD:
                    sample = _thinner(sample, reuse.limit)
                    held = sum(len(one.blocks) for one in sample)
    if len(grain) > 1:
        raise Unreadable(f"{path}: blocks of different lengths ({', '.join(map(str, sorted(grain)))} tokens)")
    pool = Pool(blocks=wanted.blocks, block_tokens=max(grain, default=16), bytes_per_token=wanted.bytes_per_token)
    trial = None
    if wanted.blocks is not None:
        trial = Trial(pool, reuse.rate)
        for use in _thinner(sample, reuse.limit):
            trial.feed(use)
    told = Adviser(reuse, lambda _: ttl_s, pool, Unpriced(), trial).told(wanted.tenant, wanted.model)
    told["alerts"] = []
    if wanted.check:
        told["checked"] = [_checked(path, advice, wanted, ttl_s) for advice in told["advice"]]
    return told


def _thinner(uses: list[Use], limit: int) -> list[Use]:
    """Leave out blocks that are no longer sampled, and prompts that have none left."""
    kept = (replace(use, blocks=[block for block in use.blocks if block < limit]) for use in uses)
    return [use for use in kept if use.blocks]


def _checked(path: Path, advice: Json, wanted: Wanted, ttl_s: float) -> Json:
    """Replay the whole trace as things are now and as advised; the read tokens are those of whom it is for."""
    kind, advised = advice["kind"], advice["advised"]
    room = float("inf") if wanted.blocks is None else float(wanted.blocks)
    now = Replay(ttl=ttl_s * MS, capacity=room)
    then = Replay(
        ttl=(parse_duration(advised) if kind == "ttl" else ttl_s) * MS,
        capacity=float(advised.split()[0].replace(",", "")) if kind == "capacity" else room,
        order="lfu" if kind == "order" else "lru",
    )
    sums = [0, 0]
    with _progress(path) as advance:
        for use in read_trace(path, ttl=lambda _group, _class: ttl_s * MS, advance=advance):
            before = now.read, then.read
            now.feed(use)
            then.feed(use)
            group = use.group
            if isinstance(group, Group) and _meant(advice, group):
                sums = [sums[0] + now.read - before[0], sums[1] + then.read - before[1]]
    return {
        "kind": kind,
        "advised": advised,
        "predicted": advice["read_tokens_delta"],
        "error": advice["error"],
        "replayed": sums[1] - sums[0],
    }


def _meant(advice: Json, group: Group) -> bool:
    return advice["tenant"] in {None, group.tenant} and advice["model"] in {None, group.model}


@contextmanager
def _progress(path: Path) -> Iterator[Any]:
    """Give what is told how many bytes were read; a bar where a person looks on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"Reading {path.name}", total=path.stat().st_size if path.is_file() else None)
        yield lambda done: bar.update(task, completed=done)


def draw(told: Json, file: Path) -> None:
    """Write the curve as SVG. Raises ConfigError when the file cannot be written."""
    save(picture.svg(told["curve"], "Read ratio by TTL"), file)


def show(told: Json, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        print_json(told)
        return
    console = page(PAGE_WIDTH)
    sample = told["sample"]
    if sample is None:
        console.print("No traffic was seen yet.")
    else:
        rate = f"1 in {round(1 / sample['rate'])}" if sample["rate"] < 1 else "all"
        console.print(f"{sample['requests']:,} requests, {sample['tokens']:,} prompt tokens; blocks sampled: {rate}")
    for line in picture.lines(told["curve"]):
        console.print(Text(line))
    if told["advice"]:
        console.print(_table(told["advice"]))
    else:
        console.print(told.get("note") or "No change is worth making.")
    for one in told["advice"]:
        console.print(Text(one["sentence"]))
    for one in told.get("checked", []):
        console.print(
            f"checked {one['kind']} → {one['advised']}: {one['replayed']:+,} read tokens replayed, "
            f"{one['predicted']:+,} ± {one['error']:,} predicted"
        )
    for alert in told["alerts"]:
        console.print(Text(f"{alert['severity']}: {alert['title']}. {alert['detail']}. {alert['what_to_do']}"))


def _table(advice: list[Json]) -> Table:
    table = Table("what", "tenant", "model", "now", "advised")
    for column in ("read now", "then", "read tokens", "±", "GB·h", "net"):
        table.add_column(column, justify="right")
    for one in advice:
        net = one["net"]
        table.add_row(
            one["kind"],
            Text(one["tenant"] or "all"),
            Text(one["model"] or "all"),
            one["now"],
            one["advised"],
            f"{one['read_now']:.1%}",
            f"{one['read_then']:.1%}",
            f"{one['read_tokens_delta']:+,}",
            f"{one['error']:,}",
            "-" if one["gb_hours_delta"] is None else f"{one['gb_hours_delta']:+,.3g}",
            "-" if net is None else f"{net['amount']:+,.2f} {net['currency']}",
        )
    return table
