"""A real server watched from the operators' side: requests, live events, marks, and its door."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import Server, StartServer, until
from tests.e2e.test_openai_sdk import child_of
from tests.e2e.test_retention import ask, call


class Stream:
    """An open stream of events."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(server.admin_url).netloc, timeout=30)
        self._connection.request("GET", "/admin/v1/live")
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def upto(self, kind: str) -> Any:
        """The data of the next event of a kind."""
        while line := self._answer.readline().decode():
            if line == f"event: {kind}\n":
                return json.loads(self._answer.readline().decode().removeprefix("data: "))
        raise AssertionError("the stream ended")

    def rest(self) -> bytes:
        """What comes until the server ends the stream."""
        return self._answer.read()

    def close(self) -> None:
        """Hang up."""
        self._answer.close()
        self._connection.close()


def admin(server: Server, path: str, body: Any = None) -> Any:
    """Call the operators' API."""
    return call(f"{server.admin_url}/admin/v1/{path}", body)


def test_requests_are_shown_as_they_were_answered(start_server: StartServer) -> None:
    """Strips, reads and projections of two requests equal what the client was told, live and afterwards."""
    server = start_server("--kv-bytes", "8MiB")
    stream = Stream(server)
    stream.upto("state")
    told = [ask(server), ask(server)]
    live = [stream.upto("request"), stream.upto("request")]
    stream.close()
    shown = admin(server, "requests")["requests"]
    assert shown == live[::-1]
    assert [admin(server, f"requests/{one['id']}") for one in shown] == shown
    for one, (read, extension) in zip(live, told, strict=True):
        assert one["read"] == read
        assert sum(part["tokens"] for part in one["strip"]) == one["prompt"]
        assert one["read"] + sum(one["write"].values()) + one["uncached"] == one["prompt"]
        assert one["projections"] == extension["projections"]
        assert [miss["tokens"] for miss in one["misses"]] == [miss["tokens"] for miss in extension["miss"]]
        assert one["queue_s"] + one["prefill_s"] <= one["first_token_s"] <= one["seconds"]
    assert [one["strip"][0]["kind"] == "read" for one in live] == [False, True]
    about = admin(server, "about")
    assert (about["models"], about["upstreams"], about["tenants"]) == ([server.model], ["bundled"], ["default"])


def test_an_engine_that_dies_is_told_and_marks_outlive_the_gateway(start_server: StartServer, tmp_path: Path) -> None:
    """A killed engine is a restart live and among the events; after a restart of the gateway the marks still stand."""
    first = start_server("--kv-bytes", "8MiB", home=tmp_path)
    stream = Stream(first)
    assert stream.upto("state")["ready"]
    command = [sys.executable, "-m", "gateway.cli", "mark", "deployed 1.4", "--json", "--admin-url", first.admin_url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["title"]) == (0, "deployed 1.4")
    assert stream.upto("change")["kind"] == "deploy"
    os.kill(child_of(first.process.pid), signal.SIGKILL)
    assert stream.upto("change")["kind"] == "restart"
    until(lambda: stream.upto("state")["ready"], 60)
    assert [one["kind"] for one in admin(first, "events")["events"]] == ["start", "deploy", "restart"]
    first.process.terminate()
    first.process.wait(timeout=20)
    stream.close()
    second = start_server("--kv-bytes", "8MiB", home=tmp_path)
    assert [(one["kind"], one["title"]) for one in admin(second, "events")["events"]] == [
        ("deploy", "deployed 1.4"),
        ("start", "The gateway started"),
    ]


def test_an_open_stream_does_not_hold_up_the_end(start_server: StartServer) -> None:
    """Told to stop, the server ends the stream whole and leaves with code 0."""
    server = start_server("--kv-bytes", "8MiB")
    stream = Stream(server)
    stream.upto("state")
    server.process.terminate()
    assert stream.rest().endswith(b"\n")
    assert server.process.wait(timeout=20) == 0
    stream.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example:8001"}, 403),
    ],
)
def test_the_door_of_a_real_server(server: Server, headers: dict[str, str], status: int) -> None:
    """A page of another origin, or one whose name leads here, writes nothing; a program does."""
    place = urlsplit(server.admin_url).netloc
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.request("POST", "/admin/v1/events", body=b'{"title": "x"}', headers={"Host": place} | headers)
    with connection.getresponse() as answer:
        assert answer.status == status
    connection.close()
