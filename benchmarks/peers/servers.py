"""Each server as it is started: Keepwarm as `keepwarm serve` starts it, the peers as their manuals say.

Rule: what has a say in speed stands in `flags` and `environ`, the same in every sitting, and is kept with the results.
All serve one folder of weights in float32, and choose their threads themselves; vLLM, which then leaves a core out, is
there a second time with all of them.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import environment, processes
from benchmarks.packages import peers_dir
from benchmarks.peers import figures, install
from benchmarks.processes import Started
from engine.weights import DEFAULT_MODEL, resolve_in_subprocess
from gateway.config import Settings, cache_dir

START_S: Final = 1800.0
MANNERS: Final = {  # of peers: they ask nobody, tell nobody, and may take their time to compile
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENGINE_READY_TIMEOUT_S": str(round(START_S)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server is to be: a folder of its own, the weights, two free ports."""

    home: Path
    model: Path
    port: int
    other: int

    @property
    def listen(self) -> list[str]:
        """As all of them take it."""
        return ["--host", "127.0.0.1", "--port", str(self.port)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One of those that are compared."""

    name: str
    version: str
    flags: tuple[str, ...]
    start: Callable[[Server, Place], Started]
    called: Callable[[Path], str] = lambda _: DEFAULT_MODEL  # what requests call the model
    prepare: Callable[[], object] = lambda: None
    environ: Mapping[str, str] = field(default_factory=dict)
    tells: bool = True  # how many tokens were cached

    @property
    def told(self) -> str:
        """Version and settings in one line."""
        settings = (*(f"{name}={value}" for name, value in self.environ.items()), *self.flags)
        return " ".join((self.version, *settings))


def model_folder() -> Path:
    """Return the default model's weights, converting them first where they are not there."""
    return Path(resolve_in_subprocess(DEFAULT_MODEL, cache_dir(Settings(), os.environ), lambda *_: None).path)


def _keepwarm(server: Server, place: Place) -> Started:
    ports = ["--port", str(place.port), "--admin-port", str(place.other)]
    command = [sys.executable, "-m", "gateway.cli", "serve", *server.flags, *ports]
    return Started(command=command, ready="/ready", environ=processes.own_environ(place.home), start_s=START_S)


def _vllm(server: Server, place: Place) -> Started:
    command = [str(install.vllm()), "serve", str(place.model), "--served-model-name", DEFAULT_MODEL]
    return _peer(server, [*command, *server.flags, *place.listen])


def _llama(server: Server, place: Place) -> Started:
    command = [str(install.llama_server()), "--model", str(install.gguf(place.model)), "--alias", DEFAULT_MODEL]
    return _peer(server, [*command, *server.flags, *place.listen])


def _transformers(server: Server, place: Place) -> Started:
    return _peer(server, [str(install.transformers()), "serve", str(place.model), *server.flags, *place.listen])


def _peer(server: Server, command: list[str]) -> Started:
    """Start it with a home that is kept, where it may cache what it compiles."""
    home = peers_dir() / "home" / server.name
    home.mkdir(parents=True, exist_ok=True)
    environ = {"HOME": str(home), "XDG_CACHE_HOME": str(home), **MANNERS, **server.environ}
    return Started(command=command, ready="/health", environ=environ, start_s=START_S)


KEEPWARM: Final = Server(name=figures.OURS, version=environment.version("keepwarm"), flags=(), start=_keepwarm)
KEEPWARM_COMPILED: Final = dataclasses.replace(KEEPWARM, name=figures.OURS_COMPILED, flags=("--torch-compile", "on"))
VLLM: Final = Server(
    name=figures.VLLM,
    version=install.VLLM.version,
    flags=("--dtype", "float32", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
    environ={"VLLM_CPU_KVCACHE_SPACE": "4"},
    start=_vllm,
    prepare=install.vllm,
)
VLLM_ALL_CORES: Final = dataclasses.replace(  # left to itself, vLLM keeps one core free for its scheduler
    VLLM,
    name=figures.VLLM_ALL_CORES,
    environ={**VLLM.environ, "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))))},
)
LLAMA: Final = Server(
    name="llama.cpp",
    version=f"of {install.LLAMA.requirement}",
    flags=("--ctx-size", "32768"),  # for its four slots together
    start=_llama,
    prepare=lambda: install.gguf(model_folder()),
)
TRANSFORMERS: Final = Server(
    name="transformers",
    version=install.TRANSFORMERS.version,
    flags=("--continuous-batching", "--dtype", "float32", "--device", "cpu", "--cb-num-blocks", "364"),  # 4 GiB
    start=_transformers,
    called=str,
    prepare=install.transformers,
    tells=False,
)
ALL: Final = (KEEPWARM, KEEPWARM_COMPILED, VLLM, VLLM_ALL_CORES, LLAMA, TRANSFORMERS)
