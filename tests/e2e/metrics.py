"""Reading one number from a server's metrics page."""

from __future__ import annotations

import urllib.request

from tests.e2e.conftest import Server


def metric(server: Server, name: str) -> float:
    """Value of one series, labels included in `name`."""
    with urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)
