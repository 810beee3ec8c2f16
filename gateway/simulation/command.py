"""What `keepwarm simulate` does: one pass over the trace for the ideal and one for each policy, and what comes of it.

Rule: a trace is never held, so memory is what one policy's replicas hold and what routing believes of them; how much
that was is said at the end.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gateway.advice.errors import Unreadable
from gateway.routing.router import Policy
from gateway.routing.simulate import Machine, Outcome, Simulation, ideal
from gateway.simulation import picture
from gateway.simulation.reading import arrivals, block_tokens
from gateway.telling import page, print_json, save
from prefix_store.classes import CLASSES

Json = dict[str, Any]

POLICIES: Final[tuple[Policy, ...]] = ("prefix", "least_load", "round_robin")
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
PAGE_WIDTH: Final = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be simulated."""

    replicas: int = 8
    policies: tuple[Policy, ...] = POLICIES
    capacity_tokens: int = 1_000_000
    prefill_rate: float = 8_000.0
    ttl: str = "5m"
    faster: float = 1.0
    seed: int = 0


def policies_of(names: Sequence[str]) -> tuple[Policy, ...]:
    """Read policies by name, each once; all of them where none is named. Raises Unreadable."""
    for name in names:
        if name == "session":
            raise Unreadable("--policy: session cannot be simulated: a trace does not say whose a request is")
        if name not in POLICIES:
            raise Unreadable(f"--policy: {name!r} is not one of {', '.join(POLICIES)}")
    return cast("tuple[Policy, ...]", tuple(dict.fromkeys(names))) or POLICIES


def simulated(trace: Path, wanted: Wanted) -> Json:
    """Replay a trace. Raises Unreadable."""
    try:
        ttl_s = CLASSES.seconds(wanted.ttl)
    except ValueError as error:
        raise Unreadable(f"--ttl: {error}") from error
    each = block_tokens(trace)
    if wanted.capacity_tokens < each:
        raise Unreadable(f"--capacity-tokens: {wanted.capacity_tokens} are less than one block of {each}")
    machine = Machine(
        block_tokens=each,
        prefill_rate=wanted.prefill_rate,
        capacity_blocks=wanted.capacity_tokens // each,
        ttl_s=ttl_s,
    )
    with _progress(trace, 1 + len(wanted.policies)) as pass_over:
        best = ideal(arrivals(trace, faster=wanted.faster, advance=pass_over("ideal")), machine)
        rows = [_played(trace, policy, wanted, machine, pass_over(policy)) for policy in wanted.policies]
    most = best.read
    return {
        "trace": trace.name,
        "requests": best.requests,
        "tokens": best.tokens,
        "replicas": wanted.replicas,
        "capacity_tokens": wanted.capacity_tokens,
        "block_tokens": each,
        "prefill_rate": wanted.prefill_rate,
        "ttl_s": ttl_s,
        "faster": wanted.faster,
        "seed": wanted.seed,
        "ideal": {"read_tokens": most, "read_ratio": best.read_ratio, "first_token_s": _first(best)},
        "policies": [row | {"of_ideal": row["read_tokens"] / most if most else None} for row in rows],
        "peak_bytes": _peak(),
    }


def _played(trace: Path, policy: Policy, wanted: Wanted, machine: Machine, advance: Callable[[int], object]) -> Json:
    began = time.perf_counter()
    played = Simulation(policy, wanted.replicas, machine, seed=wanted.seed)
    for one in arrivals(trace, faster=wanted.faster, advance=advance):
        played.feed(one)
    outcome = played.outcome
    return {
        "policy": policy,
        "requests": outcome.requests,
        "tokens": outcome.tokens,
        "available_tokens": outcome.available,
        "captured_tokens": outcome.captured,
        "read_tokens": outcome.read,
        "read_ratio": outcome.read_ratio,
        "first_token_s": _first(outcome),
        "imbalance": outcome.imbalance,
        "held_blocks": played.held_blocks,
        "seconds": time.perf_counter() - began,
    }


def _first(outcome: Outcome) -> Json:
    return dict(zip(SHARES, outcome.first_token(*SHARES.values()), strict=True))


def _peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def _progress(trace: Path, passes: int) -> Iterator[Callable[[str], Callable[[int], object]]]:
    """Give what makes a sign of progress for each pass over the file; a bar where a person looks on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    size = trace.stat().st_size if trace.is_file() else 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=size * passes)
        done = -1

        def pass_over(name: str) -> Callable[[int], object]:
            nonlocal done
            done += 1
            before = done * size
            bar.update(task, description=f"{trace.name}: {name}", completed=before)
            return lambda read: bar.update(task, completed=before + read)

        yield pass_over


def draw(told: Json, file: Path) -> None:
    """Write the picture as SVG. Raises ConfigError when the file cannot be written."""
    title = f"Prompt tokens read, {told['trace']} over {told['replicas']} replicas"
    save(picture.svg(told["policies"], told["ideal"]["read_ratio"] or 0.0, title), file)


def show(told: Json, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        print_json(told)
        return
    console = page(PAGE_WIDTH)
    if not told["requests"]:
        console.print("The trace has no requests.")
        return
    console.print(
        f"{told['requests']:,} requests, {told['tokens']:,} prompt tokens over {told['replicas']:,} replicas of "
        f"{told['capacity_tokens']:,} tokens each, {told['prefill_rate']:,.0f} tokens/s, TTL {told['ttl_s']:,.0f} s"
    )
    console.print(_table(told))
    best = {"policy": "ideal", "tokens": told["tokens"], "available_tokens": told["ideal"]["read_tokens"]}
    for line in picture.lines([best | told["ideal"], *told["policies"]]):
        console.print(Text(line))
    console.print("█ read, ▒ believed to be somewhere and not read. The ideal: one endless cache, and no queue.")
    console.print(f"Peak memory: {told['peak_bytes'] / 1e6:,.0f} MB")


def _table(told: Json) -> Table:
    table = Table("policy")
    columns = ("read", "of ideal", "available", "captured", "first token p50", "p90", "p99", "imbalance", "seconds")
    for column in columns:
        table.add_column(column, justify="right")
    best = told["ideal"]
    table.add_row("ideal", _share(best["read_ratio"]), "100.0%", "-", "-", *_times(best["first_token_s"]), "-", "-")
    for row in told["policies"]:
        table.add_row(
            row["policy"],
            _share(row["read_ratio"]),
            _share(row["of_ideal"]),
            _share(row["available_tokens"] / row["tokens"]),
            _share(row["captured_tokens"] / row["tokens"]),
            *_times(row["first_token_s"]),
            "-" if row["imbalance"] is None else f"{row['imbalance']:.2f}",
            f"{row['seconds']:.1f}",
        )
    return table


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _times(first: Json) -> Iterator[str]:
    return ("-" if first[name] is None else f"{first[name]:.2f} s" for name in SHARES)
