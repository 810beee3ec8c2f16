"""Starts that are refused, as an operator sees them: exit code 2 and one line that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.spoilt import BROKEN


def serve(model: Path, home: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `keepwarm serve` to its end."""
    ports = ("--port", "0", "--admin-port", "0")
    command = [sys.executable, "-m", "gateway.cli", "serve", *ports, "--model", str(model), *flags]
    environment = os.environ | {"XDG_STATE_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize(
    "what",
    ["weights cut off", "a shard is missing", "configuration is no JSON", "vocabulary too large", "tokenizer broken"],
)
def test_a_broken_model_is_one_line_and_code_2(what: str, tiny_model: Path, tmp_path: Path) -> None:
    """The line is all there is, and it comes before a port answers or a process is started."""
    spoil, said = BROKEN[what]
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_model, folder)
    spoil(folder)
    done = serve(folder, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"keepwarm: --model {folder}: {said.format(folder)}\n"


def test_a_folder_without_a_tokenizer_is_one_line_and_code_2(tiny_model: Path, tmp_path: Path) -> None:
    """So is what a model's folder lacks altogether."""
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("tokenizer*"))
    done = serve(folder, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"keepwarm: --model {folder}: {folder} holds no tokenizer. Save the model's tokenizer there with "
        "save_pretrained.\n"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--kv-bytes", "256KiB"),
            (
                "Keys and values of one sequence of 2048 tokens (the model's own window) need 524288 bytes, and 262144 "
                "bytes are there for them (--kv-bytes). Give --max-model-len 1024 or less or --kv-bytes 524288 or more."
            ),
        ),
        (
            ("--kv-bytes", "256KiB", "--max-model-len", "1100", "--block-size", "100"),
            (
                "Keys and values of one sequence of 1100 tokens (--max-model-len) need 281600 bytes, and 262144 bytes "
                "are there for them (--kv-bytes). Give --max-model-len 1000 or less or --kv-bytes 281600 or more."
            ),
        ),
        (("--device", "cuda:7"), "finds no GPU here. Use --device cpu."),
    ],
)
def test_what_the_engine_refuses_is_one_line_beside_the_log(
    flags: tuple[str, ...], said: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Of what is written, one line is no log, and nothing is a traceback; the exit code is 2."""
    done = serve(tiny_model, tmp_path, *flags)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1)
    assert lines[0].startswith("keepwarm: ")
    assert lines[0].endswith(said)
    assert "Traceback" not in done.stderr
