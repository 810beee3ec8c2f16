"""`keepwarm doctor` as a person and a CI meet it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_cli import keepwarm
from tests.gateway.test_doctor import NOW, RULES, TALK, chat

Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def doctor(tokenizer_folder: Path) -> Doctor:
    """Run the command with the tiny tokenizer; a folder without weights will do."""

    def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway.cli", "doctor", "--model", str(tokenizer_folder), *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, input=given, timeout=60)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Callable[[Any], str]:
    """Write a body to a file of its own."""

    def write(body: Any) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(body))
        return str(path)

    return write


@pytest.mark.parametrize(("system", "code"), [(RULES, 0), (f"{NOW}\n{RULES}", 1)])
def test_the_exit_code_says_whether_one_request_breaks(doctor: Doctor, file: Any, system: str, code: int) -> None:
    """0 where nothing breaks the prefix, 1 where something does, and the place is printed."""
    done = doctor(file(chat(system)))
    assert (done.returncode, done.stderr) == (code, "")
    assert ("messages[0], character 14: a time that changes" in done.stdout) == bool(code)
    assert ("nothing found that breaks the prefix" in done.stdout) != bool(code)


def test_two_requests_are_compared(doctor: Doctor, file: Any) -> None:
    """What breaks, where, what it looks like, its cost a day and what to do are printed, in plain text when piped."""
    old, new = (file(chat(f"Now: 10:15:{second}\n{RULES}", TALK[:1])) for second in (10, 42))
    done = doctor(old, new, "--rate", "100/h")
    assert (done.returncode, done.stderr) == (1, "")
    for said in (
        "the prefix breaks (system)",
        "messages[0], character 11, token ",
        "time",
        "tokens a day",
        "Move the time",
    ):
        assert said in done.stdout
    assert "\x1b" not in done.stdout


def test_a_body_comes_from_standard_input(doctor: Doctor, file: Any) -> None:
    """- is the later request, and a conversation that went on holds."""
    done = doctor(file(chat(talk=TALK[:1])), "-", given=json.dumps(chat()))
    assert (done.returncode, done.stderr) == (0, "")
    assert "standard input after" in done.stdout
    assert "the prefix holds (new)" in done.stdout


def test_a_program_reads_the_same(doctor: Doctor, file: Any) -> None:
    """With --json one document tells reason, place, cost and advice."""
    old, new = (file(chat(f"Now: 10:15:{second}\n{RULES}", TALK[:1])) for second in (10, 42))
    told = json.loads(doctor(old, new, "--rate", "2/d", "--json").stdout)
    assert (told["kind"], told["breaks"], told["reason"], told["findings"]) == ("pair", True, "system", [])
    assert (told["where"]["message"], told["where"]["character"]) == ("messages[0]", 11)
    assert told["where"]["looks_like"] == "time"
    assert told["lost_tokens_per_day"] == 2 * told["lost_tokens"]
    one = json.loads(doctor(old, "--json").stdout)
    assert (one["kind"], one["breaks"], [found["kind"] for found in one["findings"]]) == ("request", True, ["time"])


def test_a_log_is_summed_up(doctor: Doctor, tmp_path: Path) -> None:
    """Shares, loss a day and breakers are printed, from a file or from standard input, with exit code 1."""
    lines = "".join(json.dumps(chat(f"Now: 10:15:{n}\n{RULES}", ("Where?",))) + "\n" for n in range(10, 16))
    path = tmp_path / "requests.jsonl"
    path.write_text(lines)
    done = doctor("--log", str(path), "--rate", "10/m")
    assert (done.returncode, done.stderr) == (1, "")
    for said in (
        "requests   6, ",
        "reachable  ",
        "tokens a day",
        "reordered  ",
        "system at messages[*]",
        "Move the time",
    ):
        assert said in done.stdout
    told = json.loads(doctor("--log", "-", "--json", given=lines).stdout)
    assert (told["kind"], told["requests"], told["breakers"][0]["requests"]) == ("log", 6, 5)
    assert told["lost_tokens"] == sum(breaker["lost"] for breaker in told["breakers"])
    assert told["reordered_share"] == pytest.approx(
        (told["reachable_tokens"] + told["lost_tokens"]) / told["prompt_tokens"], abs=1e-4
    )


def test_a_clean_log_is_no_error(doctor: Doctor) -> None:
    """Requests that only grow leave exit code 0."""
    done = doctor("--log", "-", given="\n".join(map(json.dumps, (chat(talk=TALK[:1]), chat()))))
    assert (done.returncode, "No prefix breaks." in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name one or two files"),
        (["no-such.json"], "no-such.json cannot be read"),
        (["-"], "standard input is not JSON"),
        (["-", "-"], "only once"),
        (["a", "b", "c"], "--log"),
        (["-", "--rate", "often"], "1000/h"),
        (["-", "--api", "gemini"], "chat, responses, anthropic"),
        (["--log", "no-such.jsonl"], "no-such.jsonl cannot be read"),
        (["-", "--log", "-"], "name one or two files"),
    ],
)
def test_unusable_input_is_one_line_and_code_2(doctor: Doctor, arguments: list[str], said: str) -> None:
    """What a person can put right is said in one line, without a traceback."""
    done = doctor(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


def test_a_model_that_is_not_there_is_said(file: Any) -> None:
    """An unknown model is named, as `serve` names it."""
    done = keepwarm("doctor", file(chat()), "--model", "no-such-model")
    assert (done.returncode, "no-such-model" in done.stderr) == (2, True)


def test_markup_in_a_request_is_text(doctor: Doctor, file: Any) -> None:
    """Brackets that a terminal library would read are printed as they are."""
    done = doctor(file(chat(f"[bold]{NOW}[/nothing]\n{RULES}")))
    assert (done.returncode, "[bold]Current time" in done.stdout) == (1, True)


def test_the_doctor_never_imports_torch(tokenizer_folder: Path, file: Any) -> None:
    """A tokenizer is all it needs: neither torch nor a server's library is loaded."""
    script = (
        "import sys\nfrom gateway.cli import app\n"
        "try: app(sys.argv[1:])\nexcept SystemExit as end: print(end.code, {'torch', 'aiohttp'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", script, "doctor", "--model", str(tokenizer_folder), file(chat())]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 set()"
