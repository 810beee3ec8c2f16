"""`keepwarm eval needle` as a person and as a program meet it, over a real engine with a tiny random model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import psutil
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from engine.config import KV_DTYPES
from gateway.cli import app
from gateway.evaluation.errors import Unmeasurable
from gateway.evaluation.wanted import DEPTHS, OF_THEIR_OWN, Wanted, depths_of, dtypes_of, lengths_of
from tests.tiny_model import save_tiny_model

SVG = "{http://www.w3.org/2000/svg}"
DOCUMENT = Path(__file__).parents[2] / "docs/evaluating.md"
PATIENCE_S = 200.0

pytestmark = pytest.mark.timeout(400)


def run(*arguments):
    """Run the command: its exit code, what it printed, what it said went wrong."""
    done = CliRunner().invoke(app, ["eval", "needle", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def keepwarm(*arguments) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    command = [sys.executable, "-m", "gateway.cli", "eval", "needle", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model of random weights."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", window=1024)


@pytest.fixture
def text(tmp_path):
    """A short text."""
    file = tmp_path / "tides.txt"
    file.write_text("The tide comes twice a day. It goes as often. " * 12)
    return file


def test_two_dtypes_end_to_end(tiny, text, tmp_path):
    """One engine after another is asked the same; random weights are at chance, and every number adds up."""
    picture = tmp_path / "needle.svg"
    process = keepwarm(
        *("--model", tiny, "--kv-bytes", "8MiB", "--text", text, "--lengths", "512,1k", "--depths", "0,100"),
        *("--facts", "1", "--kv-cache-dtype", "auto,int8", "--picture", picture, "--fail-under", "0.5", "--json"),
    )
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    told = msgspec.json.decode(out)
    assert (told["model"], told["chat_template"], told["lengths"], told["depths"]) == (
        "tiny",
        True,
        [512, 1024],
        [0, 1],
    )
    size = len(text.read_text().replace("the", "x").replace("in", "x").replace("and", "x"))
    assert size - 40 < told["text"]["tokens"] <= len(text.read_text())
    assert told["text"]["told"] == told["text"]["tokens"] - 1
    auto, int8 = told["dtypes"]
    assert (auto["stored"], int8["stored"]) == ("float32", "int8")
    assert auto["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert int8["kv_bytes_per_token"] < auto["kv_bytes_per_token"] / 2
    for row in (auto, int8):
        assert row["at_chance"]
        assert row["facts"] == 4
        assert [(cell["length"], cell["depth"]) for cell in row["cells"]] == [(512, 0), (512, 1), (1024, 0), (1024, 1)]
        assert 0.5 < row["read_tokens"] / row["prompt_tokens"] < 1
        assert 0 < row["probability"] < 0.05
        assert 200 < row["perplexity"] < 400
    assert auto["against_first"] is None
    compared = int8["against_first"]
    assert compared["chosen"] is None
    assert compared["kept"] == min(compared["probability"], compared["perplexity"])
    assert 0.9 < compared["kept"] < 1.1
    assert 0.9 < compared["same_likeliest"] <= 1
    assert told["failed"] == []
    assert len(ET.parse(picture).findall(f".//{SVG}g[@class='cell']")) == 8


def test_a_dtype_that_kept_too_little_is_exit_code_1(tiny, text):
    """With a threshold of all, of two dtypes one is below the other: that order fails, naming it, after its tables."""
    codes = []
    for order in ("float32,fp8", "fp8,float32"):
        code, out, _ = run(
            *("--model", tiny, "--kv-bytes", "8MiB", "--text", text, "--lengths", "300", "--depths", "50"),
            *("--facts", "1", "--kv-cache-dtype", order, "--fail-under", "1"),
        )
        assert f"Below --fail-under 1: {order.partition(',')[2] if code else 'none'}" in out
        codes.append(code)
    assert 1 in codes
    assert set(codes) <= {0, 1}


def test_a_dtype_that_cannot_be_measured_is_a_row(tiny, text, tmp_path):
    """Where memory holds the prompts in int8 alone, float32 is a row and a map that say why, and int8 is measured."""
    picture = tmp_path / "needle.svg"
    code, out, err = run(
        *("--model", tiny, "--kv-bytes", "57600", "--max-model-len", "512", "--text", text, "--lengths", "512"),
        *("--depths", "50", "--facts", "1", "--kv-cache-dtype", "int8,float32", "--picture", picture, "--json"),
    )
    assert code == 0, err
    int8, float32 = msgspec.json.decode(out)["dtypes"]
    assert int8["refused"] is None
    assert "--kv-bytes 131072 or more" in float32["refused"]
    assert "cells" not in float32
    assert "Not measured: " in "".join(ET.parse(picture).getroot().itertext())


def test_an_interrupt_leaves_no_engine(tiny, text):
    """Ctrl-C ends the command with its code, in one line, and the engine with it."""
    process = keepwarm(
        *("--model", tiny, "--kv-bytes", "8MiB", "--text", text, "--lengths", "300", "--depths", "50", "--facts", "1")
    )
    engines: list[psutil.Process] = []
    deadline = time.monotonic() + PATIENCE_S
    while not engines and process.poll() is None and time.monotonic() < deadline:
        engines = [one for one in psutil.Process(process.pid).children() if "engine.worker" in one.cmdline()]
    assert engines
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.splitlines()[-1:]) == (130, ["keepwarm: interrupted"])
    assert psutil.wait_procs(engines, timeout=20)[1] == []


def test_a_length_beyond_the_window_is_refused_with_the_window(tiny):
    """What only the engine knows is said in one line too, with exit code 2."""
    process = keepwarm("--model", tiny, "--kv-bytes", "8MiB", "--lengths", "2k", "--kv-cache-dtype", "auto")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert err.splitlines()[-1] == (
        "keepwarm: --lengths: 2048 tokens are more than the 1024 that the model's window and the KV memory hold"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kv-cache-dtype", "int4"], "--kv-cache-dtype: 'int4' is not one of auto, float32"),
        (["--kv-cache-dtype", "int8,"], "--kv-cache-dtype: expected values between commas"),
        (["--lengths", "long"], "--lengths: expected tokens such as 512 or 4k"),
        (["--lengths", "0"], "--lengths: expected tokens"),
        (["--lengths", "²"], "--lengths: expected tokens"),
        (["--depths", "101"], "--depths: expected percent from 0 to 100, not '101'"),
        (["--depths", "nan"], "--depths: expected percent from 0 to 100, not 'nan'"),
        (["--facts", "0"], "--facts: expected a whole number from 1 to 60, not 0"),
        (["--facts", "13"], "--facts 13 at 5 --depths are 65 facts in one prompt"),
        (["--fail-under", "0"], "--fail-under: expected a share above 0"),
        (["--fail-under", "nan"], "--fail-under: expected a share above 0"),
        (["--text", "/nowhere/at/all"], "--text /nowhere/at/all: No such file or directory"),
        (["--picture", "/nowhere/at/all.svg"], "--picture /nowhere/at/all.svg: no file can be written there"),
        (["--model", "no-such-model"], "--model no-such-model: There is no model 'no-such-model'"),
        (["--kv-bytes", "many"], "--kv-bytes"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_code_2(arguments, said):
    """A wrong option is named before anything is started."""
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"keepwarm: {said}")


def test_options_are_read_from_lists():
    """Values come one by one or between commas, each once, lengths and depths in order; or all there are."""
    assert dtypes_of(["int8, FP8", "int8"]) == ("int8", "fp8")
    assert dtypes_of([]) == OF_THEIR_OWN
    assert set(OF_THEIR_OWN) | {"float32"} == set(KV_DTYPES)
    assert lengths_of(["2k", "512,1000"]) == (512, 1000, 2048)
    assert depths_of(["100%", "0,12.5"]) == (0.0, 0.125, 1.0)
    assert (lengths_of([]), depths_of([])) == (None, DEPTHS)


def test_lengths_go_as_far_as_the_window():
    """Not given, they double up to the window; a window below all of them is one length; one beyond it is refused."""
    assert Wanted().lengths_within(131_072) == (512, 1024, 2048, 4096)
    assert Wanted().lengths_within(2048) == (512, 1024, 2048)
    assert Wanted().lengths_within(300) == (300,)
    assert Wanted(lengths=(64, 128)).lengths_within(128) == (64, 128)
    with pytest.raises(Unmeasurable, match=r"--lengths: 129 tokens are more than the 128"):
        Wanted(lengths=(129,)).lengths_within(128)


def test_the_document_has_every_option():
    """The table of options names each with its help, as the command does."""
    command = get_command(app).commands["eval"].commands["needle"]
    options = {option.opts[0]: option.help for option in command.params if option.opts[0] != "--help"}
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| [^|]+ \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert rows.keys() == options.keys()
    own = {name: words for name, words in options.items() if "KEEPWARM_" not in words}
    assert {name: rows[name] for name in own} == own
