"""The newest snapshot and those who wait for the next one.

Owns: what this process knows of the policies. Knows no store. Lives on one event loop.
Rule: knowledge only moves forward; a snapshot of an older revision is dropped, however late it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from prefix_store.store import Snapshot


class Feed:
    """One writer, many watchers; each watcher sees the newest snapshot, not every one."""

    def __init__(self, first: Snapshot) -> None:
        self.newest = first
        self._moved = asyncio.Event()
        self._closed = False

    def publish(self, snapshot: Snapshot) -> None:
        """Make `snapshot` the newest and wake the watchers, unless something as new is known."""
        if snapshot.revision > self.newest.revision:
            self.newest = snapshot
            self._wake()

    def close(self) -> None:
        """End every watcher."""
        self._closed = True
        self._wake()

    async def watch(self) -> AsyncIterator[Snapshot]:
        """Yield the newest snapshot, and again whenever there is a newer one."""
        while not self._closed:
            snapshot, moved = self.newest, self._moved
            yield snapshot
            await moved.wait()

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
