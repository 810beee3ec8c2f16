"""`keepwarm advise`: what a running gateway would advise, or what a trace says. Options and exit codes.

Rule: what a person can put right is one line on stderr: exit code 2 for what was typed or read, 1 for a gateway that
does not answer.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def advise(
    *,
    trace: Annotated[
        Path | None, typer.Option(help="Trace to read instead of asking a gateway: --traffic-log's or Mooncake's.")
    ] = None,
    ttl: Annotated[str, typer.Option(help="With --trace: the TTL that is in force, such as 5m.")] = "5m",
    blocks: Annotated[int | None, typer.Option(min=1, help="With --trace: blocks that there is room for.")] = None,
    bytes_per_token: Annotated[
        int | None, typer.Option("--kv-bytes-per-token", min=1, help="With --trace: memory of a token's K and V.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --trace: replay it whole under each advised policy as well.")
    ] = False,
    tenant: Annotated[str | None, typer.Option(help="Advice for this tenant only.")] = None,
    model: Annotated[str | None, typer.Option(help="Advice for this model only.")] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write the curve with its error band.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
    admin_url: Annotated[
        str, typer.Option("--admin-url", help="The gateway's admin port; its key is KEEPWARM_ADMIN_KEY.")
    ] = "http://127.0.0.1:8001",
) -> None:
    """Say what another TTL, capacity or eviction order would have given, and how sure that is."""
    from gateway.admin.client import CallFailed  # noqa: PLC0415 - only this command needs them
    from gateway.advice import command  # noqa: PLC0415
    from gateway.advice.errors import Unreadable  # noqa: PLC0415
    from gateway.errors import ConfigError  # noqa: PLC0415

    try:
        if trace is None:
            told = command.asked(admin_url, os.environ.get("KEEPWARM_ADMIN_KEY") or None, tenant=tenant, model=model)
        else:
            wanted = command.Wanted(
                ttl=ttl, blocks=blocks, bytes_per_token=bytes_per_token, check=check, tenant=tenant, model=model
            )
            told = command.traced(trace, wanted)
        if picture is not None:
            command.draw(told, picture)
    except (CallFailed, ConfigError, Unreadable) as error:
        typer.echo(f"keepwarm: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, CallFailed) else 2) from error
    command.show(told, as_json=json)
