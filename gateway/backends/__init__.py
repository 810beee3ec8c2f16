"""Where answers come from, behind one protocol: token ids in, deltas out.

Rule: `open` gives a context manager, and leaving it, however that happens, frees what is held for the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from engine.messages import Delta, ModelCard, Submit
from engine.operator_messages import Changed, EngineStats, Entries, PolicyTerms, RetentionView, Tree


class Backend(Protocol):
    """An engine seen from the gateway."""

    @property
    def name(self) -> str:
        """What metrics, ledger and page call it."""

    @property
    def model(self) -> str:
        """The name clients ask for; known before the engine is ready."""

    @property
    def card(self) -> ModelCard | None:
        """What is served, or None while nothing can be."""

    @property
    def life(self) -> int:
        """Which life its counters are of: they begin anew in each."""

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""

    @property
    def detail(self) -> str:
        """One sentence on the state, for operators."""

    def open(self, submit: Submit) -> AbstractContextManager[AsyncIterator[Delta]]:
        """Submit a request. Raises EngineUnavailable at once or while iterating, and the engine's refusals."""

    async def stats(self) -> EngineStats:
        """Return a snapshot; raises EngineUnavailable when there is no engine now."""

    async def start(self) -> None:
        """Begin to start the engine; returns at once."""

    async def refused(self) -> str:
        """Wait until the model turns out to be one that cannot be served, and say why. Else waits for ever."""

    async def ready(self) -> None:
        """Wait until there is an engine."""

    async def lost(self) -> None:
        """Wait until the engine that is there now is gone."""

    async def set_policies(self, policies: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:
        """Put policies in force, or say what that would do. Raises EngineUnavailable."""

    async def purge(self, **fields: Any) -> Changed:
        """Forget entries: the fields of `engine.operator_messages.Purge` but its number. Raises EngineUnavailable."""

    async def entries(self, *, offset: int = 0, limit: int = 100, tenant: str | None = None) -> Entries:
        """Return one page of the entries. Raises EngineUnavailable."""

    async def tree(self, *, limit: int = 2000, tenant: str | None = None) -> Tree:
        """Return the largest nodes of the tree; renews nothing. Raises EngineUnavailable."""

    async def retention(self) -> RetentionView:
        """Return how old live tokens are and how long they have; renews nothing. Raises EngineUnavailable."""

    async def stop(self) -> None:
        """End the engine; what is open hears EngineUnavailable. May be called again."""
