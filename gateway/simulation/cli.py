"""`keepwarm simulate`: how a fleet would have done on a trace. Options and exit codes.

Rule: what a person can put right is one line on stderr and exit code 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    *,
    trace: Annotated[Path, typer.Argument(help="Trace of requests: --traffic-log's or Mooncake's, gzipped or not.")],
    replicas: Annotated[int, typer.Option(min=1, max=100_000, help="How many replicas.")] = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A way of routing; may be given again. All that a trace allows, where none is given."),
    ] = None,
    capacity_tokens: Annotated[int, typer.Option(min=1, help="Tokens that each replica's cache holds.")] = 1_000_000,
    prefill_rate: Annotated[float, typer.Option(min=1, help="Prompt tokens a second that a replica computes.")] = 8_000,
    ttl: Annotated[str, typer.Option(help="How long a replica keeps what was not used, such as 5m.")] = "5m",
    faster: Annotated[float, typer.Option(min=1e-3, help="So many times as fast as the trace came.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Equal seeds draw equal chances.")] = 0,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write what was read by policy.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Replay a trace over simulated replicas under each policy, by the code that routes in service."""
    from gateway.advice.errors import Unreadable  # noqa: PLC0415 - only this command needs them
    from gateway.errors import ConfigError  # noqa: PLC0415
    from gateway.simulation import command  # noqa: PLC0415

    try:
        wanted = command.Wanted(
            replicas=replicas,
            policies=command.policies_of(policy or ()),
            capacity_tokens=capacity_tokens,
            prefill_rate=prefill_rate,
            ttl=ttl,
            faster=faster,
            seed=seed,
        )
        told = command.simulated(trace, wanted)
        if picture is not None:
            command.draw(told, picture)
    except (ConfigError, Unreadable) as error:
        typer.echo(f"keepwarm: {error}", err=True)
        raise typer.Exit(2) from error
    command.show(told, as_json=json)
