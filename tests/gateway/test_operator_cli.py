"""The operators' commands against a running gateway."""

from __future__ import annotations

import asyncio
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec import structs
from typer.testing import CliRunner

from engine.operator_messages import Changed, Entries, EntryView, Histo, Tally
from gateway.cli import app
from gateway.keys import POLICIES
from prefix_store.store import Entry, StoreUnavailable
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.scripted import MODEL
from tests.gateway.test_cli import keepwarm

COMMANDS = (
    ["policy", "list"],
    ["policy", "get", "default"],
    ["policy", "set", "default", "priority=1"],
    ["policy", "delete", "acme"],
    ["policy", "preview", "default", "priority=1"],
    ["purge", "--all"],
    ["entries"],
    ["stats"],
    ["usage"],
)
CHANGED = Changed(
    seq=1,
    gone={"acme": Tally(entries=2, tokens=6400, bytes=4096)},
    kept={"[b]odd[/b]": Tally(entries=3, tokens=48, bytes=3072)},
    leased_tokens=16,
)
ENTRY = EntryView(
    id="0123456789abcdef",
    tenant="acme",
    model=MODEL,
    tokens=4800,
    own_tokens=16,
    klass="5m",
    kept="promised",
    left_s=-0.25,
    age_s=90.0,
    idle_s=3600.0,
    reads=2,
    leases=1,
)


@pytest.fixture(autouse=True)
def quiet_gateway() -> Iterator[None]:
    """Keep the gateway's log, which in these tests shares a process with the commands, out of their output."""
    with structlog.testing.capture_logs():
        yield


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, as JSON."""
        return json.loads(self.out)


def run_at(url: str, *arguments: str, typed: str = "", key: str = "") -> Outcome:
    """Run a command against the admin port at `url`."""
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "KEEPWARM_ADMIN_KEY": key}
    done = CliRunner().invoke(app, [*arguments, "--admin-url", url], input=typed, env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return Outcome(done.exit_code, done.stdout, done.stderr)


async def run(gateway: Gateway, *arguments: str, typed: str = "", key: str = "") -> Outcome:
    """Run a command against a gateway of this event loop."""
    return await asyncio.to_thread(run_at, str(gateway.admin.make_url("")), *arguments, typed=typed, key=key)


def refused(outcome: Outcome) -> str:
    """The one line of a command that failed."""
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert outcome.err.startswith("keepwarm: ")
    return outcome.err


async def test_policy_is_made_changed_listed_and_deleted(gateway: Gateway) -> None:
    """The life of a policy at the command line: fields that are not given stay, versions are looked after."""
    made = await run(gateway, "policy", "set", "acme", "tenant=acme", "default_ttl=1h", "allowed_ttls=5m, 1h", "--json")
    assert (made.code, made.json["version"], made.json["allowed_ttls"]) == (0, 1, ["5m", "1h"])
    changed = await run(gateway, "policy", "set", "acme", "priority=80", "pool_share=0.25", "--json")
    assert changed.json == made.json | {"version": 2, "priority": 80, "pool_share": 0.25}
    listed = await run(gateway, "policy", "list", "--json")
    assert [policy["name"] for policy in listed.json["policies"]] == ["default", "acme"]
    gone = await run(gateway, "policy", "delete", "acme")
    assert (gone.code, gone.out) == (0, "deleted acme\n")
    assert [line["name"] for line in (await run(gateway, "policy", "list", "--json")).json["policies"]] == ["default"]


async def test_policy_set_takes_what_policy_get_gives(gateway: Gateway, tmp_path: Path) -> None:
    """A file or stdin holds a whole policy with its version; a stale one is refused and changes nothing."""
    got = await run(gateway, "policy", "get", "default", "--json")
    file = tmp_path / "policy.json"
    file.write_text(got.out)
    assert (await run(gateway, "policy", "set", "default", "--from", str(file))).code == 0
    assert "at version 1" in refused(await run(gateway, "policy", "set", "default", "--from", str(file)))
    newer = (await run(gateway, "policy", "get", "default", "--json")).out
    done = await run(gateway, "policy", "set", "default", "--from", "-", "max_ttl=48h", "--json", typed=newer)
    assert (done.json["version"], done.json["max_ttl"]) == (2, "48h")


async def test_null_takes_a_value_away(gateway: Gateway) -> None:
    """`null` is no text."""
    done = await run(gateway, "policy", "set", "default", "default_ttl=null", "--json")
    assert done.json["default_ttl"] is None


async def test_name_of_digits_is_a_name(gateway: Gateway) -> None:
    """A tenant called 7 stays text."""
    assert (await run(gateway, "policy", "set", "seven", "tenant=7", "--json")).json["tenant"] == "7"


async def test_delete_of_a_stated_version_is_careful(gateway: Gateway) -> None:
    """With `--version` only what the operator has seen is deleted."""
    await run(gateway, "policy", "set", "acme", "tenant=acme")
    assert "at version 1" in refused(await run(gateway, "policy", "delete", "acme", "--version", "4"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["policy", "get", "none"], "there is no policy 'none'"),
        (["policy", "delete", "none"], "there is no policy 'none'"),
        (["policy", "delete", "default"], "always exists"),
        (["policy", "set", "acme", "tenant"], "FIELD=VALUE"),
        (["policy", "set", "acme", "tenent=a"], "did you mean 'tenant'?"),
        (["policy", "set", "acme", "tenant=a", "pool_share=2"], "allowed: a share of the pool from 0 to 1"),
        (["policy", "set", "acme", "tenant=a", "pool_share=half"], "pool_share"),
        (["policy", "set", "acme", "tenant=a", "default_ttl=0s"], "default_ttl"),
        (["policy", "set", "acme", "--from", "/nowhere.json"], "/nowhere.json"),
        (["policy", "set", "acme", "--from", "-"], "-: "),
        (["policy", "preview", "none", "--delete"], "there is no policy 'none'"),
        (["purge"], "nothing says what to purge"),
        (["purge", "--class", "forever"], "forever"),
        (["purge", "--all", "--tenant", "a"], "no filter goes with it"),
        (["entries", "--limit", "5000"], "limit"),
        (["policy", "get", "\udcff"], "is not text"),
    ],
)
async def test_mistakes_are_one_line_and_code_1(gateway: Gateway, arguments: list[str], said: str) -> None:
    """What is wrong is said with the field and what is allowed, and nothing is printed as a result."""
    assert said in refused(await run(gateway, *arguments))


async def test_preview_shows_both_sides_by_tenant(gateway: Gateway) -> None:
    """The table has what expires and what stays for each tenant, sums, and what is still in use."""
    gateway.backend.changed = CHANGED
    shown = await run(gateway, "policy", "preview", "default", "default_ttl=1m")
    lines = [line.replace("│", " ").split() for line in shown.out.splitlines()]
    assert ["acme", "2", "6,400", "4,096", "0", "0", "0"] in lines
    assert ["[b]odd[/b]", "0", "0", "0", "3", "48", "3,072"] in lines
    assert ["all", "2", "6,400", "4,096", "3", "48", "3,072"] in lines
    assert "16 of these tokens are still in use" in " ".join(shown.out.split())
    assert (await run(gateway, "policy", "get", "default", "--json")).json["version"] == 0


async def test_preview_of_a_deletion(gateway: Gateway) -> None:
    """`--delete` previews the end of a policy and goes with nothing else."""
    await run(gateway, "policy", "set", "acme", "tenant=acme")
    assert (await run(gateway, "policy", "preview", "acme", "--delete", "--json")).json["tenants"] == {}
    assert (await run(gateway, "policy", "preview", "acme", "priority=1", "--delete")).code == 2
    assert (await run(gateway, "policy", "get", "acme")).code == 0


async def test_purge_sends_its_filters(gateway: Gateway, tmp_path: Path) -> None:
    """Each option is a filter; a request comes from a file."""
    gateway.backend.changed = CHANGED
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}))
    options = ["--tenant", "acme", "--class", "5m", "--older-than", "10m", "--request", str(file)]
    counted = await run(gateway, "purge", *options, "--dry-run")
    assert "would be purged" in counted.out
    assert (await run(gateway, "purge", *options, "--json")).json["tenants"]["acme"]["purged"]["tokens"] == 6400
    first, second = gateway.backend.purged
    assert (first.pop("preview"), second.pop("preview")) == (True, False)
    assert first == second
    assert (first["klass"], first["older_than_s"], len(first["prefix"]) > 0) == ("5m", 600.0, True)


async def test_purge_without_a_trail_is_said(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are shown, and stderr says that the audit trail has no line of it."""

    async def fail(_: Entry) -> None:
        raise StoreUnavailable("no room")

    monkeypatch.setattr(gateway.admin.app[POLICIES].state, "record", fail)
    done = await run(gateway, "purge", "--all", "--json")
    assert (done.code, done.json["audited"]) == (0, False)
    assert "audit trail could not be written" in done.err


async def test_entries_are_a_table(gateway: Gateway) -> None:
    """One line an entry, durations in words, and which part of how many is shown."""
    gateway.backend.page = Entries(seq=1, total=40, entries=(ENTRY,))
    shown = await run(gateway, "entries", "--offset", "7")
    lines = [line.replace("│", " ").split() for line in shown.out.splitlines()]
    assert ["0123456789ab", "acme", "tiny", "5m", "promised", "4,800", "16", "-250ms", "90s", "1h", "2", "1"] in lines
    assert "8 to 8 of 40" in shown.out
    assert (await run(gateway, "entries", "--json")).json["entries"][0]["class"] == "5m"


async def test_no_entries_is_an_empty_table(gateway: Gateway) -> None:
    """Nothing kept is no failure."""
    shown = await run(gateway, "entries")
    assert (shown.code, "none of 0" in shown.out) == (0, True)


async def test_stats_are_a_table(gateway: Gateway) -> None:
    """Numbers of the engine, policies and the state of the store, one a line; a histogram is its mean."""
    assert gateway.backend.reading is not None
    lifetime = Histo(counts=(0, 3) + (0,) * 15, sum=5.4)
    extents = (3, 1) + (0,) * 8
    gateway.backend.reading = structs.replace(
        gateway.backend.reading, lifetime=lifetime, extents=extents, extents_total=5
    )
    shown = await run(gateway, "stats")
    lines = [line.replace("│", " ").split() for line in shown.out.splitlines()]
    for line in (["steps_total", "3"], ["reuse_gap", "none"], ["policies", "1"], ["state", "ok"]):
        assert line in lines
    assert ["lifetime", "3", "blocks,", "2s", "on", "average"] in lines
    assert ["extents", "4", "sequences,", "1.2", "on", "average"] in lines
    assert (await run(gateway, "stats", "--json")).json["engine"]["blocks_free"] == 7


async def test_tables_show_policies(gateway: Gateway) -> None:
    """The list has a line a policy, the view of one a line a field."""
    listed, one = await run(gateway, "policy", "list"), await run(gateway, "policy", "get", "default")
    lines = [line.replace("│", " ").split() for line in listed.out.splitlines()]
    assert ["default", "any", "any", "5m", "24h", "sliding", "16", "0.5", "1.0", "50", "0"] in lines
    assert "5m, 30m, 1h, 12h, 24h" in one.out


async def test_engine_that_is_away_is_said(gateway: Gateway) -> None:
    """What the gateway cannot answer is its sentence and code 1."""
    gateway.backend.card = None
    assert "The engine is starting." in refused(await run(gateway, "entries"))


async def test_key_comes_from_the_environment(start_gateway: StartGateway) -> None:
    """The right key opens; none or a wrong one is told which variable to set; one no header may hold is refused."""
    gateway = await start_gateway(admin_key="k")
    assert (await run(gateway, "policy", "list", key="k")).code == 0
    for wrong in ("", "other"):
        assert "KEEPWARM_ADMIN_KEY" in refused(await run(gateway, "policy", "list", key=wrong))
    assert "KEEPWARM_ADMIN_KEY cannot be sent" in refused(await run(gateway, "policy", "list", key="k\nx: y"))


@pytest.fixture
def stranger() -> Iterator[str]:
    """Address of a server that is no gateway."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_server_that_is_no_gateway_is_said(stranger: str) -> None:
    """An address where something else answers is named."""
    assert f"{stranger} answers, but not as Keepwarm" in refused(run_at(stranger, "policy", "list"))


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_at_the_address_is_said(command: list[str]) -> None:
    """Every command without a gateway is one line that names address and flag."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    said = refused(run_at(url, *command))
    assert f"no answer from {url}" in said
    assert "--admin-url" in said


@pytest.mark.parametrize("url", ["localhost:8001", "ftp://x", "http://", "http://x:port", "http://[x"])
def test_address_that_is_none_is_said(url: str) -> None:
    """An address that is not http or https is refused before anything is sent."""
    assert "is no address" in refused(run_at(url, "stats"))


def test_commands_are_there_as_installed() -> None:
    """The real command line lists the operators' commands and fails in one line without a gateway."""
    shown = keepwarm("--help").stdout
    assert [word for word in ("policy", "purge", "entries", "stats", "serve") if word not in shown] == []
    done = keepwarm("stats", "--admin-url", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
