"""A worker process: reads its orders, serves clients on the port that all share, and answers its parent.

Owns nothing. Rule: it ends with its parent, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import msgspec
import structlog

from engine.config import EngineConfig
from gateway import listeners
from gateway.app import build_worker_app
from gateway.backends.absent import Absent
from gateway.errors import ConfigError
from gateway.logs import set_up_logs
from gateway.opening import open_house
from gateway.workers.orders import Orders
from gateway.workers.worker import REFUSED

BACKLOG = 1024


class Shared(socket.socket):
    """A port that several processes serve.

    A worker takes one connection whenever it is told that there are some: what the rest of a burst finds is a worker
    that is free. The loop sets the length of the queue to the number it takes at once, so that is set here.
    """

    def listen(self, backlog: int = BACKLOG, /) -> None:  # noqa: ARG002 - the loop's number is another thing
        """Listen with a queue for all workers."""
        super().listen(BACKLOG)


async def work(orders: Orders) -> None:
    """Serve until told to stop, or until the parent is gone. Raises ConfigError."""
    structlog.contextvars.bind_contextvars(worker=orders.number)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _parent_gone)
    house = await open_house(
        orders.configuration(os.environ),
        Absent(),
        None,
        block_tokens=EngineConfig(model="", model_path="").block_tokens,
        secret=bytes.fromhex(orders.secret),
        begins=False,
    )
    for name in orders.drained:
        if name in house.relay.fleet.replicas:
            house.relay.fleet.replicas[name].draining = True
    await listeners.serve(
        house,
        Shared(fileno=orders.serving),
        socket.socket(fileno=orders.private),
        build_admin=build_worker_app,
        at_once=1,
    )


def _parent_gone() -> None:
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    signal.raise_signal(signal.SIGTERM)


def main() -> None:
    """Entry point of `python -m gateway.workers.child`; the parent alone calls it."""
    set_up_logs()
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    try:
        asyncio.run(work(orders))
    except ConfigError as error:
        sys.stderr.write(f"keepwarm: worker {orders.number}: {error}\n")
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
