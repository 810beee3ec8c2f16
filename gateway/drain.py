"""Whether the gateway is on its way out: then it takes nothing new, and what it answers gets its time.

Owns that word. Knows no signals and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from gateway.errors import Stopping


class Busy(Protocol):
    """Who answers requests."""

    async def drained(self) -> None:
        """Wait until none is in flight."""


class Drain:
    """The way out."""

    def __init__(self, rooms: Sequence[Busy]) -> None:
        """Wait for these when the time has come."""
        self.draining = False
        self._rooms = tuple(rooms)

    def admit(self) -> None:
        """Let a request begin. Raises Stopping once the gateway is on its way out."""
        if self.draining:
            raise Stopping("This gateway is stopping; ask another one.")

    async def out(self, patience_s: float) -> None:
        """Take nothing new, and wait so long at most for what is in flight. The second call does not wait."""
        if self.draining:
            return
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                for room in self._rooms:
                    await room.drained()
