"""Reading a server's metrics page, whole or one number of it."""

from __future__ import annotations

import time
import urllib.request

from tests.e2e.conftest import Server
from tests.promql import Vector, read

TARGET = {"job": "keepwarm", "instance": "gateway:8001"}


def page(server: Server) -> str:
    """The page as it is sent."""
    with urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
        return text


def metric(server: Server, name: str) -> float:
    """Value of one series, labels included in `name`."""
    lines = page(server).splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)


def scrape(server: Server) -> tuple[float, Vector]:
    """Every series as Prometheus has it after a scrape, and when that was."""
    return time.monotonic(), read(page(server), **TARGET)
