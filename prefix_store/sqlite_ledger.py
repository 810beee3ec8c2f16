"""A ledger in one SQLite file (WAL), or in memory: the embedded default.

Owns: the one thread that touches the file. Several processes may share the file.
Rules: the counts of a row are one large number with a lane of eight bytes for each name, so that adding rows up is
adding numbers; a flush is one transaction, in which rows whose time is over go too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from prefix_store.ledger import FIELDS, RETENTION_S, STEPS, Place, Question, Row, Sums, floor, keep_s
from prefix_store.sqlite_file import Kind, connect, refused
from prefix_store.store import StateRefused, StoreUnavailable

T = TypeVar("T")

LANE = 8  # bytes
LEDGER = Kind(
    application=0x4B574C47,  # "KWLG"
    schema=1,
    tables=f"""
        PRAGMA application_id = {0x4B574C47};
        PRAGMA user_version = 1;
        CREATE TABLE names (lane INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
        CREATE TABLE places (id INTEGER PRIMARY KEY, {", ".join(f"{field} TEXT NOT NULL" for field in FIELDS)},
            UNIQUE ({", ".join(FIELDS)}));
        CREATE TABLE rows (step INTEGER, start INTEGER, place INTEGER, counts BLOB NOT NULL,
            PRIMARY KEY (step, start, place)) WITHOUT ROWID;
    """,
    noun="ledger file",
    loss="no usage of the past",
    synchronous="NORMAL",  # a flush that is lost with the machine's power is no more than a few seconds of counts
    page_bytes=16384,  # so that the counts of a row lie in its page
)


class SqliteLedger:
    """`LedgerStore` over SQLite. Rows go by the wall clock, because they outlive the process."""

    def __init__(self, book: Book, thread: ThreadPoolExecutor) -> None:
        """Take an opened file; `open` is the way in."""
        self._book, self._thread = book, thread
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        retention_s: float = RETENTION_S,
        clock: Callable[[], float] = time.time,
        wait_s: float = 5.0,
    ) -> SqliteLedger:
        """Open or create the file; `":memory:"` keeps all in memory. Raises StateRefused.

        `wait_s` is how long to wait for another process that is writing.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keepwarm-ledger")
        try:
            book = await asyncio.get_running_loop().run_in_executor(
                thread, partial(Book, str(path), retention_s, clock, wait_s)
            )
        except StateRefused:
            thread.shutdown(wait=False)
            raise
        return cls(book, thread)

    @property
    def retention_s(self) -> float:
        """How long rows of days are kept."""
        return self._book.retention_s

    async def add(self, rows: Sequence[Row]) -> None:
        """Add counts to their minutes and to every longer stretch around them, all or none."""
        await self._run(partial(self._book.add, tuple(rows)))

    async def sums(self, question: Question) -> Sums:
        """Return the sums that were asked for."""
        return await self._run(partial(self._book.sums, question))

    async def close(self) -> None:
        """Finish what is running and close the file."""
        if not self._closed:
            self._closed = True
            await self._loop.run_in_executor(self._thread, self._book.close)
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run `work` on the file's thread."""
        if self._closed:
            raise StoreUnavailable("the ledger is closed")
        try:
            return await self._loop.run_in_executor(self._thread, work)
        except sqlite3.DatabaseError as error:
            raise StoreUnavailable(f"the ledger file does not answer: {error}") from error


class Book:
    """An open file. Every method runs on the one thread that opened it."""

    def __init__(self, path: str, retention_s: float, clock: Callable[[], float], wait_s: float) -> None:
        """Open or make the file. Raises StateRefused."""
        self.retention_s, self._clock = retention_s, clock
        self._sql = connect(path, wait_s, LEDGER)
        self._lanes: dict[str, int] = {}
        self._places: dict[Place, int] = {}
        try:
            self._learn()
        except sqlite3.DatabaseError as error:
            self._sql.close()
            raise refused(path, f"cannot be read ({error})", LEDGER) from error

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows to all steps; what is over goes."""
        with self._transaction():
            self._name(rows)
            added: dict[tuple[int, int, int], int] = {}
            for row in rows:
                counts = sum(count << (LANE * 8 * self._lanes[name]) for name, count in row.counts.items())
                for step in STEPS:
                    key = (step, floor(row.start, step), self._places[row.place])
                    added[key] = added.get(key, 0) + counts
            self._sql.executemany(
                "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)",
                [(*key, _packed(counts + self._standing(key))) for key, counts in added.items()],
            )
            now = self._clock()
            self._sql.executemany(
                "DELETE FROM rows WHERE step = ? AND start <= ?",
                [(step, now - keep_s(step, self.retention_s) - step) for step in STEPS],
            )

    def sums(self, question: Question) -> Sums:
        """Add up rows."""
        added: dict[tuple[int | None, tuple[str, ...]], int] = {}
        with self._transaction("DEFERRED"):
            self._learn()
            meant = {number: place for place, number in self._places.items() if question.asks(place)}
            groups = {number: question.cell(0, place)[1] for number, place in meant.items()}
            bucket, listed = question.bucket, json.dumps(list(meant))
            chosen = "" if len(meant) == len(self._places) else " AND place IN (SELECT value FROM json_each(:meant))"
            for span in question.spans:
                rows = self._sql.execute(
                    "SELECT start, place, counts FROM rows"  # noqa: S608 - words of our own
                    f" WHERE step = :step AND start >= :start AND start < :end{chosen}",
                    {"step": span.step, "start": span.start, "end": span.end, "meant": listed},
                )
                for start, place, counts in rows:
                    cell = (None if bucket is None else start - start % bucket, groups[place])
                    added[cell] = added.get(cell, 0) + int.from_bytes(counts, "little")
        names = {lane: name for name, lane in self._lanes.items()}
        return {cell: dict(_spread(counts, names)) for cell, counts in added.items()}

    def close(self) -> None:
        """Close the file; SQLite folds the log into it."""
        self._sql.close()

    def _standing(self, key: tuple[int, int, int]) -> int:
        found = self._sql.execute("SELECT counts FROM rows WHERE step = ? AND start = ? AND place = ?", key).fetchone()
        return int.from_bytes(found[0], "little") if found else 0

    def _name(self, rows: Sequence[Row]) -> None:
        """Give a lane or a number to every name and place that has none."""
        names = {name for row in rows for name in row.counts} - self._lanes.keys()
        places = {row.place for row in rows} - self._places.keys()
        if names or places:
            lanes = itertools.count(self._sql.execute("SELECT count(*) FROM names").fetchone()[0])
            known = {name for (name,) in self._sql.execute("SELECT name FROM names")}
            self._sql.executemany("INSERT INTO names VALUES (?, ?)", zip(lanes, sorted(names - known), strict=False))
            self._sql.executemany("INSERT OR IGNORE INTO places VALUES (NULL, ?, ?, ?, ?, ?)", sorted(places))
            self._learn()

    def _learn(self) -> None:
        """Read names and places, to which other processes add."""
        self._lanes = dict(self._sql.execute("SELECT name, lane FROM names"))
        found = self._sql.execute(f"SELECT id, {', '.join(FIELDS)} FROM places")  # noqa: S608 - names of our own
        self._places = {Place(*values): number for number, *values in found}

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._sql.execute(f"BEGIN {kind}")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.DatabaseError):  # SQLite may have rolled back itself, on a full disk
                self._sql.execute("ROLLBACK")
            self._lanes, self._places = {}, {}
            raise


def _packed(counts: int) -> bytes:
    return counts.to_bytes(-(-counts.bit_length() // (LANE * 8)) * LANE, "little")


def _spread(counts: int, names: dict[int, str]) -> Iterator[tuple[str, int]]:
    lanes = array("Q", _packed(counts))
    return ((names[lane], count) for lane, count in enumerate(lanes) if count)
