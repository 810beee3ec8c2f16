"""What became of the blocks, told by a live engine: the same text a second time, gone for each reason there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.conftest import Server, StartServer, until
from tests.e2e.test_retention import LONG, ask, call, keepwarm

SECOND = timedelta(seconds=1)  # the engine tells how long ago, the gateway since when
BLOCK = 16  # tokens
POOL = 512  # tokens that the small server has room for
BYTES_PER_TOKEN = 256  # keys and values of two layers, two heads of 8 numbers each, 4 bytes a number


def talk(place: str, text: str = LONG) -> list[dict[str, Any]]:
    """A conversation that no other test has."""
    return [{"role": "system", "content": f"{place}: {text}"}, {"role": "user", "content": "Go."}]


@pytest.fixture(scope="module")
def short(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server that keeps what is not marked for 300 ms."""
    file = tmp_path_factory.mktemp("short") / "keepwarm.toml"
    file.write_text('[[policies]]\nname = "default"\ndefault_ttl = "300ms"\n')
    return start_server("--kv-bytes", "8MiB", "--config", str(file))


@pytest.fixture(scope="module")
def small(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with room for little more than one prompt, all of which may be promised."""
    file = tmp_path_factory.mktemp("small") / "keepwarm.toml"
    file.write_text('[[policies]]\nname = "default"\npromise_budget = 1.0\n')
    return start_server("--kv-bytes", str(POOL * BYTES_PER_TOKEN), "--max-model-len", str(POOL), "--config", str(file))


@pytest.fixture(scope="module")
def ample(start_server: StartServer) -> Server:
    """A server with room for all that is asked here."""
    return start_server("--kv-bytes", "8MiB")


def entries(server: Server) -> list[Any]:
    """What the engine keeps."""
    told: list[Any] = call(f"{server.admin_url}/admin/v1/entries")["entries"]
    return told


def words(extension: Any) -> list[tuple[str, str]]:
    """Reason and fate of each report; `ask` has checked that their tokens are what was not read."""
    return [(miss["reason"], miss["fate"]) for miss in extension["miss"]]


def lost(extension: Any) -> list[tuple[str, str]]:
    """The same but for the last tokens where they do not fill a block, so that they never were written."""
    *_, last = extension["miss"]
    told = words(extension)
    return told[:-1] if last["fate"] == "never_written" and last["tokens"] < BLOCK else told


def test_expired(short: Server) -> None:
    """Once its time is over the text has expired, since a moment after the first answer and before the second."""
    began = datetime.now(UTC)
    ask(short, messages=talk("expired"))
    until(lambda: entries(short) == [])
    read, told = ask(short, messages=talk("expired"))
    assert (read, lost(told)) == (0, [("expired", "expired")])
    at = datetime.fromisoformat(told["miss"][0]["at"])
    assert began + timedelta(milliseconds=300) <= at <= datetime.now(UTC)


def test_expired_and_changed(short: Server) -> None:
    """Whole blocks before the change expired; the change, and the block that it falls into, never were written."""
    ask(short, messages=talk("changed"))
    until(lambda: entries(short) == [])
    read, told = ask(short, messages=talk("changed", LONG.replace("passing", "foreign")))
    assert (read, words(told)) == (
        0,
        [
            ("expired", "expired"),
            ("never_written", "never_written"),
            ("system", "never_written"),
            ("new", "never_written"),
        ],
    )
    assert told["miss"][1]["tokens"] < BLOCK


def test_purged(ample: Server) -> None:
    """What an operator purged is told so, since the purge."""
    ask(ample, messages=talk("purged"))
    began = datetime.now(UTC)
    assert keepwarm(ample, "purge", "--all")["tenants"]["default"]["purged"]["tokens"] > len(LONG) // 2
    read, told = ask(ample, messages=talk("purged"))
    assert (read, lost(told)) == (0, [("purged", "purged")])
    assert began - SECOND <= datetime.fromisoformat(told["miss"][0]["at"]) <= datetime.now(UTC)


def test_no_cache(ample: Server) -> None:
    """Explicit mode without a mark reads nothing of what is there, and all of the prompt says why."""
    ask(ample, messages=talk("no cache"))
    explicit: Any = {"prompt_cache_options": {"mode": "explicit"}}
    assert ask(ample, messages=talk("no cache"))[0] > 0
    read, told = ask(ample, messages=talk("no cache"), **explicit)
    assert (read, words(told)) == (0, [("no_cache", "no_cache")])
    _, told = ask(ample, messages=talk("no cache", LONG.replace("passing", "foreign")), **explicit)
    assert words(told) == [("no_cache", "no_cache"), ("system", "no_cache"), ("new", "no_cache")]


def test_policy_changed(ample: Server) -> None:
    """What a shorter policy ended is told so."""
    ask(ample, messages=talk("policy"))
    keepwarm(ample, "policy", "set", "default", "default_ttl=1ms")
    until(lambda: entries(ample) == [])
    keepwarm(ample, "policy", "set", "default", "default_ttl=5m")
    read, told = ask(ample, messages=talk("policy"))
    assert (read, lost(told)) == (0, [("policy_changed", "policy_changed")])


def test_below_minimum(ample: Server) -> None:
    """A prompt shorter than the policy's least is not kept, and its second time tells why nothing was read."""
    keepwarm(ample, "policy", "set", "default", "min_tokens=2000")
    ask(ample, messages=talk("short"))
    read, told = ask(ample, messages=talk("short"))
    keepwarm(ample, "policy", "set", "default", "min_tokens=16")
    assert (read, words(told)) == (0, [("below_minimum", "below_minimum")])


def test_evicted(small: Server) -> None:
    """What had to make room for another prompt was evicted."""
    ask(small, messages=talk("evicted"))
    ask(small, messages=talk("pressure"))
    read, told = ask(small, messages=talk("evicted"))
    assert 0 < read < len(LONG)
    assert lost(told) == [("evicted", "evicted")]


def test_broken_promise(small: Server) -> None:
    """A promise that had to give way to a running request is told as broken; what was not marked was evicted."""
    part = {"type": "text", "text": "promised: " + LONG, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "Go."}]}]
    _, told = ask(small, messages=messages)
    assert [mark["kept"] for mark in told["retention"]] == ["promised"]
    ask(small, messages=talk("more pressure"))
    _, told = ask(small, messages=messages)
    assert lost(told) == [("broken_promise", "broken_promise"), ("evicted", "evicted")]
