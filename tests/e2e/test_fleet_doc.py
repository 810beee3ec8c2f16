"""The commands of docs/fleet.md, run as they are written: two replicas and two gateways on one Redis."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import free_port, until
from tests.state.servers import redis_binary

pytestmark = pytest.mark.timeout(400)

DOCUMENT = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
SECTION = DOCUMENT.partition("## By hand")[2].partition("\n## ")[0]
FENCE = re.compile(r"^```(toml|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = ("6399", "9001", "9101", "9002", "9102", "8000", "8001", "8100", "8101")
SERVERS = ("9001", "9002", "8000", "8100")
MODEL = "smollm2-135m"
START_S = 180.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet of the document under the ports of this run."""

    ports: dict[str, str]
    path: str  # on which `keepwarm` and a Redis are found
    home: Path
    blocks: tuple[str, ...]  # of shell: what starts it, what asks, what looks

    def run(self, text: str) -> str:
        """Run a block as it is written, but for the ports. Return what it prints."""
        environ = os.environ | {"PATH": self.path, "NO_PROXY": "*", "COLUMNS": "200"}
        environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            ["bash", "-euc", text], check=False, cwd=self.home, env=environ, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ready(self, port: str) -> bool:
        """Whether the server that the document puts on a port is ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}/ready", timeout=5):
                return True
        except OSError:
            return False

    def counted(self) -> bool:
        """Whether the second gateway has counted its answer, which it does once that is sent whole."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['8101']}/admin/v1/upstreams", timeout=5) as answer:
            return any(one["prompt_tokens"] for one in json.load(answer)["upstreams"])


def here(text: str, ports: dict[str, str], model: str) -> str:
    """Put this run's ports and model where the document's are."""
    for written, free in ports.items():
        text = re.sub(rf"\b{written}\b", free, text)
    looked = f"keepwarm upstreams --admin-url http://127.0.0.1:{ports['8001']}\n"
    return text.replace(MODEL, model).replace("keepwarm upstreams\n", looked)


def commands(folder: Path) -> str:
    """Return a path on which `keepwarm` and `redis-server` are found."""
    folder.mkdir()
    own = folder / "keepwarm"
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gateway.cli "$@"\n')
    own.chmod(0o755)
    (folder / "redis-server").symlink_to(redis_binary())
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Start what the document's five commands start, and end it."""
    assert shutil.which("curl"), "curl is missing; on Debian: apt-get install curl"
    home = tmp_path_factory.mktemp("fleet")
    ports = {port: str(free_port()) for port in PORTS}
    (_, file), *shell = [(language, here(text, ports, tiny_model.name)) for language, text in FENCE.findall(SECTION)]
    (home / "fleet.toml").write_text(file)
    fleet = Fleet(ports, commands(home / "bin"), home, tuple(text for _, text in shell))
    environ = os.environ | {"PATH": fleet.path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environ |= {"XDG_STATE_HOME": str(home), "KEEPWARM_MODEL": str(tiny_model), "KEEPWARM_KV_BYTES": "8MiB"}
    environ |= {"KEEPWARM_PORT": ports["8000"], "KEEPWARM_ADMIN_PORT": ports["8001"]}  # where a command names none
    processes = []
    with (home / "log").open("wb") as log:
        for line in fleet.blocks[0].splitlines():
            command = ["bash", "-c", "exec env " + line.replace("/tmp/replica", str(home / "replica"))]
            processes.append(subprocess.Popen(command, cwd=home, env=environ, stdout=log, stderr=log))
    try:
        until(lambda: all(map(fleet.ready, SERVERS)) or any(one.poll() is not None for one in processes), START_S)
        assert all(one.poll() is None for one in processes), (home / "log").read_text()
        yield fleet
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


def test_five_commands_start_it(fleet: Fleet) -> None:
    """A Redis, two replicas and two gateways are five lines, and each server is ready."""
    assert len(fleet.blocks[0].splitlines()) == 5
    assert all(map(fleet.ready, SERVERS))


@pytest.fixture(scope="module")
def conversation(fleet: Fleet) -> list[str]:
    """Hold the document's conversation once. Return the lines that it prints."""
    return [line.strip() for line in fleet.run(fleet.blocks[1]).splitlines()]


def test_a_conversation_stays_with_its_replica(conversation: list[str]) -> None:
    """Two turns through two gateways go to one replica, and the second reads from its cache what the first wrote."""
    first, written, second, read = conversation
    assert first.lower().startswith("x-keepwarm-upstream: ")
    assert second == first
    assert int(written.partition(":")[2]) == 0
    assert int(read.partition(":")[2]) > 100


def test_both_gateways_show_the_fleet(fleet: Fleet, conversation: list[str]) -> None:
    """The table and the JSON name both replicas, well, with the policy, and what the one that answered delivered."""
    until(fleet.counted)
    table, _, rest = fleet.run(fleet.blocks[2]).partition("\n{")
    shown = json.loads("{" + rest)
    assert "delivered" in table
    assert [(one["name"], one["state"]) for one in shown["upstreams"]] == [("a", "well"), ("b", "well")]
    assert list(shown["routing"].values()) == ["prefix"]
    (ratio,) = (one["delivered_ratio"] for one in shown["upstreams"] if one["requests"])
    assert 0.5 < ratio <= 1
