"""Advice of a running gateway: the endpoint, the command, and a trace at the command line."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from benchmarks.traces import VARIABLE
from gateway.cli import app
from tests.gateway.conftest import Gateway, StartGateway

FIELDS = {"sample", "advice", "curve", "capacity_curve", "alerts", "note", "ignored"}
ADVICE = {
    "kind",
    "tenant",
    "model",
    "now",
    "advised",
    "read_now",
    "read_then",
    "read_tokens_delta",
    "error",
    "gb_hours_delta",
    "net",
    "sentence",
}


@pytest.fixture(autouse=True)
def quiet_gateway():
    """Keep the gateway's log out of the commands' output."""
    with structlog.testing.capture_logs():
        yield


async def told(gateway: Gateway, query: str = "") -> tuple[int, Any]:
    """Status and JSON of the endpoint."""
    answer = await gateway.admin.get(f"/admin/v1/advice{query}")
    return answer.status, await answer.json()


def keepwarm(*arguments: str) -> Any:
    """Run a command."""
    return CliRunner().invoke(app, ["advise", *arguments], env={"NO_COLOR": "1", "KEEPWARM_ADMIN_KEY": ""})


def trace(folder: Path, requests: int = 200) -> Path:
    """A trace of one prompt that comes every ten minutes."""
    row = {"input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps({"timestamp": at * 600_000} | row) + "\n" for at in range(requests)))
    return file


async def test_without_traffic_there_is_no_sample(gateway: Gateway) -> None:
    """Nothing seen is null and empty lists, never zero per cent."""
    status, body = await told(gateway)
    assert (status, set(body)) == (200, FIELDS)
    assert (body["sample"], body["advice"], body["curve"], body["alerts"]) == (None, [], [], [])


async def test_traffic_is_counted_as_the_answers_say(gateway: Gateway) -> None:
    """Requests and tokens of the sample are those of the usage told to clients; few requests give a note."""
    prompts = 0
    for number in range(3):
        answer = await (await gateway.chat(messages=[{"role": "user", "content": f"hello {number}"}])).json()
        prompts += answer["usage"]["prompt_tokens"]
    _, body = await told(gateway)
    assert (body["sample"]["requests"], body["sample"]["tokens"], body["sample"]["rate"]) == (3, prompts, 1.0)
    assert body["note"] == "not enough traffic: 3 requests, and advice takes 100"
    assert (await told(gateway, "?tenant=nobody"))[1]["sample"] is None


async def test_filters_are_checked(gateway: Gateway) -> None:
    """A field that is not known is refused by name; the page's other filters are taken and named as ignored."""
    status, body = await told(gateway, "?tennant=acme")
    assert (status, body["error"]["field"]) == (400, "tennant")
    assert "did you mean 'tenant'?" in body["error"]["message"]
    status, body = await told(gateway, "?from=-1h&to=now&key=k&tenant=acme")
    assert (status, body["ignored"]) == (200, ["from", "to", "key"])


async def test_the_admin_key_guards_it(start_gateway: StartGateway) -> None:
    """Without the key there is no advice."""
    gateway = await start_gateway(admin_key="k")
    assert (await gateway.admin.get("/admin/v1/advice")).status == 401


async def test_the_traffic_log_is_what_the_command_reads(start_gateway: StartGateway, tmp_path: Path) -> None:
    """What a gateway logged is read by `advise --trace` with the same counts."""
    file = tmp_path / "traffic.jsonl"
    gateway = await start_gateway(traffic_log=file)
    for _ in range(2):
        await (await gateway.chat(messages=[{"role": "user", "content": "hello there " * 20}])).json()
    _, body = await told(gateway)
    await gateway.house.traffic.flush()
    done = await asyncio.to_thread(keepwarm, "--trace", str(file), "--json")
    read = json.loads(done.stdout)["sample"]
    assert [read[count] for count in ("requests", "tokens")] == [
        body["sample"][count] for count in ("requests", "tokens")
    ]
    assert "hello" not in file.read_text()


async def test_the_command_asks_the_gateway(gateway: Gateway) -> None:
    """With --json the API's answer, without it a few lines; no gateway is one line and exit code 1."""
    url = str(gateway.admin.make_url(""))
    asked = await asyncio.to_thread(keepwarm, "--admin-url", url, "--json")
    assert (asked.exit_code, json.loads(asked.stdout)) == (0, (await told(gateway))[1])
    shown = await asyncio.to_thread(keepwarm, "--admin-url", url)
    assert "No traffic was seen yet." in shown.stdout
    away = await asyncio.to_thread(keepwarm, "--admin-url", "http://127.0.0.1:1")
    assert (away.exit_code, away.stderr.count("\n")) == (1, 1)


def test_a_trace_is_advised_on_and_checked(tmp_path: Path) -> None:
    """The advice has every field, and the whole replay under it reads exactly what an unsampled pass predicts."""
    done = keepwarm("--trace", str(trace(tmp_path)), "--check", "--kv-bytes-per-token", "1000", "--json")
    body = json.loads(done.stdout)
    (advice,) = body["advice"]
    assert set(advice) == ADVICE
    assert (advice["now"], advice["advised"], advice["read_tokens_delta"]) == ("5m", "15m", 199 * 1024)
    assert body["checked"] == [
        {"kind": "ttl", "advised": "15m", "predicted": 199 * 1024, "error": 0, "replayed": 199 * 1024}
    ]


def test_the_picture_has_curve_and_band(tmp_path: Path) -> None:
    """The terminal gets a bar a TTL, and the file is SVG with as many points as the curve."""
    picture = tmp_path / "curve.svg"
    done = keepwarm("--trace", str(trace(tmp_path)), "--picture", str(picture))
    assert "15m" in done.stdout
    assert "█" in done.stdout
    drawn = picture.read_text()
    curve = json.loads(keepwarm("--trace", str(tmp_path / "trace.jsonl"), "--json").stdout)["curve"]
    assert drawn.count("<circle") == len(curve) > 10
    assert drawn.count("<polygon") == drawn.count("<polyline") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["--trace", "TRACE", "--ttl", "soon"], "--ttl: "),
        (["--trace", "TRACE", "--picture", "/nowhere/x.svg"], "--picture /nowhere/x.svg: No such file"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line(tmp_path: Path, arguments: list[str], problem: str) -> None:
    """Exit code 2 and one line on stderr that names it."""
    given = [str(trace(tmp_path)) if one == "TRACE" else one for one in arguments]
    done = keepwarm(*given)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("keepwarm: ")
    assert problem in done.stderr


def test_a_broken_line_is_named_with_its_number(tmp_path: Path) -> None:
    """The command says where the trace is wrong."""
    file = trace(tmp_path, 3)
    file.write_text(file.read_text() + "{broken\n")
    done = keepwarm("--trace", str(file))
    assert (done.exit_code, "trace.jsonl, line 4: " in done.stderr) == (2, True)


def test_the_public_trace_is_advised_as_the_table_says() -> None:
    """On the conversation trace 5m → 15m is 29.31 % → 36.22 %, and the replay under it agrees."""
    if VARIABLE not in os.environ:
        pytest.skip(f"the public traces are not here: set {VARIABLE} to their folder")
    file = Path(os.environ[VARIABLE]) / "mooncake_conversation_trace.jsonl.gz"
    body = json.loads(keepwarm("--trace", str(file), "--check", "--json").stdout)
    (advice,) = body["advice"]
    assert (advice["now"], advice["advised"]) == ("5m", "15m")
    assert (f"{advice['read_now']:.2%}", f"{advice['read_then']:.2%}") == ("29.31%", "36.22%")
    (checked,) = body["checked"]
    assert checked["replayed"] == 52_444_139 - 42_445_349
    assert abs(checked["predicted"] - checked["replayed"]) <= checked["error"]
