"""State in one SQLite file (WAL), or in memory: the embedded default.

Owns: the one thread that touches the file, and the feed of what it holds. Several processes may share the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from prefix_store.feed import Feed
from prefix_store.policy import Policy, default_policy
from prefix_store.sqlite_database import KEPT_BYTES, Database
from prefix_store.store import Change, Entry, Snapshot, StateRefused, StoreUnavailable, decide_delete, decide_put

T = TypeVar("T")


class SqliteStore:
    """`SharedState` over SQLite. Counters expire by the wall clock, because they outlive the process."""

    def __init__(self, database: Database, thread: ThreadPoolExecutor, first: Snapshot) -> None:
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
        kept_bytes: int = KEPT_BYTES,
    ) -> SqliteStore:
        """Open or create the file; `":memory:"` keeps all in memory. Raises StateRefused.

        `built_in` is the `default` policy until one is stored, `wait_s` how long to wait for another process that
        is writing, `kept_bytes` how large the file may be before kept values go before their time.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keepwarm-state")
        prepare = partial(Database, str(path), built_in or default_policy(), clock, wait_s, kept_bytes)
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

    async def keep(self, space: str, items: Mapping[str, bytes], *, ttl_s: float) -> None:
        """Keep values under a space, each for `ttl_s` from now."""
        await self._run(partial(self._database.keep, space, dict(items), ttl_s))

    async def recall(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of the values that are still kept."""
        return await self._run(partial(self._database.recall, space, tuple(keys)))

    async def forget(self, space: str) -> None:
        """Forget every value that is kept under a space."""
        await self._run(partial(self._database.forget, space))

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
