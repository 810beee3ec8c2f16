"""What happened to the cache, so that a cause stands beside its effect: starts, restarts, policies, purges, deploys.

Owns what this process saw happen, bounded; what operators did lies in the audit trail of the shared state and outlives
the process. Knows no HTTP. Rules: reading waits for the audit trail, telling never does; a mark that was accepted is in
the audit trail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec

from gateway.backends import Backend
from gateway.live import Hub
from prefix_store.store import Entry, Json, SharedState, StateError

Kind = Literal["start", "restart", "policy", "purge", "deploy", "alert"]

DEPLOY: Final = "deploy"  # in the audit trail
SEEN: Final = 256  # happenings of this process
MOST: Final = 500  # in one answer
PAGE: Final = 200  # lines of the audit trail read in one call
MOST_LINES: Final = 10_000  # read for one answer
SKEW_S: Final = 300.0  # by which the clocks of gateways that share an audit trail may differ
LATEST: Final = 50  # lines looked at for what is new


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One mark on the time axis."""

    at: float
    kind: Kind
    title: str
    subject: str = ""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a range, oldest first. `cut`: there was more, and the oldest are left out."""

    events: tuple[Happening, ...]
    cut: bool


class Timeline:
    """Tells what happened, later and at once."""

    def __init__(self, state: SharedState, hub: Hub, *, now: Callable[[], float]) -> None:
        """Read the audit trail of `state`, tell `hub`; `now` is the wall clock."""
        self._state, self._hub, self._now = state, hub, now
        self._seen: deque[Happening] = deque(maxlen=SEEN)
        self._newest: Entry | None = None
        self._looking = asyncio.Lock()
        self.started_at = now()

    def note(self, kind: Kind, title: str, subject: str = "") -> None:
        """Note what this process saw happen."""
        happening = Happening(at=self._now(), kind=kind, title=title, subject=subject)
        self._seen.append(happening)
        self._hub.publish("change", lambda: happening)

    async def mark(self, title: str, *, by: str) -> Happening:
        """Write a deploy mark into the audit trail. Raises StoreUnavailable."""
        entry = Entry(by=by, at=self._now(), what=DEPLOY, subject=title)
        await self._state.record(entry)
        await self.look()
        return Happening(at=entry.at, kind="deploy", title=title)

    async def between(self, begin: float, end: float) -> Span:
        """Return what happened from `begin` until before `end`. Raises StoreUnavailable."""
        lines, cut = await self._lines(begin, end)
        found = [happening for line in lines if (happening := told(line)) is not None]
        found += [one for one in self._seen if begin <= one.at < end]
        found.sort(key=lambda one: one.at)
        return Span(events=tuple(found[-MOST:]), cut=cut or len(found) > MOST)

    async def look(self, *, quietly: bool = False) -> None:
        """Tell those who listen what is new in the audit trail; `quietly` only remembers where it stands."""
        if not (quietly or self._hub.heard):
            return
        async with self._looking:
            try:
                lines = await self._state.audit(limit=LATEST)
            except StateError:
                return
            fresh = lines[: lines.index(self._newest)] if self._newest in lines else lines
            self._newest = lines[0] if lines else None
            for line in () if quietly else reversed(fresh):
                if (happening := told(line)) is not None:
                    self._hub.publish("change", lambda happening=happening: happening)  # type: ignore[misc]

    @asynccontextmanager
    async def following(self, backend: Backend) -> AsyncIterator[None]:
        """Note the start, and while the block runs each engine that is lost."""
        self.note("start", "The gateway started", backend.model)
        task = asyncio.create_task(self._follow(backend))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, backend: Backend) -> None:
        seen = backend.restarts
        while True:
            await backend.ready()
            await backend.lost()
            if backend.restarts > seen:  # else it was stopped
                seen = backend.restarts
                self.note("restart", f"The engine died and is started again (restart {seen})", backend.model)

    async def _lines(self, begin: float, end: float) -> tuple[list[Entry], bool]:
        """Read the audit trail from its end until it is older than the range."""
        found: list[Entry] = []
        for skip in range(0, MOST_LINES, PAGE):
            lines = await self._state.audit(limit=PAGE, skip=skip)
            found += [line for line in lines if begin <= line.at < end]
            if len(lines) < PAGE or all(line.at < begin - SKEW_S for line in lines):
                return found, False
            if len(found) > MOST:
                break
        return found, True


def told(line: Entry) -> Happening | None:
    """Show a line of the audit trail as a happening, None for one that is no mark on the time axis."""
    match line.what:
        case "policy.put":
            return Happening(at=line.at, kind="policy", title=_changed(line), subject=line.subject)
        case "policy.delete":
            return Happening(at=line.at, kind="policy", title=f"Policy {line.subject} deleted", subject=line.subject)
        case "policies.reseed":
            return Happening(at=line.at, kind="policy", title="Policies given back to a shared state that lost them")
        case "purge":
            return Happening(at=line.at, kind="purge", title=_purged(line), subject=line.subject)
        case "deploy":
            return Happening(at=line.at, kind="deploy", title=line.subject)
        case _:
            return None


def _changed(line: Entry) -> str:
    before, after = line.before, line.after or {}
    if before is None:
        return f"Policy {line.subject} made: default_ttl {_word(after.get('default_ttl'))}"
    changes = [
        f"{field} {_word(before.get(field))} → {_word(value)}"
        for field, value in after.items()
        if field != "version" and before.get(field) != value
    ]
    return f"Policy {line.subject}: {', '.join(changes)}" if changes else f"Policy {line.subject} written unchanged"


def _purged(line: Entry) -> str:
    filters: Json = line.before or {}
    names = [f"{name} {_word(value)}" for name, value in filters.items() if name not in {"all", "request", "dry_run"}]
    what = ", ".join(names) or ("one prompt" if filters.get("request") else "everything")
    tenants = (line.after or {}).get("tenants")
    tokens = 0
    for tenant in tenants.values() if isinstance(tenants, dict) else ():
        tokens += tenant["purged"]["tokens"]
    return f"Purged {what}: {tokens:,} tokens"


def _word(value: object) -> str:
    if value is None:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
