"""The bundled engine process as a backend.

Owns the engine client. Adds to it what operators are told about its state; restarts are the client's own business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineUnavailable, ModelRefused
from engine.messages import Delta, ModelCard, Submit
from engine.operator_messages import Changed, EngineStats, Entries, PolicyTerms, RetentionView, Tree


class Bundled:
    """One engine process on this machine."""

    def __init__(self, config: EngineConfig) -> None:
        """Prepare; `start` starts the process."""
        self.name = "bundled"
        self._client = EngineClient(config)
        self.model = config.model

    @property
    def card(self) -> ModelCard | None:
        """What is served, or None while the engine is starting."""
        return self._client.card

    @property
    def life(self) -> int:
        """Which of the engine's lives its counters are of."""
        return self._client.restarts

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        return self._client.restarts

    @property
    def detail(self) -> str:
        """One sentence on the state, for operators."""
        if self._client.card is not None:
            return "The engine is ready."
        if self._client.refusal is not None:
            return f"The engine refused the model: {self._client.refusal}"
        if self._client.restarts:
            return f"The engine died and is starting again (restart {self._client.restarts})."
        return "The engine is starting."

    def open(self, submit: Submit) -> AbstractContextManager[AsyncIterator[Delta]]:
        """Submit a request; leaving the block aborts it."""
        return self._client.open(submit)

    async def stats(self) -> EngineStats:
        """Return a snapshot of the engine."""
        return await self._client.stats()

    async def start(self) -> None:
        """Start the process and return at once."""
        await self._client.start()

    async def refused(self) -> str:
        """Wait for the reason why the model cannot be served; once it is, there is none and this waits for ever."""
        try:
            await self._client.ready()
        except ModelRefused as refusal:
            return str(refusal)
        except EngineUnavailable:  # stopped before it was ready
            pass
        return await asyncio.Future()

    async def ready(self) -> None:
        """Wait until there is an engine; a refused model never gives one."""
        while self.card is None:
            await self._client.changed()

    async def lost(self) -> None:
        """Wait until the engine that is there now is gone."""
        life = self.restarts
        while self.card is not None and self.restarts == life:
            await self._client.changed()

    async def set_policies(self, policies: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:
        """Put policies in force, or say what that would do."""
        return await self._client.set_policies(policies, preview=preview)

    async def purge(self, **fields: Any) -> Changed:
        """Forget entries that match."""
        return await self._client.purge(**fields)

    async def entries(self, *, offset: int = 0, limit: int = 100, tenant: str | None = None) -> Entries:
        """Return one page of the entries."""
        return await self._client.entries(offset=offset, limit=limit, tenant=tenant)

    async def tree(self, *, limit: int = 2000, tenant: str | None = None) -> Tree:
        """Return the largest nodes of the tree."""
        return await self._client.tree(limit=limit, tenant=tenant)

    async def retention(self) -> RetentionView:
        """Return how old live tokens are and how long they have."""
        return await self._client.retention()

    async def stop(self) -> None:
        """End the process."""
        await self._client.stop()
