"""What is done to the SQLite file, statement by statement: the synchronous half of the store.

Owns: the connection. Rules: all of it runs on one thread; each write is one transaction; a value's time is the wall
clock's, because it outlives the process.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from prefix_store.policy import Policy, PolicyRefused
from prefix_store.sqlite_file import complete, connect, refused
from prefix_store.store import Change, Entry, Record, Snapshot, StateRefused, apply

KEPT_BYTES = 1 << 30  # of the file; above it kept values go before their time
SWEPT = 256  # kept values deleted in one call, beside as many as it writes

_decode_record = msgspec.json.Decoder(Record).decode
_decode_entry = msgspec.json.Decoder(Entry).decode


class Database:
    """An open file. Every method runs on the one thread that opened it."""

    def __init__(
        self, path: str, built_in: Policy, clock: Callable[[], float], wait_s: float, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """Open or make the file and read the first snapshot. Raises StateRefused."""
        self._path, self._built_in, self._clock, self._kept_bytes = path, built_in, clock, kept_bytes
        self._sql = connect(path, wait_s)
        try:
            self.first = self.load()
            complete(self._sql)
        except (StateRefused, sqlite3.DatabaseError) as error:
            self._sql.close()
            raise refused(path, f"cannot be read ({error})") from error

    def load(self) -> Snapshot:
        """Read every policy in one consistent view."""
        with self._transaction("DEFERRED"):
            epoch, revision = self._sql.execute("SELECT epoch, revision FROM meta").fetchone()
            rows = self._sql.execute("SELECT record FROM policies ORDER BY name").fetchall()
        try:
            records = {record.name: record for record in map(_decode_record, (row[0] for row in rows))}
            return Snapshot.of(records, built_in=self._built_in, epoch=epoch, revision=revision)
        except (msgspec.DecodeError, PolicyRefused) as error:
            raise refused(self._path, f"holds a policy that makes no sense ({error})") from error

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

    def keep(self, space: str, items: Mapping[str, bytes], ttl_s: float) -> None:
        """Keep values; some of those whose time is over, or of the oldest where the file is full, go."""
        if not items:
            return
        now = self._clock()
        with self._transaction("IMMEDIATE"):
            self._sql.executemany(
                "INSERT INTO kept VALUES (?, ?, ?, ?) ON CONFLICT (space, key)"
                " DO UPDATE SET value = excluded.value, forget_at = excluded.forget_at",
                [(space, key, value, now + ttl_s) for key, value in items.items()],
            )
            until = now if self._used_bytes() <= self._kept_bytes else float("inf")
            self._sql.execute(
                "DELETE FROM kept WHERE rowid IN"
                " (SELECT rowid FROM kept WHERE forget_at <= ? ORDER BY forget_at LIMIT ?)",
                (until, SWEPT + len(items)),
            )

    def recall(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Read values, unless their time is over."""
        now, found = self._clock(), {}
        with self._transaction("DEFERRED"):
            for key in keys:
                row = self._sql.execute(
                    "SELECT value FROM kept WHERE space = ? AND key = ? AND forget_at > ?", (space, key, now)
                ).fetchone()
                if row is not None:
                    found[key] = row[0]
        return found

    def forget(self, space: str) -> None:
        """Delete every value of a space."""
        self._sql.execute("DELETE FROM kept WHERE space = ?", (space,))

    def close(self) -> None:
        """Close the file; SQLite folds the log into it."""
        self._sql.close()

    def _used_bytes(self) -> int:
        pages, free, size = (
            self._sql.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

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
