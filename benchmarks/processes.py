"""Servers that are measured, in processes of their own.

Owns the processes. Rule: one that was started has ended when its block is left, and its children with it; one that
does not get ready is an error that quotes its last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

START_S: Final = 180.0
POLL_S: Final = 0.2
PROBE_S: Final = 5.0
STOP_S: Final = 15.0
LAST: Final = 2000  # characters of a log that are quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How a server is started, and where it says that it is ready."""

    command: Sequence[str]
    ready: str  # a path
    environ: Mapping[str, str] = field(default_factory=dict)  # beside or instead of our own
    start_s: float = START_S


def own_environ(home: Path) -> dict[str, str]:
    """Return what a server from this source tree needs to keep its state in `home`."""
    return {"XDG_STATE_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextlib.asynccontextmanager
async def running(
    http: aiohttp.ClientSession, started: Started, url: str, home: Path, log: Path | None = None
) -> AsyncIterator[None]:
    """Run a server in `home` until the block is left; enter it once the server is ready. Raises RuntimeError."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(started.environ)
    log = log or home / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *started.command,
            env=environ,
            cwd=home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        await _ready(http, url + started.ready, process, log, started.start_s)
        yield
    finally:
        await stopped(process)


async def stopped(process: asyncio.subprocess.Process) -> None:
    """End a process that leads a group, and whatever is left of the group."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _ready(
    http: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process, log: Path, start_s: float
) -> None:
    deadline = time.monotonic() + start_s
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with http.get(url, timeout=aiohttp.ClientTimeout(total=PROBE_S)) as response:
                if response.status == 200:  # noqa: PLR2004 - ready
                    return
        if process.returncode is not None:
            raise RuntimeError(f"{url} was not reached, its server ended with {process.returncode}: {end_of(log)}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{url} was not reached within {start_s:.0f} s: {end_of(log)}")
        await asyncio.sleep(POLL_S)


def end_of(log: Path) -> str:
    """Return the last words in a log."""
    return log.read_text(errors="replace")[-LAST:].strip()
