"""The command itself: find a server, talk to it with a progress bar, show what it cost.

Rule: standard output carries the result and nothing else; progress and errors go to standard error.
"""

from __future__ import annotations

import asyncio
import secrets
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gateway.demo.conversation import connected, hold
from gateway.demo.errors import DemoError
from gateway.demo.facts import Exchange, toy
from gateway.demo.handbook import CONVERSATION, QUESTIONS
from gateway.demo.report import Report, print_report, print_toy, to_json
from gateway.demo.server import serve_command, server_at

INTERRUPTED = 130  # as shells count a program that Ctrl-C ended


def run(*, url: str | None, as_json: bool) -> int:
    """Run the demo and return the exit status.

    With `url`, use the server there; without, the one on the default port or one started for the purpose.
    """
    console, errors = Console(), Console(stderr=True)
    if not as_json:
        print_toy(console, toy())
    try:
        report = asyncio.run(_perform(url, errors))
    except DemoError as error:
        errors.print(f"keepwarm demo: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("keepwarm demo: interrupted")
        return INTERRUPTED
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        print_report(console, report)
    return 0


async def _perform(url: str | None, errors: Console) -> Report:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("looking for a server", total=len(QUESTIONS) + len(CONVERSATION))

        def wait_for(what: str) -> None:
            progress.update(task, description=what)

        def count(exchange: Exchange) -> None:
            progress.update(task, advance=1, description=f"{exchange.name} answered")

        async with server_at(url, command=serve_command, on_wait=wait_for) as server, connected(server.url) as client:
            model = await client.model()
            wait_for("reading the handbook for the first time")
            exchanges = await hold(client, model=model, number=secrets.token_hex(4), on_answer=count)
    return Report(toy=toy(), server=server, model=model, exchanges=exchanges, questions=len(QUESTIONS))
