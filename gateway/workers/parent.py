"""`keepwarm serve` with several workers: takes the ports, starts the workers, answers operators, ends all in time.

Owns the ports, the folder of the private sockets and the signals. Order of stopping: every worker drains as one gateway
would, whoever is not done in time is ended, then the admin port closes. SIGHUP reads the configuration file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from engine.config import EngineConfig
from gateway import listeners
from gateway.admin.answers import Unanswered
from gateway.config import state_dir
from gateway.config_file import Configuration, read_configuration, read_text, redis_settings
from gateway.errors import ConfigError
from gateway.state import begin, open_state
from gateway.workers.crew import Plan
from gateway.workers.front import build_front
from gateway.workers.room import Room
from gateway.workers.worker import Refused

GRACE_S: Final = 8.0  # beyond the drain: last words, and what was counted on its way to the ledger
BACKLOG: Final = 1024  # connections of clients that wait for a worker

log = structlog.get_logger("gateway.workers")


def serve(configuration: Configuration, flags: dict[str, str | None]) -> None:
    """Serve until told to stop. Raises ConfigError."""
    path = configuration.settings.config
    text = None if path is None else read_text(path)
    configuration = read_configuration(flags, os.environ, text=text)
    settings = configuration.settings
    with (
        listeners.bind(settings.host, settings.port, "--port") as serving,
        listeners.bind(settings.admin_host, settings.admin_port, "--admin-port") as admin,
        tempfile.TemporaryDirectory(prefix="keepwarm-") as folder,
    ):
        try:
            serving.listen(BACKLOG)
        except OSError as error:
            raise listeners.taken(settings.host, settings.port, error) from error
        secret = os.environ.get("KEEPWARM_SECRET", "").encode() or secrets.token_bytes(32)
        plan = Plan(flags=flags, file=text, secret=secret, serving=serving.fileno())
        classes = configuration.file.classes.lengths_s
        asyncio.run(_run(configuration, plan, Path(folder), classes=tuple(classes), admin=admin))


async def _run(
    configuration: Configuration, plan: Plan, folder: Path, *, classes: tuple[str, ...], admin: socket.socket
) -> None:
    await _begin(configuration)
    settings = configuration.settings
    room = Room(settings, plan, folder, classes=classes, environ=os.environ)
    stop = asyncio.Event()
    with _signals(room, stop):
        async with listeners.listening(build_front(room), admin, "admin"):
            running = asyncio.ensure_future(room.crew.run())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            log.info("stopping", in_flight_grace_s=settings.drain)
            await room.crew.end(settings.drain + GRACE_S, running)
            try:
                await running
            except* Refused:
                raise ConfigError("a worker cannot work as it is told to; it said why above") from None


async def _begin(configuration: Configuration) -> None:
    """Write what the start-up asks of the shared state, once for all workers."""
    file = configuration.file
    state = await open_state(
        state_dir(os.environ),
        redis_settings(configuration, os.environ),
        block_tokens=EngineConfig(model="", model_path="").block_tokens,
        classes=file.classes,
    )
    try:
        await begin(state, ttl_s=configuration.settings.ttl, policies=file.policies, classes=file.classes)
    finally:
        await state.close()


@contextlib.contextmanager
def _signals(room: Room, stop: asyncio.Event) -> Iterator[None]:
    loop, reloading = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    async def reload() -> None:
        with contextlib.suppress(ConfigError, Unanswered):  # which the reading has logged
            await room.reload(by="SIGHUP")

    def hang_up() -> None:
        task = asyncio.create_task(reload())
        reloading.add(task)
        task.add_done_callback(reloading.discard)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
