"""State in one SQLite file (WAL), or in memory: the embedded default.

Owns: the file and the one thread that touches it. Several processes may share the file.
Rule: a file is looked at before it is opened and made complete before it gets its name, so one that is foreign or
broken is refused as it was found, never written over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from prefix_store.feed import Feed
from prefix_store.policy import Policy, PolicyRefused, default_policy
from prefix_store.store import (
    SCHEMA,
    Change,
    Entry,
    Record,
    Snapshot,
    StateRefused,
    StoreUnavailable,
    apply,
    decide_delete,
    decide_put,
)

T = TypeVar("T")

MEMORY = ":memory:"
APPLICATION_ID = 0x4B57524D  # "KWRM", in the file's header
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_TABLES = f"""
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {SCHEMA};
    CREATE TABLE meta (epoch TEXT NOT NULL, revision INTEGER NOT NULL);
    CREATE TABLE policies (name TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, entry BLOB NOT NULL);
    CREATE TABLE spaces (space TEXT PRIMARY KEY, forget_at REAL NOT NULL) WITHOUT ROWID;
    CREATE TABLE counters (space TEXT, name TEXT, value INTEGER NOT NULL, PRIMARY KEY (space, name)) WITHOUT ROWID;
"""

_decode_record = msgspec.json.Decoder(Record).decode
_decode_entry = msgspec.json.Decoder(Entry).decode


class SqliteStore:
    """`SharedState` over SQLite. Counters expire by the wall clock, because they outlive the process."""

    def __init__(self, database: _Database, thread: ThreadPoolExecutor, first: Snapshot) -> None:
        """Take an opened database; `open` is the way in."""
        self._database, self._thread = database, thread
        self._feed = Feed(first)
        self._loop = asyncio.get_running_loop()
        self._trouble: str | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        built_in: Policy | None = None,
        clock: Callable[[], float] = time.time,
        wait_s: float = 5.0,
    ) -> SqliteStore:
        """Open or create the file; `":memory:"` keeps all in memory. Raises StateRefused.

        `built_in` is the `default` policy until one is stored, `wait_s` how long to wait for another process that
        is writing.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keepwarm-state")
        prepare = partial(_Database, str(path), built_in or default_policy(), clock, wait_s)
        try:
            database = await asyncio.get_running_loop().run_in_executor(thread, prepare)
        except StateRefused:
            thread.shutdown(wait=False)
            raise
        return cls(database, thread, database.first)

    @property
    def known(self) -> Snapshot:
        """The newest snapshot seen here."""
        return self._feed.newest

    @property
    def degraded(self) -> str | None:
        """What the last call failed of, or None when it went well."""
        return self._trouble

    async def read(self) -> Snapshot:
        """Return the newest snapshot, from local knowledge when the file cannot be read."""
        with contextlib.suppress(StoreUnavailable, StateRefused):  # `degraded` says which
            self._feed.publish(await self._run(self._database.load))
        return self.known

    async def put(self, policy: Policy, *, by: str, at: float) -> Policy:
        """Store `policy` over the version it states and return it at its new one."""
        change = await self._change(lambda snapshot: decide_put(snapshot, policy, by=by, at=at))
        stored = change.records[0].policy
        assert stored is not None, "a put stores a policy"
        return stored

    async def delete(self, name: str, *, version: int, by: str, at: float) -> None:
        """Delete that version of a policy."""
        await self._change(lambda snapshot: decide_delete(snapshot, name, version=version, by=by, at=at))

    async def record(self, entry: Entry) -> None:
        """Add a line to the audit trail."""
        await self._run(partial(self._database.record, entry))

    async def audit(self, *, limit: int = 100, skip: int = 0) -> tuple[Entry, ...]:
        """Return up to `limit` lines of the audit trail, newest first, after the newest `skip`."""
        return await self._run(partial(self._database.audit, limit, skip))

    async def count(self, space: str, increments: Mapping[str, int], *, ttl_s: float) -> None:
        """Add to the counters of a space, which is forgotten `ttl_s` after its last increment."""
        await self._run(partial(self._database.count, space, dict(increments), ttl_s))

    async def counters(self, space: str) -> dict[str, int]:
        """Return the counters of a space."""
        return await self._run(partial(self._database.counters, space))

    def watch(self) -> AsyncIterator[Snapshot]:
        """Go over what is known: now, then at each change seen here."""
        return self._feed.watch()

    async def close(self) -> None:
        """Finish what is running, close the file and end the watchers."""
        if not self._closed:
            self._closed = True
            self._feed.close()
            await self._loop.run_in_executor(self._thread, self._database.close)
            self._thread.shutdown(wait=False)

    async def _change(self, decide: Callable[[Snapshot], Change]) -> Change:
        """Commit a change; the feed hears of it even when the caller has been cancelled meanwhile."""

        def commit() -> Change:
            change, snapshot = self._database.commit(decide)
            self._loop.call_soon_threadsafe(self._feed.publish, snapshot)
            return change

        return await self._run(commit)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work` on the database's thread."""
        if self._closed:
            raise StoreUnavailable("the state is closed")
        try:
            result = await self._loop.run_in_executor(self._thread, work)
        except sqlite3.DatabaseError as error:
            self._trouble = f"the state file does not answer: {error}"
            raise StoreUnavailable(self._trouble) from error
        except StateRefused as error:
            self._trouble = str(error)
            raise
        self._trouble = None
        return result


class _Database:
    """The synchronous half. Every method runs on the one thread; each write is one transaction."""

    def __init__(self, path: str, built_in: Policy, clock: Callable[[], float], wait_s: float) -> None:
        self._path, self._built_in, self._clock = path, built_in, clock
        self._sql = _connect(path, wait_s)
        try:
            self.first = self.load()
        except (StateRefused, sqlite3.DatabaseError) as error:
            self._sql.close()
            raise _refused(path, f"cannot be read ({error})") from error

    def load(self) -> Snapshot:
        """Read every policy in one consistent view."""
        with self._transaction("DEFERRED"):
            epoch, revision = self._sql.execute("SELECT epoch, revision FROM meta").fetchone()
            rows = self._sql.execute("SELECT record FROM policies ORDER BY name").fetchall()
        try:
            records = {record.name: record for record in map(_decode_record, (row[0] for row in rows))}
            return Snapshot.of(records, built_in=self._built_in, epoch=epoch, revision=revision)
        except (msgspec.DecodeError, PolicyRefused) as error:
            raise _refused(self._path, f"holds a policy that makes no sense ({error})") from error

    def commit(self, decide: Callable[[Snapshot], Change]) -> tuple[Change, Snapshot]:
        """Decide on what is stored now and store the outcome, or raise and leave all as it was."""
        with self._transaction("IMMEDIATE"):
            before = self.load()
            change = decide(before)
            rows = [(record.name, msgspec.json.encode(record)) for record in change.records]
            self._sql.executemany("INSERT OR REPLACE INTO policies VALUES (?, ?)", rows)
            self._sql.execute("UPDATE meta SET revision = revision + 1")
            self.record(change.entry)
        return change, apply(before, change, built_in=self._built_in, epoch=before.epoch, revision=before.revision + 1)

    def record(self, entry: Entry) -> None:
        """Add a line to the audit trail."""
        self._sql.execute("INSERT INTO audit (entry) VALUES (?)", (msgspec.json.encode(entry),))

    def audit(self, limit: int, skip: int) -> tuple[Entry, ...]:
        """Read lines, newest first."""
        rows = self._sql.execute("SELECT entry FROM audit ORDER BY id DESC LIMIT ? OFFSET ?", (limit, skip))
        return tuple(_decode_entry(row[0]) for row in rows)

    def count(self, space: str, increments: Mapping[str, int], ttl_s: float) -> None:
        """Add to a space; spaces whose time is over go first, this one included."""
        if not increments:
            return
        now = self._clock()
        with self._transaction("IMMEDIATE"):
            self._sql.execute(
                "DELETE FROM counters WHERE space IN (SELECT space FROM spaces WHERE forget_at <= ?)", (now,)
            )
            self._sql.execute("DELETE FROM spaces WHERE forget_at <= ?", (now,))
            self._sql.execute("INSERT OR REPLACE INTO spaces VALUES (?, ?)", (space, now + ttl_s))
            self._sql.executemany(
                "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
                [(space, name, by) for name, by in increments.items()],
            )

    def counters(self, space: str) -> dict[str, int]:
        """Read a space, unless its time is over."""
        rows = self._sql.execute(
            "SELECT name, value FROM counters JOIN spaces USING (space) WHERE space = ? AND forget_at > ?",
            (space, self._clock()),
        )
        return dict(rows.fetchall())

    def close(self) -> None:
        """Close the file; SQLite folds the log into it."""
        self._sql.close()

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """All of the block or none of it. Inside another transaction, part of that one."""
        if self._sql.in_transaction:
            yield
            return
        self._sql.execute(f"BEGIN {kind}")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.DatabaseError):  # SQLite may have rolled back itself, on a full disk
                self._sql.execute("ROLLBACK")
            raise


def _connect(path: str, wait_s: float) -> sqlite3.Connection:
    """Open the file, made first where there is none. Nothing is written to a file that is not ours and whole."""
    if path == MEMORY:
        sql = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
        _create_tables(sql)
        return sql
    file = Path(path).absolute()
    try:
        if not file.exists():
            _create_file(file)
        with file.open("rb") as opened:
            header = opened.read(_HEADER_BYTES)
    except (OSError, sqlite3.DatabaseError) as error:
        raise _refused(path, f"cannot be opened or made ({error})") from error
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise _refused(path, "is not a SQLite database, or is cut short")
    if struct.unpack_from(">I", header, 68)[0] != APPLICATION_ID:
        raise _refused(path, "is a database of some other program")
    if (schema := struct.unpack_from(">I", header, 60)[0]) > SCHEMA:
        raise _refused(path, f"was written by a later version (schema {schema}, here {SCHEMA})")
    sql = sqlite3.connect(
        f"{file.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=wait_s
    )
    try:
        sql.execute("PRAGMA synchronous = FULL")
        found = sql.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        sql.close()
        raise _refused(path, f"is damaged ({found})")
    return sql


def _create_file(file: Path) -> None:
    """Make a whole new file under a passing name, then give it its own unless another process was first."""
    passing = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with contextlib.closing(sqlite3.connect(passing, isolation_level=None)) as sql:
            sql.execute("PRAGMA journal_mode = WAL")
            _create_tables(sql)
        with contextlib.suppress(FileExistsError):
            os.link(passing, file)
    finally:
        passing.unlink(missing_ok=True)


def _create_tables(sql: sqlite3.Connection) -> None:
    sql.executescript(_TABLES)
    sql.execute("INSERT INTO meta VALUES (?, 0)", (secrets.token_hex(8),))


def _refused(path: str, problem: str) -> StateRefused:
    return StateRefused(
        f"the state file {path} {problem}. It was left as it is. Put a backup in its place, or move it away "
        "to start with no stored policies, or name another file."
    )
