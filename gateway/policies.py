"""The engine in step with the operators' policies.

Owns the task that follows the shared state. Decides nothing: what a policy means is `prefix_store.policy`'s, what it
does to the tree is the engine's. Rules: a change is acknowledged only once the engine has it; an engine that starts
anew hears all policies first thing; without an engine a change is stored, and the engine hears of it when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from engine.errors import EngineUnavailable
from engine.operator_messages import Changed, PolicyTerms
from gateway import patience
from gateway.backends import Backend
from gateway.patience import in_time
from prefix_store.classes import CLASSES, RetentionClasses
from prefix_store.policy import Policy, PolicySet
from prefix_store.store import SharedState

log = structlog.get_logger("gateway.policies")

RETRY_S = 0.5  # how soon an engine that was not there is asked again


class Policies:
    """Policies in force, and the way to change them."""

    def __init__(
        self,
        state: SharedState,
        backend: Backend,
        *,
        classes: RetentionClasses = CLASSES,
        now: Callable[[], float],
    ) -> None:
        """Put store and engine together; `now` is the wall clock in seconds, for the audit trail."""
        self.state = state
        self.classes = classes
        self._backend = backend
        self._now = now
        self._told: tuple[int, PolicySet] | None = None  # the engine's life, and what it was told in it
        self._telling = asyncio.Lock()

    @property
    def known(self) -> PolicySet:
        """The newest policies seen here. Never waits; this is what requests are resolved with."""
        return self.state.known.policies

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """While the block runs, the engine hears of every change and every new engine of all policies."""
        tasks = [asyncio.create_task(self._follow_changes()), asyncio.create_task(self._follow_engines())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def put(self, policy: Policy, *, by: str) -> Policy:
        """Store a policy and return it at its new version, once the engine obeys it.

        Raises VersionConflict, PolicyRefused, StoreUnavailable; NoAnswer when it is stored and not obeyed in time.
        """
        stored = await self.state.put(policy, by=by, at=self._now())
        await self._obeyed()
        return stored

    async def delete(self, name: str, *, version: int, by: str) -> None:
        """Delete a policy. Raises UnknownPolicy and what `put` raises."""
        await self.state.delete(name, version=version, by=by, at=self._now())
        await self._obeyed()

    async def preview(self, policies: PolicySet) -> Changed:
        """Say what these policies would expire and keep now. Changes nothing. Raises EngineUnavailable."""
        return await self._backend.set_policies(terms_of(policies), preview=True)

    async def _follow_changes(self) -> None:
        async for _ in self.state.watch():
            await self._tell()

    async def _follow_engines(self) -> None:
        while True:
            await self._backend.ready()
            await self._tell()
            await self._backend.lost()

    async def _obeyed(self) -> None:
        """Wait until the engine, if there is one, has what was stored."""
        await in_time(self._tell(), patience.CHANGE_S, otherwise="The change is stored; the engine will hear of it.")

    async def _tell(self) -> None:
        """Bring the engine up to date, if there is one; one that comes later is told when it does."""
        async with self._telling:
            wanted = (self._backend.restarts, self.known)
            if self._told == wanted or self._backend.card is None:
                return
            try:
                changed = await self._backend.set_policies(terms_of(self.known))
            except EngineUnavailable:
                return
            self._told = wanted
            gone = sum(tally.tokens for tally in changed.gone.values())
            log.info("policies_in_force", policies=len(self.known), expired_tokens=gone)


def terms_of(policies: PolicySet) -> tuple[PolicyTerms, ...]:
    """Return what of the policies the engine enforces."""
    return tuple(
        PolicyTerms(
            name=policy.name,
            model=policy.model,
            tenant=policy.tenant,
            default_ttl_s=policy.default_s,
            max_ttl_s=policy.max_s,
            sliding=policy.mode == "sliding",
            promise_budget=policy.promise_budget,
            pool_share=policy.pool_share,
            priority=policy.priority,
        )
        for policy in policies
    )
