"""Each gateway as it is started before the upstream: Keepwarm with everything on, the rivals as their manuals say.

Rule: one gateway runs at a time, on ports that nobody has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from benchmarks import processes
from benchmarks.gateway_peers import install
from benchmarks.gateway_peers.upstream import MODEL
from benchmarks.packages import installed
from benchmarks.processes import Started
from gateway.demo.server import free_ports

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
    return Started(command=serve, ready="/ready", environ=processes.own_environ(home))


def _vllm_router(home: Path, upstream: str, port: int, other: int) -> Started:
    command = installed(install.VLLM_ROUTER) / "vllm-router"
    where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(other)]
    return Started(
        command=[str(command), "--worker-urls", upstream, "--policy", "cache_aware", "--log-level", "error", *where],
        ready="/health",
        environ={"HOME": str(home)},
    )


def _litellm(home: Path, upstream: str, port: int, _: int) -> Started:
    params = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "unused"}
    models = [{"model_name": MODEL, "litellm_params": params}]
    config = home / "litellm.yaml"
    document = {"model_list": models, "general_settings": {"master_key": KEY}, "litellm_settings": {"telemetry": False}}
    config.write_text(json.dumps(document))  # which is YAML too
    command = installed(install.LITELLM) / "litellm"
    where = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return Started(
        command=[str(command), "--config", str(config), *where],
        ready="/health/liveliness",
        environ={"HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )


KEEPWARM: Final = Gateway(name="keepwarm", version="from source", start=_keepwarm)
VLLM_ROUTER: Final = Gateway(
    name="vllm-router",
    version=install.VLLM_ROUTER.version,
    start=_vllm_router,
    prepare=lambda: installed(install.VLLM_ROUTER),
)
LITELLM: Final = Gateway(
    name="litellm",
    version=install.LITELLM.version,
    start=_litellm,
    prepare=lambda: installed(install.LITELLM),
)
ALL: Final = (KEEPWARM, VLLM_ROUTER, LITELLM)


@contextlib.asynccontextmanager
async def upstream_process(http: aiohttp.ClientSession) -> AsyncIterator[str]:
    """Run the upstream; give its address."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "benchmarks.gateway_peers.upstream", str(port)]
    with TemporaryDirectory(prefix="keepwarm-peers-") as folder:
        home = Path(folder)
        started = Started(command=command, ready="/health", environ=processes.own_environ(home))
        async with processes.running(http, started, url, home):
            yield url


@contextlib.asynccontextmanager
async def running(http: aiohttp.ClientSession, gateway: Gateway, upstream: str) -> AsyncIterator[str]:
    """Run a gateway before the upstream; give its address."""
    port, other = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory(prefix="keepwarm-peers-") as folder:
        home = Path(folder)
        async with processes.running(http, gateway.start(home, upstream, port, other), url, home):
            yield url
