"""A real server in a process of its own, with a real engine on a tiny random model."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from tests.e2e.answers import Answers, anthropic_sdk, async_anthropic_sdk, async_openai_sdk, openai_sdk
from tests.tiny_model import save_tiny_model

PATIENCE_S = 200.0  # below the limit of a test, which counts its setup too
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Server:
    """A running `keepwarm serve`."""

    url: str
    admin_url: str
    model: str
    process: subprocess.Popen[bytes]


StartServer = Callable[..., Server]


PORTS = range(20_000, 30_000)  # below those that the kernel hands out, so that no other socket comes first
START = os.getpid() * 997 % len(PORTS)
_to_try: Iterator[int] = itertools.cycle((*PORTS[START:], *PORTS[:START]))


def free_port() -> int:
    """Return a port that nobody listens on just now; each time another, and others than in a run beside this one."""
    for port in _to_try:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("the ports never end")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model, made once per run."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@contextlib.contextmanager
def servers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers and wait until they are ready; all end with the block."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(
        *flags: str,
        home: Path | None = None,
        model: Path | str = tiny_model,
        patience_s: float = PATIENCE_S,
        **environ: str,
    ) -> Server:
        home = home or tmp_path_factory.mktemp("home")
        port, admin_port = free_port(), free_port()
        ports = ("--port", str(port), "--admin-port", str(admin_port))
        command = [sys.executable, "-m", "gateway.cli", "serve", *ports, "--model", str(model), *flags]
        environment = os.environ | {"XDG_STATE_HOME": str(home), "XDG_CACHE_HOME": str(home)} | environ
        log = (home / "server.log").open("wb")
        with log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        processes.append(process)
        server = Server(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", Path(model).name, process)
        until(lambda: is_ready(server) or process.poll() is not None, patience_s)
        assert process.poll() is None, (home / "server.log").read_text()
        return server

    try:
        yield start
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=20)


@pytest.fixture(scope="session")
def start_lasting(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers that last for the run."""
    with servers(tiny_model, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers that last for a module: each has half a gigabyte and works a little while it is idle."""
    with servers(tiny_model, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def server(start_lasting: StartServer) -> Server:
    """One server that most tests share."""
    return start_lasting("--kv-bytes", "8MiB")


@pytest.fixture
def answers() -> Iterator[Answers]:
    """Checks every answer that the clients below get: a test ends well only if all of them add up."""
    answers = Answers()
    yield answers
    assert answers.seen > 0
    assert answers.wrong == []


@pytest.fixture
def openai_client(server: Server, answers: Answers) -> Iterator[OpenAI]:
    """OpenAI's SDK at the shared server."""
    with openai_sdk(server.url, answers) as client:
        yield client


@pytest.fixture
async def async_openai_client(server: Server, answers: Answers) -> AsyncIterator[AsyncOpenAI]:
    """The same, asynchronous."""
    async with async_openai_sdk(server.url, answers) as client:
        yield client


@pytest.fixture
def anthropic_client(server: Server, answers: Answers) -> Iterator[Anthropic]:
    """Anthropic's SDK at the shared server."""
    with anthropic_sdk(server.url, answers) as client:
        yield client


@pytest.fixture
async def async_anthropic_client(server: Server, answers: Answers) -> AsyncIterator[AsyncAnthropic]:
    """The same, asynchronous."""
    async with async_anthropic_sdk(server.url, answers) as client:
        yield client


def is_ready(server: Server) -> bool:
    """Ask /ready, as an operator's probe does."""
    try:
        with urllib.request.urlopen(f"{server.url}/ready", timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for another process: it tells us nothing, so it is asked again and again."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(POLL_S)
