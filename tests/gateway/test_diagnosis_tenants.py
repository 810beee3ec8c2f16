"""Whom a prompt is compared with, and what is left of it: no tenant learns of another, and nothing holds text."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.keyring import Key, Keyring
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.diagnosed import SECRET, answer_of, misses, talk, words
from tests.gateway.wire import CHAT, COMPLETIONS, MESSAGES, RESPONSES, body

RED, BLUE = "kw-red-secret", "kw-blue-secret"
TENANTS = {RED: "team-vermilion", BLUE: "team-cobalt"}
PROMPT = "The heron nests behind the third sluice. Where does it fish?"
ANSWER = "zwölf Reiher"
TOLD = ("heron", "sluice", "fish", ANSWER, "Reiher", RED, BLUE, *TENANTS.values(), "a cache key")


def ring() -> Keyring:
    """Two keys, two tenants."""
    keys = (("red", RED), ("blue", BLUE))
    digests = {text: hashlib.sha256(text.encode()).hexdigest() for _, text in keys}
    return Keyring(tuple(Key(id=name, sha256=digests[text], tenant=TENANTS[text]) for name, text in keys))


@pytest.fixture
async def shared(start_gateway: StartGateway, tmp_path: Path) -> Gateway:
    """A gateway of two tenants whose state is a file."""
    state = await SqliteStore.open(tmp_path / "state.db")
    gateway = await start_gateway(state=state, keyring=ring(), secret=SECRET)
    gateway.script([ANSWER])
    return gateway


async def ask(gateway: Gateway, key: str, path: str, **fields: Any) -> Any:
    """Ask with one tenant's key."""
    return await answer_of(gateway, path, body(path, PROMPT, **fields), key=key)


async def test_another_tenants_request_is_never_compared_with(shared: Gateway) -> None:
    """The identical prompt under the identical cache key is a first request, whatever the neighbour asked."""
    for key in (RED, BLUE):
        told = misses(await ask(shared, key, CHAT, messages=talk(PROMPT), prompt_cache_key="same"))
        assert words(told) == [("never_written", "never_written")]
    changed = misses(await ask(shared, BLUE, CHAT, messages=talk("Where?"), prompt_cache_key="same"))
    assert words(changed)[1:] == [("messages", "never_written"), ("new", "never_written")]


async def test_another_tenants_answer_cannot_be_named(shared: Gateway) -> None:
    """To whom an id does not belong, it is one that nobody ever gave."""
    message, response = await ask(shared, RED, MESSAGES), await ask(shared, RED, RESPONSES)
    for key, found in ((BLUE, False), (RED, True)):
        compared = {"comparison_response_id": response["id"]}
        told = (await ask(shared, key, RESPONSES, prompt_cache_options=compared))["prompt_cache_diagnostics"]
        assert (told["type"] == "comparison_response_not_found") is not found
        compared = {"previous_message_id": message["id"]}
        reason = (await ask(shared, key, MESSAGES, diagnostics=compared))["diagnostics"]
        assert (reason is None) is found
        assert found or reason == {"cache_miss_reason": {"type": "previous_message_not_found"}}


async def test_neither_logs_nor_what_is_kept_hold_text_keys_or_tenants(shared: Gateway, tmp_path: Path) -> None:
    """What was asked and answered, by whom and under which cache key is in no record, name or value."""
    with capture_logs() as logs:
        for key in (RED, BLUE):
            for path in (CHAT, RESPONSES, MESSAGES, COMPLETIONS):
                fields = {} if path == MESSAGES else {"prompt_cache_key": "a cache key"}
                await ask(shared, key, path, **fields)
        await shared.serving.close()
    with sqlite3.connect(tmp_path / "state.db") as database:
        rows = database.execute("SELECT space, key, value FROM kept").fetchall()
    database.close()
    assert len([key for _, key, _ in rows if key.startswith("id:")]) == 8
    assert [line["status"] for line in logs if line["event"] == "request"] == [200] * 8
    secrets = [word.encode() for word in TOLD]
    stored = b"\0".join(space.encode() + b"\0" + key.encode() + b"\0" + value for space, key, value in rows)
    assert [word for word in secrets if word in stored] == []
    unsaid = [word for word in TOLD if word not in TENANTS.values()]  # an operator's log says whose request it was
    assert [word for word in unsaid if word in repr(logs)] == []


async def test_equal_prompts_of_two_tenants_are_kept_under_nothing_equal(shared: Gateway, tmp_path: Path) -> None:
    """Spaces, names and values of one tenant are another's nowhere, so keeping them tells nothing of equality."""
    for key in (RED, BLUE):
        await ask(shared, key, CHAT, prompt_cache_key="same")
    await shared.serving.close()
    with sqlite3.connect(tmp_path / "state.db") as database:
        rows = database.execute("SELECT space, key, value FROM kept").fetchall()
    database.close()
    one, other = sorted({space for space, _, _ in rows})
    for column in (1, 2):
        mine, theirs = ({row[column] for row in rows if row[0] == space} for space in (one, other))
        assert (len(mine) > 1, mine & theirs) == (True, set())


async def test_answers_name_no_other_tenant(shared: Gateway) -> None:
    """An answer to one tenant holds no id, key or name of the other's."""
    first = await ask(shared, RED, CHAT, prompt_cache_key="same")
    second = await ask(shared, BLUE, CHAT, prompt_cache_key="same")
    foreign = (first["id"], RED, "red", *TENANTS.values())
    assert [word for word in foreign if word in repr(second)] == []
