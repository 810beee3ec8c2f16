"""The examples of docs/clients.md and of the README, run as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config import cache_dir, read_settings
from tests.e2e.conftest import Server, StartServer
from tests.tiny_model import save_tiny_model

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[2]
WRITTEN_URL = "http://127.0.0.1:8000"
FENCE = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CACHED = re.compile(r'^"?(?:cached|cached_tokens|cache_read_input_tokens)"?[: ](\d+)', re.MULTILINE)
OPTIONAL = re.compile(r"^(?:from|import) (langchain_openai|langchain_anthropic|litellm)\b", re.MULTILINE)
CALLERS = ("langchain", "litellm", "claude -p", "curl", "anthropic", "openai")
BLOCK = 16
PATIENCE_S = 300


def examples(document: str) -> list[tuple[str, str]]:
    """Return language and text of each runnable block of a document."""
    found: list[tuple[str, str]] = FENCE.findall((ROOT / document).read_text())
    return found


CLIENTS = examples("docs/clients.md")
SNIPPETS = [block for block in examples("README.md") if block[0] == "python"]


def name_of(block: tuple[str, str]) -> str:
    """Name a block by what it calls and by the keeper it asks for."""
    caller = next(
        word for word in ("langchain", "litellm", "claude -p", "curl", "anthropic", "openai") if word in block[1]
    )
    keeper = re.search(r"is kept by (\w+)", block[1])
    return f"{caller.split()[0]}-{keeper[1] if keeper else ''}"


def can_import(python: str, module: str) -> bool:
    """Whether an interpreter has a package."""
    done = subprocess.run([python, "-c", f"import {module}"], check=False, capture_output=True, timeout=PATIENCE_S)
    return done.returncode == 0


def python_for(text: str) -> str:
    """Return the interpreter that runs an example, or skip where none has its package."""
    needed = OPTIONAL.search(text)
    if needed is None:
        return sys.executable
    python = os.environ.get("KEEPWARM_CLIENTS_PYTHON", sys.executable)
    if not can_import(python, needed[1]):
        pytest.skip(
            f"{needed[1]} is not installed here: pip install '.[clients]', or name an interpreter that has it "
            "in KEEPWARM_CLIENTS_PYTHON"
        )
    return python


def claude() -> str:
    """Return where Claude Code is, or skip."""
    found = shutil.which(os.environ.get("KEEPWARM_CLAUDE", "claude"))
    if found is None:
        pytest.skip(
            "Claude Code is not installed here: npm install @anthropic-ai/claude-code, and name its command "
            "in KEEPWARM_CLAUDE"
        )
    return found


def command_of(block: tuple[str, str]) -> list[str]:
    """Return the command that runs a block, its text last."""
    language, text = block
    if language == "python":
        return [python_for(text), "-c", text]
    if "claude -p" in text:
        text = f'claude() {{ command {claude()} "$@"; }}\n{text}'
    else:
        assert shutil.which("curl"), "curl is missing; on Debian: apt-get install curl"
    return ["bash", "-euc", text]


def environment(home: Path) -> dict[str, str]:
    """Return an environment in which clients find no keys, no proxies and nobody's settings."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
    return kept | {"HOME": str(home), "NO_PROXY": "*"}


def run(command: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    """Run a client in an empty folder."""
    return subprocess.run(
        command,
        check=False,
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="module")
def live(start_server: StartServer) -> Server:
    """A server on the default model, as `make run` starts it."""
    folder = cache_dir(read_settings({}, os.environ), os.environ)
    return start_server("--model", "smollm2-135m", "--kv-bytes", "384MiB", KEEPWARM_CACHE=str(folder))


@pytest.mark.parametrize("block", [*CLIENTS, *SNIPPETS], ids=name_of)
def test_an_example_runs_as_written(block: tuple[str, str], live: Server, tmp_path: Path) -> None:
    """Each example ends well, and its second request reads more from the cache than its first."""
    command = command_of((block[0], block[1].replace(WRITTEN_URL, live.url)))
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = map(int, CACHED.findall(done.stdout))
    assert second > first
    assert second > 10 * BLOCK


def test_every_client_has_an_example() -> None:
    """Each kind of client is there, at the address and with the model that `make run` serves."""
    callers = [name_of(block).partition("-")[0] for block in CLIENTS]
    assert callers == ["openai", "openai", "anthropic", "curl", "curl", "langchain", "langchain", "litellm", "claude"]
    assert all(WRITTEN_URL in text and "smollm2-135m" in text for _, text in CLIENTS)


def test_claude_code_reads_its_own_long_prompt(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """With tools and all, a second session with another question reads the first's prompt up to the question."""
    command = claude()
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-wide", window=131_072)
    server = start_server("--model", str(folder), "--kv-bytes", "128MiB")
    ask = [command, "--model", folder.name, "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    settings = [
        "env",
        f"ANTHROPIC_BASE_URL={server.url}",
        "ANTHROPIC_AUTH_TOKEN=unused",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS=32",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
    ]
    ends = []
    for question in ("say hi", "Tell me about lighthouses and the sea."):
        lines = map(json.loads, run([*settings, *ask, "-p", question], tmp_path).stdout.splitlines())
        events = [line["event"] for line in lines if line["type"] == "stream_event"]
        ends.append(next(event for event in events if event["type"] == "message_delta"))
    assert [end["keepwarm"]["normalised"] for end in ends] == [["claude-code-billing"]] * 2
    usage = ends[1]["usage"]
    read = usage["cache_read_input_tokens"]
    prompt = read + usage["cache_creation_input_tokens"] + usage["input_tokens"]
    assert prompt > 10_000
    assert read > 0.9 * prompt
