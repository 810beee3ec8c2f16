"""The demo's hour in six seconds against a real server on the tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from gateway.demo.scenario import TENANTS, plan
from tests.e2e.conftest import Server, StartServer
from tests.tiny_model import save_tiny_model

SEED = 7


def play(server: Server, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    addresses = ("--url", server.url, "--admin-url", server.admin_url)
    command = [sys.executable, "-m", "gateway.cli", "demo", "--traffic", *addresses, *flags]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "160"}, check=False)


def look(server: Server, what: str) -> Any:
    """Ask the admin API."""
    with urlopen(f"{server.admin_url}/admin/v1/{what}", timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose window holds the demo's prompts, of which every byte is a token."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "roomy", window=16384)


@pytest.fixture(scope="module")
def played(start_server: StartServer, roomy: Path) -> tuple[Server, dict[str, Any]]:
    """A server after the hour, and what the demo told of it."""
    server = start_server("--kv-bytes", "64MiB", "--open-tenants", ",".join(TENANTS), model=roomy)
    done = play(server, "--minutes", "0.1", "--seed", str(SEED), "--json")
    assert done.returncode == 0, done.stderr
    return server, json.loads(done.stdout)


def test_every_request_of_the_plan_was_sent(played: tuple[Server, dict[str, Any]]) -> None:
    """Each tenant has as many requests as the plan of that density, but for those that came too late."""
    _, told = played
    sends = plan(SEED, told["density"]).sends
    requests = {one["tenant"]: one["requests"] for one in told["tenants"]}

    assert sum(requests.values()) + told["left_out"] == len(sends) == told["planned"]
    assert told["scale"] == 600.0
    assert told["deploys_marked"] is True
    refused = next(one["outcomes"].get("refused", 0) for one in told["tenants"] if one["tenant"] == "coding")
    assert refused + told["left_out"] >= sum(send.ending == "refused" for send in sends)
    assert told["errors"] == ({"404 The model 'smollm2-turbo' does not exist here.": 1} if refused else {})


def test_the_gateway_counted_the_same(played: tuple[Server, dict[str, Any]]) -> None:
    """Requests, prompt and read tokens in the gateway's sums are those that the answers told, tenant by tenant."""
    server, told = played
    kept = look(server, "stats")["tenants"]

    for one in told["tenants"]:
        outcomes = one["outcomes"]
        counted = kept[one["tenant"]]
        assert counted["requests"] == outcomes["finished"] + outcomes.get("cancelled", 0)
        if "cancelled" not in outcomes:
            assert counted["prompt_tokens"] == one["prompt_tokens"]
            assert counted["read_tokens"] == one["read_tokens"]
    assert kept["default"] == {}


def test_the_bad_deploy_shows_as_a_change_of_the_system_prompt(played: tuple[Server, dict[str, Any]]) -> None:
    """The coding agent missed tokens for the reason `system`, and the reports for `expired`."""
    _, told = played
    missed = {one["tenant"]: one["missed_tokens"] for one in told["tenants"]}

    assert missed["coding"]["system"] > 1000
    assert missed["reports"]["expired"] > 1000


def test_the_policies_were_set_raised_and_removed(played: tuple[Server, dict[str, Any]]) -> None:
    """The audit trail has three policies put, one raised, and all three deleted; only `default` is left."""
    server, told = played
    lines = [(line["what"], line["subject"]) for line in look(server, "audit")["lines"]]

    assert sorted(line for line in lines if line[0].startswith("policy.")) == [
        ("policy.delete", "demo-coding"),
        ("policy.delete", "demo-reports"),
        ("policy.delete", "demo-support"),
        ("policy.put", "demo-coding"),
        ("policy.put", "demo-reports"),
        ("policy.put", "demo-reports"),
        ("policy.put", "demo-support"),
    ]
    assert [policy["name"] for policy in look(server, "policies")["policies"]] == ["default"]
    assert told["removed"] == ["demo-coding", "demo-reports", "demo-support"]


def test_policies_may_stay(start_server: StartServer, roomy: Path) -> None:
    """With `--keep` the policies are still in force afterwards, and a person is told so."""
    server = start_server("--kv-bytes", "64MiB", "--open-tenants", ",".join(TENANTS), model=roomy)
    done = play(server, "--minutes", "0.05", "--keep")

    assert done.returncode == 0, done.stderr
    assert "The demo's policies stay" in done.stdout
    names = [policy["name"] for policy in look(server, "policies")["policies"]]
    assert names == ["default", "demo-coding", "demo-reports", "demo-support"]


def test_a_gateway_without_the_tenants_is_refused(server: Server) -> None:
    """Against a gateway that knows none of the tenants the demo ends in one line that says how to start it."""
    done = play(server)

    assert (done.returncode, done.stdout) == (1, "")
    assert "start it with `make run`, or with `keepwarm serve --open-tenants support,coding,reports`" in done.stderr


def test_no_gateway_is_one_line() -> None:
    """Without a gateway the demo says that nobody answers."""
    nobody = Server("http://127.0.0.1:9", "http://127.0.0.1:9", "", None)  # type: ignore[arg-type]
    done = play(nobody)

    assert (done.returncode, done.stderr.strip()) == (1, "keepwarm demo: no server answers at http://127.0.0.1:9")


@pytest.mark.parametrize("minutes", ["0", "61", "nan", "soon"])
def test_minutes_have_a_range(minutes: str) -> None:
    """A length of the hour that is none is refused before anything is sent."""
    done = play(Server("", "", "", None), "--minutes", minutes)  # type: ignore[arg-type]

    assert done.returncode == 2
    assert "--minutes" in done.stderr
