"""The configuration file read again while the gateway serves: upstreams and routing, nothing else.

Owns the word on how often that went well. Rules: a file that is broken, or names a key that is nowhere, changes
nothing; what changes, changes at once and is audited; of two readings the later one stands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from gateway.config_file import FileConfig, parse_file, read_text
from gateway.errors import ConfigError
from gateway.relay.fleet import Fleet
from gateway.relay.replica import Changes
from gateway.relay.upstream import require_keys
from prefix_store.store import Entry, Json, SharedState, StoreUnavailable

APPLIES_TO: Final = ("upstreams", "routing")  # tables of the file; every other one is read at the start alone

log = structlog.get_logger("gateway.reload")


class Heard(Protocol):
    """Who counts."""

    def __call__(self, *, done: bool) -> None:
        """Hear that the file was read again, or refused."""


class Reloads:
    """Reads the file again."""

    def __init__(
        self,
        path: Path | None,
        fleet: Fleet,
        state: SharedState,
        *,
        environ: Mapping[str, str],
        now: Callable[[], float] = time.time,
        heard: Heard | None = None,
    ) -> None:
        """Read `path` into `fleet`; `now` is the wall clock, for the audit trail of `state`, `heard` counts."""
        self._heard = heard
        self._path, self._fleet, self._state = path, fleet, state
        self._environ, self._now = environ, now
        self._reading = asyncio.Lock()

    async def reload(self, *, by: str, text: str | None = None, audit: bool = True) -> tuple[Changes, bool]:
        """Read the file and go on with what it says; return what that changed and whether it is audited.

        `text` is what the file holds, where that was read before. Raises ConfigError with the line that `keepwarm
        config check` would say.
        """
        async with self._reading:
            try:
                file = await asyncio.to_thread(self._read, text)
            except ConfigError as error:
                if self._heard is not None:
                    self._heard(done=False)
                log.warning("reload_refused", by=by, reason=str(error))
                raise
            changes = self._fleet.replace(file.upstreams, file.routing)
            if self._heard is not None:
                self._heard(done=True)
            told: Json = msgspec.to_builtins(changes)
            log.info("reloaded", by=by, **told)
            return changes, audit and await self.audited("reload", str(self._path), told, by=by)

    def _read(self, text: str | None) -> FileConfig:
        if self._path is None:
            raise ConfigError("this gateway was started without --config, so there is nothing to read again")
        file = parse_file(read_text(self._path) if text is None else text, self._path)
        require_keys(file.upstreams, self._environ)
        return file

    async def audited(self, what: str, subject: str, after: Json, *, by: str) -> bool:
        """Write what an operator did to upstreams into the audit trail; say whether that went well."""
        try:
            await self._state.record(Entry(by=by, at=self._now(), what=what, subject=subject, after=after))
        except StoreUnavailable as error:
            log.warning("not_audited", what=what, subject=subject, reason=str(error))
            return False
        return True
