"""What only a file can suffer: damage, strangers, other processes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from prefix_store.policy import Policy
from prefix_store.sqlite_database import SWEPT, Database
from prefix_store.sqlite_store import SqliteStore
from prefix_store.store import StateRefused, StoreUnavailable
from tests.state.servers import HandClock

BY = {"by": "ops", "at": 1.0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the state file is to be."""
    return tmp_path / "state.db"


async def filled(path: Path) -> None:
    """Make a whole state file with 40 policies."""
    async with contextlib.aclosing(closing(await SqliteStore.open(path))) as stores:
        store = await anext(stores)
        for number in range(40):
            await store.put(Policy(name=f"p{number}", model=f"m{number}"), **BY)


async def closing(store):
    """Yield the store and close it."""
    try:
        yield store
    finally:
        await store.close()


def damage(path: Path, change) -> str:
    """Change the file's bytes and return their digest."""
    content = bytearray(path.read_bytes())
    changed = change(content)
    path.write_bytes(content if changed is None else changed)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def set_bytes(start: int, new: bytes):
    """Return a change that overwrites some bytes."""

    def change(content: bytearray) -> None:
        content[start : start + len(new)] = new

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda _: b"", "is not a SQLite database, or is cut short"),
        (lambda _: b"dear diary " * 1000, "is not a SQLite database"),
        (lambda content: content[:50], "cut short"),
        (lambda content: content[: len(content) // 2], "is damaged"),
        (set_bytes(60, (2).to_bytes(4, "big")), "written by a later version"),
        (set_bytes(100, b"\xff" * 8000), "is damaged"),
        (set_bytes(68, b"GIMP"), "some other program"),
    ],
    ids=["empty", "text", "header", "half", "later", "pages", "stranger"],
)
async def test_a_damaged_file_is_refused_and_left_as_it_is(path, change, problem):
    """Whatever is wrong with the file, opening it says what to do and changes no byte."""
    await filled(path)
    digest = damage(path, change)
    with pytest.raises(StateRefused, match=problem) as refused:
        await SqliteStore.open(path)
    assert "move it away" in str(refused.value) and str(path) in str(refused.value)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP TABLE policies", "cannot be read"),
        ("UPDATE policies SET record = '{}' WHERE name = 'p3'", "makes no sense"),
        ("UPDATE policies SET record = replace(record, 'm3', 'm4') WHERE name = 'p3'", "makes no sense"),
        ("UPDATE policies SET record = replace(record, '24h', '0h') WHERE name = 'p3'", "makes no sense"),
    ],
)
async def test_a_file_whose_content_makes_no_sense_is_refused(path, statement, problem):
    """A sound database that holds no policies, or impossible ones, is refused too."""
    await filled(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.create_function("replace", 3, lambda text, old, new: text.decode().replace(old, new).encode())
        sql.execute(statement)
    with pytest.raises(StateRefused, match=problem):
        await SqliteStore.open(path)


@pytest.mark.parametrize("name", ["no/such/folder/state.db", "."])
async def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path, name):
    """A missing folder, or a folder in the file's place, is refused with the reason."""
    with pytest.raises(StateRefused, match="cannot be opened or made"):
        await SqliteStore.open(tmp_path / name)


async def test_content_broken_while_open_is_reported_and_known_policies_stay(path, opened):
    """A record that another process spoils degrades the store; reads go on from what is known."""
    await filled(path)
    store = await opened(SqliteStore.open(path))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("UPDATE policies SET record = '{}' WHERE name = 'p3'")
    assert len((await store.read()).policies) == 41
    assert "makes no sense" in store.degraded
    with pytest.raises(StateRefused):
        await store.put(Policy(name="new", model="new"), **BY)


async def test_a_locked_file_is_waited_for_and_then_reported(path, opened):
    """While another process writes, changes are refused, reads go on, and all recovers by itself."""
    store = await opened(SqliteStore.open(path, wait_s=0.02))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="does not answer: database is locked") as refused:
            await store.put(Policy(name="a", model="a"), **BY)
        assert not refused.value.perhaps
        assert "locked" in store.degraded
        assert len((await store.read()).policies) == 1
    await store.put(Policy(name="a", model="a"), **BY)
    assert store.degraded is None


async def test_two_stores_on_one_file_read_each_other(path, opened):
    """What one process stores the next reads, and versions guard both."""
    one, two = await opened(SqliteStore.open(path)), await opened(SqliteStore.open(path))
    stored = await one.put(Policy(name="a", model="a"), **BY)
    assert (await two.read()).policies.get("a") == stored
    assert (await two.put(stored, **BY)).version == 2


async def test_two_processes_may_make_the_file_at_once(path):
    """Openers that race to make the file all end up on one whole file, and nothing is left beside it."""
    stores = await asyncio.gather(*(SqliteStore.open(path) for _ in range(4)))
    await stores[0].put(Policy(name="a", model="a"), **BY)
    assert [len((await store.read()).policies) for store in stores] == [2] * 4
    for store in stores:
        await store.close()
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]


async def test_a_process_that_loses_the_race_takes_the_winners_file(path, monkeypatch):
    """The file appears between the look and the making: it is used, not replaced."""
    await filled(path)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    store = await SqliteStore.open(path)
    assert len(store.known.policies) == 41
    await store.close()


async def test_the_file_is_a_write_ahead_log_database(path, opened):
    """Readers and the one writer do not wait for each other."""
    await opened(SqliteStore.open(path))
    with contextlib.closing(sqlite3.connect(path)) as sql:
        assert sql.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert stat.S_ISREG(path.stat().st_mode)


async def test_a_crash_in_the_middle_of_a_change_leaves_none_of_it(path, opened):
    """A process killed before the commit leaves policies, versions and audit as they were."""
    await filled(path)
    script = f"""
import os
from prefix_store.policy import Policy, default_policy
from prefix_store.sqlite_database import Database
from prefix_store.store import decide_put
database = Database({str(path)!r}, default_policy(), lambda: 0.0, 1.0)
database.record = lambda entry: os._exit(9)
database.commit(lambda snapshot: decide_put(snapshot, Policy(name="a", model="a"), by="x", at=0.0))
"""
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=False)
    assert ended.returncode == 9
    store = await opened(SqliteStore.open(path))
    assert (store.known.revision, store.known.policies.get("a")) == (40, None)
    assert len(await store.audit()) == 40


def test_a_failed_commit_is_rolled_back(path):
    """What a failing step raises is what the caller sees, and the next transaction is a new one."""
    database = Database(str(path), default(), lambda: 0.0, 1.0)
    with pytest.raises(ZeroDivisionError):
        database.commit(lambda _: 1 // 0)
    assert database.load().revision == 0
    database.close()


async def test_kept_values_whose_time_is_over_are_deleted_little_by_little(path, opened):
    """Each call that keeps deletes some of them, as many as it writes and a few more, until none is left."""
    clock = HandClock()
    store = await opened(SqliteStore.open(path, clock=clock))
    await store.keep("fp", {f"old{number}": b"x" for number in range(3 * SWEPT)}, ttl_s=10)
    clock.now += 10
    left = []
    for number in range(4):
        await store.keep("fp", {f"new{number}": b"x"}, ttl_s=10)
        left.append(rows(path) - number - 1)
    assert left == [2 * SWEPT - 1, SWEPT - 2, 0, 0]


async def test_a_full_file_lets_the_oldest_values_go_and_stays_as_large(path, opened):
    """Over its bound the file takes new values for old ones, and policies are never among them."""
    store = await opened(SqliteStore.open(path, kept_bytes=1 << 20))
    stored = await store.put(Policy(name="a", model="a"), **BY)
    for number in range(40):
        await store.keep("fp", {f"{number}:{part}": b"x" * 1000 for part in range(100)}, ttl_s=3600 + number)
    assert await store.recall("fp", ["0:0", "20:0"]) == {}
    assert await store.recall("fp", ["39:99"]) == {"39:99": b"x" * 1000}
    assert (await store.read()).policies.get("a") == stored
    await store.close()
    assert path.stat().st_size < 2 << 20


async def test_a_file_from_before_values_were_kept_is_completed(path, opened):
    """A sound file without the table gets it when it is opened; what was in the file stays."""
    await filled(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("DROP TABLE kept")
    stores = await asyncio.gather(*(opened(SqliteStore.open(path)) for _ in range(3)))
    await stores[0].keep("fp", {"a": b"1"}, ttl_s=60)
    assert await stores[2].recall("fp", ["a"]) == {"a": b"1"}
    assert len(stores[1].known.policies) == 41


async def test_a_locked_file_refuses_to_keep_and_still_recalls(path, opened):
    """While another process writes, nothing is kept and nothing pretended, and what is there can be read."""
    store = await opened(SqliteStore.open(path, wait_s=0.02))
    await store.keep("fp", {"a": b"1"}, ttl_s=60)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked"):
            await store.keep("fp", {"a": b"2"}, ttl_s=60)
        assert await store.recall("fp", ["a"]) == {"a": b"1"}


def rows(path: Path) -> int:
    """Return how many kept values lie in the file, dead or alive."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        return int(sql.execute("SELECT count(*) FROM kept").fetchone()[0])


def default() -> Policy:
    """Return the built-in default."""
    return Policy(name="default")
