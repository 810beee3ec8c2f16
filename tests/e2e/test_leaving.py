"""Clients that leave in the middle of a stream: everything they held is free again."""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.e2e.conftest import Server, until
from tests.e2e.metrics import metric

TIMES = 50
CHUNKS = 3


@pytest.mark.timeout(400)
def test_fifty_clients_that_leave_hold_nothing(server: Server) -> None:
    """Each closes its socket after three chunks of a long answer; the engine counts fifty and has nothing in use."""
    before = metric(server, "keepwarm_engine_requests_cancelled_total")
    for number in range(TIMES):
        body = {
            "model": server.model,
            "prompt": [40 + number, 5, 6, 7],
            "max_tokens": 2000,
            "stream": True,
            "logit_bias": {"2": -100},
        }
        request = urllib.request.Request(
            f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as stream:
            chunks = [line for line in (stream.readline() for _ in range(2 * CHUNKS)) if line.startswith(b"data: ")]
            assert len(chunks) == CHUNKS
    until(lambda: metric(server, "keepwarm_engine_requests_cancelled_total") == before + TIMES)
    for gauge in ("running", "waiting", "blocks_held"):
        assert metric(server, f"keepwarm_engine_{gauge}") == 0
