"""Each gateway as it is started before the upstream: Keepwarm with everything on, the rivals as their manuals say.

Owns the processes. Rule: one gateway runs at a time, on ports that nobody has; it has ended when its block is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from benchmarks.gateway_peers import install
from benchmarks.gateway_peers.upstream import MODEL
from gateway.demo.server import free_ports

START_S: Final = 180.0
POLL_S: Final = 0.2
STOP_S: Final = 15.0
KEY: Final = "a-key-for-the-benchmark"

CONFIG: Final = """\
[[keys]]
id = "bench"
sha256 = "{sha256}"
tenant = "bench"

[[upstreams]]
name = "only"
kind = "vllm"
base_url = "{upstream}/v1"
models = ["{model}"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How a gateway is started, and where it says that it is ready."""

    command: Sequence[str]
    ready: str  # a path


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """One of those that are compared. `start` is told a folder of its own, the upstream and two free ports."""

    name: str
    version: str
    start: Callable[[Path, str, int, int], Started]
    prepare: Callable[[], object] = lambda: None


def _keepwarm(home: Path, upstream: str, port: int, other: int) -> Started:
    config = home / "keepwarm.toml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    config.write_text(CONFIG.format(sha256=digest, upstream=upstream, model=MODEL))
    ports = ["--port", str(port), "--admin-port", str(other)]
    serve = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--no-engine", *ports]
    return Started(command=serve, ready="/ready")


def _vllm_router(_: Path, upstream: str, port: int, other: int) -> Started:
    command = install.installed(install.VLLM_ROUTER) / "vllm-router"
    where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other)]
    return Started(
        command=[str(command), "--worker-urls", upstream, "--policy", "cache_aware", "--log-level", "error", *where],
        ready="/health",
    )


def _litellm(home: Path, upstream: str, port: int, _: int) -> Started:
    params = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "unused"}
    models = [{"model_name": MODEL, "litellm_params": params}]
    config = home / "litellm.yaml"
    document = {"model_list": models, "general_settings": {"master_key": KEY}, "litellm_settings": {"telemetry": False}}
    config.write_text(json.dumps(document))  # which is YAML too
    command = install.installed(install.LITELLM) / "litellm"
    where = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return Started(command=[str(command), "--config", str(config), *where], ready="/health/liveliness")


KEEPWARM: Final = Gateway(name="keepwarm", version="from source", start=_keepwarm)
VLLM_ROUTER: Final = Gateway(
    name="vllm-router",
    version=install.VLLM_ROUTER.version,
    start=_vllm_router,
    prepare=lambda: install.installed(install.VLLM_ROUTER),
)
LITELLM: Final = Gateway(
    name="litellm",
    version=install.LITELLM.version,
    start=_litellm,
    prepare=lambda: install.installed(install.LITELLM),
)
ALL: Final = (KEEPWARM, VLLM_ROUTER, LITELLM)


@contextlib.asynccontextmanager
async def upstream_process(http: aiohttp.ClientSession) -> AsyncIterator[str]:
    """Run the upstream; give its address."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "benchmarks.gateway_peers.upstream", str(port)]
    with TemporaryDirectory(prefix="keepwarm-peers-") as folder:
        async with _running(http, Started(command=command, ready="/health"), url, Path(folder)):
            yield url


@contextlib.asynccontextmanager
async def running(http: aiohttp.ClientSession, gateway: Gateway, upstream: str) -> AsyncIterator[str]:
    """Run a gateway before the upstream; give its address."""
    port, other = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory(prefix="keepwarm-peers-") as folder:
        home = Path(folder)
        async with _running(http, gateway.start(home, upstream, port, other), url, home):
            yield url


@contextlib.asynccontextmanager
async def _running(http: aiohttp.ClientSession, started: Started, url: str, home: Path) -> AsyncIterator[None]:
    places = {"XDG_STATE_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    own = started.command[0] == sys.executable
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= places if own else {"HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    log = home / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *started.command, env=environ, cwd=home, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        await _ready(http, url + started.ready, process, log)
        yield
    finally:
        await _stopped(process)


async def _ready(http: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(url) as response:
                if response.status == 200:  # noqa: PLR2004 - ready
                    return
        if process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{url} was not reached: {_end_of(log)}")
        await asyncio.sleep(POLL_S)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-800:]


async def _stopped(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
    await process.wait()
