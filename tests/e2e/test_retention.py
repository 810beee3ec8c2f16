"""A real server on the tiny model keeps its promise in real seconds, and its policies over restarts and gateways."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.answers import check_extension, check_openai
from tests.e2e.conftest import Server, StartServer, until
from tests.state.servers import SECRET, RedisServer

LONG = "Keep the lamp burning through the night, and write each passing ship into the book. " * 4


def call(url: str, body: Any = None, *, method: str | None = None, key: str = "none") -> Any:
    """Send JSON and read JSON."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def ask(server: Server, text: str = LONG, *, key: str = "none", **fields: Any) -> tuple[int, Any]:
    """Ask once; return the tokens read and the extension."""
    body = {"model": server.model, "max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": text}]}
    answer = call(f"{server.url}/v1/chat/completions", body | fields, key=key)
    check_extension(answer["keepwarm"], *check_openai(answer["usage"]))
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["keepwarm"]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A real server on a private socket."""
    with tempfile.TemporaryDirectory(prefix="kw") as folder:
        server = RedisServer(Path(folder))
        yield server
        server.kill()


def test_a_class_of_five_seconds_in_real_time(start_server: StartServer):
    """A hit at three seconds, a hit at seven because it was renewed, and at thirteen a miss that says since when."""
    server = start_server("--ttl", "5s", "--kv-bytes", "8MiB")
    began = time.monotonic()
    reads: list[bool] = []
    told: dict[str, Any] = {}
    for at in (0, 3, 7, 13):
        time.sleep(max(0.0, began + at - time.monotonic()))
        read, told = ask(server)
        reads.append(read > 0)
    assert reads == [False, True, True, False]
    expired = told["miss"][0]
    assert expired["reason"] == "expired"
    since = datetime.now(UTC) - datetime.fromisoformat(expired["at"])
    assert 0 < since.total_seconds() < 4


def test_a_policy_survives_a_restart_and_a_preview_changes_nothing(start_server: StartServer, tmp_path: Path):
    """Set by the command line, it is obeyed at once and by the next server on the same state."""
    server = start_server("--kv-bytes", "8MiB", home=tmp_path)
    ask(server)
    preview = keepwarm(server, "policy", "preview", "default", "default_ttl=1ms")
    assert preview["tenants"]["default"]["expire"]["tokens"] > 0
    assert ask(server)[0] > 0
    assert keepwarm(server, "policy", "set", "default", "default_ttl=10m")["version"] == 1
    server.process.terminate()
    server.process.wait(timeout=20)
    again = start_server("--kv-bytes", "8MiB", home=tmp_path)
    assert keepwarm(again, "policy", "get", "default")["default_ttl"] == "10m"
    stale = keepwarm(again, "policy", "get", "default") | {"version": 7}
    with pytest.raises(urllib.error.HTTPError, match="409"):
        call(f"{again.admin_url}/admin/v1/policies/default", stale, method="PUT")


def test_a_mark_is_promised_and_a_purge_forgets_it(start_server: StartServer):
    """What the answer promises is an entry until it is purged, and then the miss says so."""
    server = start_server("--kv-bytes", "8MiB")
    part = {"type": "text", "text": LONG, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "Go."}]}]
    _, told = ask(server, messages=messages)
    (mark,) = told["retention"]
    assert (mark["applied"], mark["kept"], mark["reason"]) == ("1h", "promised", None)
    entries = call(f"{server.admin_url}/admin/v1/entries")["entries"]
    assert {(entry["class"], entry["kept"]) for entry in entries} >= {("1h", "promised")}
    assert keepwarm(server, "purge", "--class", "1h")["tenants"]["default"]["purged"]["tokens"] >= mark["tokens"]
    read, told = ask(server, messages=messages)
    assert (read, told["miss"][0]["reason"]) == (0, "purged")


def test_tenants_come_from_keys_alone(start_server: StartServer, tmp_path: Path):
    """Two keys are two tenants that never share; no key is a 401."""
    digests = {"a": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}
    digests["b"] = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"
    file = tmp_path / "keepwarm.toml"
    file.write_text("".join(f'[[keys]]\nid = "{k}"\nsha256 = "{d}"\ntenant = "{k}"\n' for k, d in digests.items()))
    server = start_server("--kv-bytes", "8MiB", "--config", str(file))
    assert [ask(server, key=key)[0] > 0 for key in ("a", "b", "a", "b")] == [False, False, True, True]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(server, key="c")


def test_two_gateways_on_one_redis_share_policies(start_server: StartServer, redis: RedisServer):
    """A policy set on one is listed on the other within a second or so, and outlives the Redis that held it."""
    url = f"unix://{redis.socket}?timeout=2s"
    one, other = (start_server("--kv-bytes", "8MiB", "--redis", url, KEEPWARM_SECRET=SECRET) for _ in range(2))
    keepwarm(one, "policy", "set", "acme", "tenant=acme", "default_ttl=30m")
    until(lambda: "acme" in {policy["name"] for policy in keepwarm(other, "policy", "list")["policies"]})
    ask(one)
    ask(other)
    until(lambda: keepwarm(one, "stats")["tenants"]["default"].get("requests", 0) == 2)
    redis.pause()
    until(lambda: call(f"{one.url}/ready")["state"] != "ok")
    assert ask(one)[1]["computed_tokens"] > 0
    redis.resume()
    redis.kill()
    redis.start()
    until(lambda: call(f"{one.url}/ready")["state"] == "ok")
    until(lambda: "acme" in {policy["name"] for policy in keepwarm(one, "policy", "list")["policies"]})


def keepwarm(server: Server, *words: str) -> Any:
    """Run an operator's command and read its JSON."""
    command = [sys.executable, "-m", "gateway.cli", *words, "--json", "--admin-url", server.admin_url]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
