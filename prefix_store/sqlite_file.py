"""One SQLite file: looked at before it is opened, made complete before it gets its name.

Owns: what a sound file is, and which tables are in one that holds state. Rule: a file that is foreign or broken
is refused as it was found, never written over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path

from prefix_store.store import SCHEMA, StateRefused

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
_LATER = """
    CREATE TABLE IF NOT EXISTS kept (
        space TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, forget_at REAL NOT NULL, UNIQUE (space, key)
    );
    CREATE INDEX IF NOT EXISTS kept_until ON kept (forget_at);
"""  # what a file of the same schema may lack; older programs pass it over

_FIRST_LIFE = "INSERT INTO meta VALUES (lower(hex(randomblob(8))), 0);"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a file is for: its mark and schema, the statements that make its tables, and what is lost without it."""

    application: int
    schema: int
    tables: str
    noun: str
    loss: str
    synchronous: str = "FULL"
    page_bytes: int = 4096


STATE = Kind(
    application=APPLICATION_ID,
    schema=SCHEMA,
    tables=_TABLES + _LATER + _FIRST_LIFE,
    noun="state file",
    loss="no stored policies",
)


def connect(path: str, wait_s: float, kind: Kind = STATE) -> sqlite3.Connection:
    """Open the file, made first where there is none. Nothing is written to a file that is not ours and whole."""
    if path == MEMORY:
        sql = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
        sql.executescript(kind.tables)
        return sql
    file = Path(path).absolute()
    try:
        if not file.exists():
            _create_file(file, kind)
        with file.open("rb") as opened:
            header = opened.read(_HEADER_BYTES)
    except (OSError, sqlite3.DatabaseError) as error:
        raise refused(path, f"cannot be opened or made ({error})", kind) from error
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise refused(path, "is not a SQLite database, or is cut short", kind)
    if struct.unpack_from(">I", header, 68)[0] != kind.application:
        raise refused(path, "is a database of some other program", kind)
    if (schema := struct.unpack_from(">I", header, 60)[0]) > kind.schema:
        raise refused(path, f"was written by a later version (schema {schema}, here {kind.schema})", kind)
    sql = sqlite3.connect(
        f"{file.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=wait_s
    )
    try:
        sql.execute(f"PRAGMA synchronous = {kind.synchronous}")
        found = sql.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        sql.close()
        raise refused(path, f"is damaged ({found})", kind)
    return sql


def _create_file(file: Path, kind: Kind) -> None:
    """Make a whole new file under a passing name, then give it its own unless another process was first."""
    passing = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with contextlib.closing(sqlite3.connect(passing, isolation_level=None)) as sql:
            sql.executescript(f"PRAGMA page_size = {kind.page_bytes}; PRAGMA journal_mode = WAL;")
            sql.executescript(kind.tables)
        with contextlib.suppress(FileExistsError):
            os.link(passing, file)
    finally:
        passing.unlink(missing_ok=True)


def refused(path: str, problem: str, kind: Kind = STATE) -> StateRefused:
    """Say what is wrong with a file and what to do."""
    return StateRefused(
        f"the {kind.noun} {path} {problem}. It was left as it is. Put a backup in its place, or move it away "
        f"to start with {kind.loss}, or name another file."
    )


def complete(sql: sqlite3.Connection) -> None:
    """Add the tables that a sound file of an earlier version lacks."""
    if sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'kept_until'").fetchone() is None:
        sql.executescript(_LATER)
