"""Servers in processes of their own: ready or refused, and gone afterwards with all that they started."""

from __future__ import annotations

import sys
from pathlib import Path

import aiohttp
import psutil
import pytest

from benchmarks.processes import Started, own_environ, running
from gateway.demo.server import free_ports

PARENT = "sleep 300 & echo $! > child; exec {python} -m benchmarks.gateway_peers.upstream {port}"


async def test_a_server_is_gone_with_its_children(tmp_path: Path) -> None:
    """It answers inside the block; after it neither the server nor what it started runs on."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = ["sh", "-c", PARENT.format(python=sys.executable, port=port)]
    started = Started(command=command, ready="/health", environ=own_environ(tmp_path))
    async with aiohttp.ClientSession() as http:
        async with running(http, started, url, tmp_path):
            child = psutil.Process(int((tmp_path / "child").read_text()))
            assert child.status() == psutil.STATUS_SLEEPING
        assert psutil.wait_procs([child], timeout=60) == ([child], [])
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(url)


async def test_a_server_that_does_not_get_ready_is_quoted(tmp_path: Path) -> None:
    """One that ends, and one that takes too long: the error has what it said last."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as http:
        for ending, start_s, what in (("", 60.0, ", its server ended with 0"), ("; sleep 300", 2.0, " within 2 s")):
            started = Started(command=["sh", "-c", f"echo no room left{ending}"], ready="/health", start_s=start_s)
            with pytest.raises(RuntimeError, match=f"was not reached{what}: no room left"):
                async with running(http, started, url, tmp_path):
                    raise AssertionError("it cannot be ready")
