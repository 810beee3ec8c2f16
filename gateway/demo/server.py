"""Which server the demo talks to: the one named, the one that runs, or one started for the length of the demo.

Owns: the process it starts. Rule: leaving the block stops what the block started, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from gateway.demo.errors import DemoError

DEFAULT_URL: Final = "http://127.0.0.1:8000"
PROBE_S: Final = 2.0  # for one question to /ready
POLL_S: Final = 0.2  # between two of them
START_S: Final = 600.0  # a first start may fetch and convert weights
STOP_S: Final = 15.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that is ready. `started` says whether the demo did it."""

    url: str
    started: bool


@asynccontextmanager
async def server_at(
    url: str | None, *, command: Callable[[int, int], list[str]], on_wait: Callable[[str], None]
) -> AsyncIterator[Server]:
    """Yield a ready server: the one at `url`; else the one at the default address; else a new one.

    `command` makes the command line of a new server from its two ports; `on_wait` is told what is being waited for.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_S)) as session:
        address = (url or DEFAULT_URL).rstrip("/")
        status = await _probe(session, address)
        if url is not None and status is None:
            raise DemoError(f"no server answers at {address}")
        if status is None or (url is None and status not in {200, 503}):  # nobody there, or somebody else
            async with new_server(session, command=command, on_wait=on_wait) as own:
                yield own
            return
        if status != 200:  # noqa: PLR2004 - the one status that means ready
            on_wait(f"waiting for {address} to get ready")
            await _until_ready(session, address)
        yield Server(url=address, started=False)


def serve_command(port: int, admin_port: int) -> list[str]:
    """Make the command line that serves the default model on two loopback ports."""
    ports = ["--port", str(port), "--admin-port", str(admin_port)]
    return [sys.executable, "-m", "gateway.cli", "serve", "--host", "127.0.0.1", *ports]


@asynccontextmanager
async def new_server(
    session: aiohttp.ClientSession, *, command: Callable[[int, int], list[str]], on_wait: Callable[[str], None]
) -> AsyncIterator[Server]:
    """Start a server on free ports, yield it once it is ready, and stop it."""
    port, admin_port = free_ports(2)
    address = f"http://127.0.0.1:{port}"
    with tempfile.NamedTemporaryFile(prefix="keepwarm-demo-", suffix=".log") as log:
        process = await asyncio.create_subprocess_exec(
            *command(port, admin_port), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            on_wait("starting a server (the first start converts the model's weights: half a minute)")
            await _until_ready(session, address, process, Path(log.name))
            yield Server(url=address, started=True)
        finally:
            await _stop(process)


async def _until_ready(
    session: aiohttp.ClientSession,
    address: str,
    process: asyncio.subprocess.Process | None = None,
    log: Path | None = None,
) -> None:
    """Return once `address` is ready. Raise when its process has ended or the time is up."""
    deadline = time.monotonic() + START_S
    while await _probe(session, address) != 200:  # noqa: PLR2004 - the one status that means ready
        if process is not None and process.returncode is not None:
            raise DemoError(f"the server ended with status {process.returncode}: {_last_line(log)}")
        if time.monotonic() >= deadline:
            raise DemoError(f"the server at {address} was not ready within {START_S:.0f} s: {_last_line(log)}")
        await asyncio.sleep(POLL_S)


async def _probe(session: aiohttp.ClientSession, address: str) -> int | None:
    """Return the status of /ready, or None when nobody answers."""
    try:
        async with session.get(f"{address}/ready") as response:
            return response.status
    except aiohttp.InvalidURL as error:
        raise DemoError(f"{address} is not an http address") from error
    except (aiohttp.ClientError, TimeoutError):
        return None


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ask the process to end, insist after `STOP_S`, and wait for it in any case."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
    await process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def _last_line(log: Path | None) -> str:
    """Return the last thing the server said."""
    lines = log.read_text(errors="replace").split("\n") if log else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
