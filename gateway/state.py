"""Where policies, versions, audit, counters and the ledger lie: SQLite files here, or the Redis that gateways share.

Opens the store and writes what the start-up asks for. Knows no HTTP and no engine. Rule: what an operator changed at
run time stands; a start-up policy is written only where none of its name was ever stored, and only an explicit `--ttl`
overrides the stored `default`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gateway.errors import ConfigError
from prefix_store.classes import CLASSES, RetentionClasses
from prefix_store.ledger import LedgerStore
from prefix_store.policy import DEFAULT, Policy, PolicyRefused, default_policy
from prefix_store.redis_ledger import RedisLedger
from prefix_store.redis_residency import RedisFeed
from prefix_store.redis_settings import RedisSettings
from prefix_store.redis_store import RedisStore
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore
from prefix_store.store import SharedState, StateError

FILE = "state.sqlite"
LEDGER_FILE = "ledger.sqlite"  # beside it
STARTER = "start-up"  # who, in the audit trail
ATTEMPTS = 3  # another gateway may write the same policy at the same moment


async def open_state(
    folder: Path, shared: RedisSettings | None, *, block_tokens: int, classes: RetentionClasses = CLASSES
) -> SharedState:
    """Open the Redis that gateways share, or without one the SQLite file in `folder`.

    Raises ConfigError with what to do when the state cannot be used.
    """
    built_in = default_policy(block_tokens=block_tokens, classes=classes)
    try:
        if shared is not None:
            return await RedisStore.open(shared, built_in=built_in)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        return await SqliteStore.open(folder / FILE, built_in=built_in)
    except (StateError, OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


async def open_ledger(folder: Path, shared: RedisSettings | None, *, retention_s: float) -> LedgerStore:
    """Open the ledger where the state is. Raises ConfigError with what to do when it cannot be used."""
    try:
        if shared is not None:
            return await RedisLedger.open(shared, retention_s=retention_s)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        return await SqliteLedger.open(folder / LEDGER_FILE, retention_s=retention_s)
    except (StateError, OSError) as error:
        raise ConfigError(str(error)) from error


def open_feed(shared: RedisSettings | None) -> RedisFeed | None:
    """Return the way to the other gateways; None where there are none. Connects with the first call."""
    return None if shared is None else RedisFeed(shared, secrets.token_hex(8))


async def begin(
    state: SharedState, *, ttl_s: float | None, policies: Iterable[Policy] = (), classes: RetentionClasses = CLASSES
) -> None:
    """Write what the start-up asks for. Raises ConfigError when that clashes with what is stored."""
    try:
        for policy in policies:
            if policy.name not in state.known.records:
                await state.put(policy, by=STARTER, at=time.time())
        if ttl_s is not None:
            await _set_default(state, ttl_s, classes)
    except PolicyRefused as error:
        raise ConfigError(f"policy: {error}") from error
    except StateError as error:
        raise ConfigError(str(error)) from error


async def _set_default(state: SharedState, ttl_s: float, classes: RetentionClasses) -> None:
    """Write a new version of the default policy if its TTL is another one; a ceiling below it is lifted to it."""
    for _ in range(ATTEMPTS):
        current = state.known.policies.get(DEFAULT)
        assert current is not None, "the default policy always exists"
        if current.default_s == ttl_s:
            return
        ttl = classes.spell(classes.label(ttl_s))
        ceiling = current.max_ttl if current.max_s >= ttl_s else ttl
        version = state.known.version(DEFAULT)
        wanted = msgspec.structs.replace(current, default_ttl=ttl, max_ttl=ceiling, version=version)
        try:
            await state.put(wanted, by=f"{STARTER} --ttl", at=time.time())
        except StateError:
            await state.read()
        else:
            return
    raise ConfigError("--ttl could not be written: other gateways keep changing the default policy")
