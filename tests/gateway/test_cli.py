"""The command line as a person meets it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from gateway.config import SETTINGS


def keepwarm(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "gateway.cli", *arguments]
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | environ
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)


def test_help_shows_every_flag_of_the_table() -> None:
    """No setting is hidden, and each names its default and variable."""
    shown = keepwarm("serve", "--help").stdout
    flags = [row for row in SETTINGS.values() if row.flag]
    assert [row.flag for row in flags if row.flag not in shown or row.env not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "eighty"], "--port"),
        (["--ttl", "soon"], "--ttl"),
        (["--admin-host", "0.0.0.0"], "KEEPWARM_ADMIN_KEY"),
        (["--port", "0", "--admin-port", "0", "--model", "no-such-model"], "no-such-model"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments: list[str], said: str) -> None:
    """What a person can put right is said in one line, without a traceback."""
    done = keepwarm("serve", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("keepwarm: ")
    assert said in done.stderr


def test_port_in_use_is_said() -> None:
    """A port that someone has is named with the flag that changes it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = keepwarm("serve", "--port", port, "--admin-port", "0")
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is already in use; choose another with --port" in done.stderr
