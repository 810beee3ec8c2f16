"""Ports and signals: taken before anything else is done, served until the gateway is told to stop.

Order of stopping: nothing new begins and `/ready` says so, then answers in flight get their time, then the ports are
given back, the engine ends, and whoever is left is told so. SIGHUP reads the configuration file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable

import structlog
from aiohttp import web

from gateway.app import build_admin_app, build_serving_app
from gateway.errors import ConfigError
from gateway.house import House

BACKLOG = 128
LAST_WORDS_S = 2.0  # for telling those that are left

log = structlog.get_logger("gateway")


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Take a port before anything else is done, so that one in use is said at once. Listens to nothing yet."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"{host} is no address of this machine: {error.strerror}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise taken(host, port, error, f"; choose another with {flag}") from error
    return listener


def taken(host: str, port: int, error: OSError, advice: str = "") -> ConfigError:
    """Say that a port cannot be had."""
    reason = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be taken ({error.strerror})"
    return ConfigError(f"port {port} on {host} {reason}{advice}")


async def serve(
    house: House,
    serving: socket.socket,
    admin: socket.socket,
    *,
    build_admin: Callable[[House], web.Application] = build_admin_app,
    at_once: int = BACKLOG,
) -> None:
    """Serve until told to stop by SIGINT or SIGTERM. Raises ConfigError when the engine refuses the model.

    `at_once` is how many connections of clients are taken in one go.
    """
    _spare_the_collector()
    stop, reloading = asyncio.Event(), set[asyncio.Task[None]]()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def hang_up() -> None:
        reading = asyncio.create_task(_reload(house))
        reloading.add(reading)
        reading.add_done_callback(reloading.discard)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    async with (
        listening(build_admin(house), admin, "admin"),
        listening(build_serving_app(house), serving, "serving", at_once=at_once),
    ):
        stopped = asyncio.create_task(stop.wait())
        refused = asyncio.create_task(house.backend.refused())
        await asyncio.wait({stopped, refused}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping", in_flight_grace_s=house.settings.drain)
        await house.drain.out(house.settings.drain)
        reason = refused.result() if refused.done() else None
        stopped.cancel()
        refused.cancel()
    if reason is not None:
        raise ConfigError(reason)


def _spare_the_collector() -> None:
    """Take what the start made out of later collections: it stays for good, and looking at it all takes long pauses."""
    gc.collect()
    gc.freeze()


async def _reload(house: House) -> None:
    with contextlib.suppress(ConfigError):  # which is logged
        await house.reloads.reload(by="SIGHUP")


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, listener: socket.socket, name: str, *, at_once: int = BACKLOG
) -> AsyncIterator[None]:
    """Serve an application while the block runs."""
    # handler_cancellation: a handler whose client has left is cancelled, which frees what it holds in the engine
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=LAST_WORDS_S)
    await runner.setup()
    local = listener.family == socket.AF_UNIX
    host, port = (listener.getsockname(), 0) if local else listener.getsockname()[:2]
    try:
        try:
            await web.SockSite(runner, listener, backlog=at_once).start()
        except OSError as error:  # someone else began to listen since `bind`
            raise taken(host, port, error) from error
        if not local:
            log.info("listening", side=name, host=host, port=port)
        yield
    finally:
        await runner.cleanup()
