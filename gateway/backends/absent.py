"""No engine: what a gateway that only passes requests on has in its place.

Owns nothing. Rule: it serves no model, is never ready and never lost, and has no numbers, so none is shown as zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

from engine.errors import EngineUnavailable
from engine.messages import Delta, ModelCard, Submit
from engine.operator_messages import Changed, EngineStats, Entries, PolicyTerms, RetentionView, Tree

DETAIL: Final = "This gateway has no engine; its upstreams answer."


class Absent:
    """A backend that is not there."""

    name = "none"
    model = ""
    card: ModelCard | None = None
    restarts = 0
    life = 0
    detail = DETAIL

    def open(self, submit: Submit) -> AbstractContextManager[AsyncIterator[Delta]]:  # noqa: ARG002 - a Backend
        """Refuse."""
        _refuse()

    async def stats(self) -> EngineStats:
        """Refuse: there are no numbers."""
        _refuse()

    async def start(self) -> None:
        """Nothing to start."""

    async def refused(self) -> str:
        """Wait for ever: there is no model that could be refused."""
        return await asyncio.Future()

    async def ready(self) -> None:
        """Wait for ever."""
        await asyncio.Future()

    async def lost(self) -> None:
        """Wait for ever."""
        await asyncio.Future()

    async def set_policies(self, policies: tuple[PolicyTerms, ...], *, preview: bool = False) -> Changed:  # noqa: ARG002
        """Refuse: there is no cache here."""
        _refuse()

    async def purge(self, **fields: Any) -> Changed:  # noqa: ARG002 - a Backend
        """Refuse."""
        _refuse()

    async def entries(self, *, offset: int = 0, limit: int = 100, tenant: str | None = None) -> Entries:  # noqa: ARG002
        """Refuse."""
        _refuse()

    async def tree(self, *, limit: int = 2000, tenant: str | None = None) -> Tree:  # noqa: ARG002 - a Backend
        """Refuse."""
        _refuse()

    async def retention(self) -> RetentionView:
        """Refuse."""
        _refuse()

    async def stop(self) -> None:
        """Nothing to stop."""


def _refuse() -> NoReturn:
    raise EngineUnavailable(DETAIL)
