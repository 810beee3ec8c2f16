"""`keepwarm serve --no-engine` as a process: started, reloaded, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.e2e.conftest import free_port, until
from tests.relay.upstreams import Fake


@pytest.fixture
async def fakes() -> AsyncIterator[tuple[Fake, Fake]]:
    """Two upstreams."""
    both = Fake("a"), Fake("b")
    for one in both:
        await one.server.start_server(shutdown_timeout=0.1)
    yield both
    for one in both:
        one.go_on.set()
        await one.server.close()


async def test_it_starts_reloads_and_drains(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """No engine process, an answer from the upstream, another one after SIGHUP, and on SIGTERM a stream's whole end."""
    a, b = fakes
    file = tmp_path / "keepwarm.toml"
    file.write_text(a.toml())
    port, admin_port = free_port(), free_port()
    url, admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(file), "--no-engine"]
    command += ["--port", str(port), "--admin-port", str(admin_port), "--drain", "30s"]
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
    try:
        await asyncio.to_thread(until, lambda: b'"side": "admin"' in log.read_bytes() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        async with aiohttp.ClientSession() as session:

            async def chat() -> str:
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    return response.headers.get("x-keepwarm-upstream", "")

            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            await asyncio.to_thread(until, lambda: b'"side": "serving"' in log.read_bytes())
            assert (await chat(), children(process.pid)) == ("a", [])
            file.write_text(b.toml())
            process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(until, lambda: b'"event": "reloaded"' in log.read_bytes())
            assert await chat() == "b"
            b.go_on.clear()
            async with session.post(f"{url}/v1/chat/completions", json={**body, "stream": True}) as stream:
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(until, lambda: b'"event": "stopping"' in log.read_bytes())
                async with session.get(f"{url}/ready") as ready:
                    assert ready.status == 503
                b.go_on.set()
                assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()


def children(pid: int) -> list[str]:
    """Processes that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--engine off: nothing would be served; name [[upstreams]] in the file of --config"),
        (
            '[[upstreams]]\nname = "a"\nbase_url = "http://x/v1"\nmodels = ["m"]\nkey_env = "KEEPWARM_TEST_NOWHERE"\n',
            "[[upstreams]] a: key_env: KEEPWARM_TEST_NOWHERE is not set in the environment",
        ),
    ],
)
def test_what_cannot_serve_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    """Without upstreams, or without a key that one needs, nothing starts and one line says why."""
    file = tmp_path / "keepwarm.toml"
    file.write_text(text)
    done = CliRunner().invoke(app, ["serve", "--config", str(file), "--no-engine"])
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"keepwarm: {said}\n")


def test_config_check_shows_upstreams_and_no_key(tmp_path: Path) -> None:
    """Each upstream with its endpoints and whether its key is set; the key itself is nowhere."""
    file = tmp_path / "keepwarm.toml"
    one = '[[upstreams]]\nname = "{name}"\nkind = "openai"\nbase_url = "http://x/v1"\nmodels = ["m"]\n'
    file.write_text(
        one.format(name="a")
        + 'key_env = "KEY_A"\n'
        + one.format(name="b")
        + 'key_env = "KEY_B"\n[routing]\nm = "session"\n'
    )
    runner = CliRunner(env={"KEY_A": "hunter2"})
    told = runner.invoke(app, ["config", "check", str(file), "--json"])
    shown = runner.invoke(app, ["config", "check", str(file)], env={"COLUMNS": "200"})
    checked = json.loads(told.stdout)
    assert [(up["name"], up["key_env"], up["key"]) for up in checked["upstreams"]] == [
        ("a", "KEY_A", "set"),
        ("b", "KEY_B", "not set"),
    ]
    assert (checked["upstreams"][0]["apis"], checked["routing"]) == (
        ["chat", "completions", "responses", "input_tokens"],
        {"m": "session"},
    )
    assert [word in shown.stdout for word in ("KEY_B", "not set", "session", "hunter2")] == [True, True, True, False]
    assert "hunter2" not in told.stdout
