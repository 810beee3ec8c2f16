"""State in a Redis that several gateways share.

Owns: what is stored under which key, and the tasks that follow the other gateways. What a change means is decided in
`store`, how a call is made in `redis_link`; atomic steps are the scripts beside.
Rule: while the server does not answer, reads come from local knowledge and writes are refused; a server that lost
its data is given back the highest versions known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from redis.commands.core import AsyncScript

from prefix_store.breaker import Breaker
from prefix_store.feed import Feed
from prefix_store.policy import Policy, default_policy
from prefix_store.redis_link import AWAY, RedisLink, shut_out
from prefix_store.redis_settings import RedisSettings
from prefix_store.store import (
    SCHEMA,
    Change,
    Entry,
    Record,
    Snapshot,
    StateRefused,
    StoreUnavailable,
    apply,
    decide_delete,
    decide_put,
    decide_reseed,
)

POLL_S = 0.25  # a lost message heals within this and one call
RACES = 16  # lost to other writers before a change is given up
KEPT_BYTES = 256 << 10  # sent in one call, so that a call of many values keeps within the timeout
KEPT_KEYS = 64  # read in one call
SCANNED = 1000  # keys that the server looks at in one call while a space is forgotten
SELF = "keepwarm"  # who the audit trail says has re-seeded

_decode_record = msgspec.json.Decoder(Record).decode
_decode_entry = msgspec.json.Decoder(Entry).decode


class RedisStore:
    """`SharedState` over Redis or Valkey. `open` is the way in; it succeeds while the server is away."""

    def __init__(self, settings: RedisSettings, link: RedisLink, scripts: Mapping[str, str], built_in: Policy) -> None:
        """Take what `open` has read; nothing is connected yet."""
        self._link, self._key_of, self._where = link, settings.key_of, settings.where
        self._prefix = settings.prefix
        self._scripts: dict[str, AsyncScript] = {
            name: link.redis.register_script(text) for name, text in scripts.items()
        }
        kinds = ("meta", "policies", "audit", "channel")
        self._meta, self._policies, self._audit, self._channel = map(settings.key_of, kinds)
        self._built_in = built_in
        self._feed = Feed(Snapshot.of({}, built_in=built_in))
        self._unread = ""  # why the policies on an answering server make no sense
        self._look = asyncio.Event()  # set: do not wait for the poll
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    @classmethod
    async def open(
        cls,
        settings: RedisSettings,
        *,
        built_in: Policy | None = None,
        breaker: Breaker | None = None,
        poll_s: float = POLL_S,
    ) -> RedisStore:
        """Connect and begin to follow. Raises StateRefused where waiting cannot help: credentials, a later schema.

        `built_in` is the `default` policy until one is stored.
        """
        scripts = await asyncio.to_thread(_read_files, settings)
        store = cls(settings, RedisLink(settings, breaker or Breaker()), scripts, built_in or default_policy())
        try:
            await store._refresh()
        except StoreUnavailable as error:
            if shut_out(error):
                await store.close()
                raise StateRefused(
                    f"{error}. Correct the user and password, or what the server lets this user do."
                ) from error
        except StateRefused:
            await store.close()
            raise
        store._tasks = (asyncio.create_task(store._follow(poll_s)), asyncio.create_task(store._listen(poll_s)))
        return store

    @property
    def known(self) -> Snapshot:
        """The newest snapshot seen here."""
        return self._feed.newest

    @property
    def degraded(self) -> str | None:
        """Why the store is on local knowledge only, or None when the server answers."""
        return self._link.trouble or self._unread or None

    async def read(self) -> Snapshot:
        """Return the newest snapshot, from local knowledge while degraded."""
        with contextlib.suppress(StoreUnavailable, StateRefused):  # `degraded` says which
            await self._refresh()
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
        await self._link.write(lambda: self._link.redis.rpush(self._audit, msgspec.json.encode(entry)))

    async def audit(self, *, limit: int = 100, skip: int = 0) -> tuple[Entry, ...]:
        """Return up to `limit` lines of the audit trail, newest first, after the newest `skip`."""
        if limit <= 0:
            return ()
        lines: list[Any] = await self._link.read(lambda: self._link.redis.lrange(self._audit, -skip - limit, -skip - 1))
        return tuple(_decode_entry(line) for line in reversed(lines))

    async def count(self, space: str, increments: Mapping[str, int], *, ttl_s: float) -> None:
        """Add to the counters of a space, which this server's clock forgets `ttl_s` after its last increment."""
        if increments:
            arguments: list[Any] = [max(1, round(ttl_s * 1000))]
            for name, by in increments.items():
                arguments += name, by
            await self._link.write(lambda: self._scripts["count"](keys=[self._space(space)], args=arguments))

    async def counters(self, space: str) -> dict[str, int]:
        """Return the counters of a space."""
        found: dict[Any, Any] = await self._link.read(lambda: self._link.redis.hgetall(self._space(space)))
        return {name.decode(): int(value) for name, value in found.items()}

    async def keep(self, space: str, items: Mapping[str, bytes], *, ttl_s: float) -> None:
        """Keep values under a space, each for `ttl_s` of this server's clock."""
        ttl_ms = max(1, round(ttl_s * 1000))
        for some in _portions(items):
            pipeline = self._link.redis.pipeline(transaction=False)
            for key, value in some:
                _ = pipeline.set(self._kept(space, key), value, px=ttl_ms)
            await self._link.write(pipeline.execute)

    async def recall(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of the values that are still kept."""
        found: dict[str, bytes] = {}
        for begin in range(0, len(keys), KEPT_KEYS):
            some = keys[begin : begin + KEPT_KEYS]
            names = [self._kept(space, key) for key in some]
            values: list[Any] = await self._link.read(partial(self._link.redis.mget, names))
            found |= {key: value for key, value in zip(some, values, strict=True) if value is not None}
        return found

    async def forget(self, space: str) -> None:
        """Forget every value that is kept under a space, going over the server's keys some at a time."""
        every = _literally(self._key_of("kept", space)) + ":*"
        cursor = 0
        while True:
            cursor, names = await self._link.read(partial(self._link.redis.scan, cursor, match=every, count=SCANNED))
            if names:
                await self._link.write(partial(self._link.redis.unlink, *names))
            if not cursor:
                return

    def watch(self) -> AsyncIterator[Snapshot]:
        """Go over what is known: now, then at each change seen here."""
        return self._feed.watch()

    async def close(self) -> None:
        """Stop following, end the watchers and hang up."""
        self._feed.close()
        tasks, self._tasks = self._tasks, ()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.close()

    # ---- policies ----

    def _kept(self, space: str, key: str) -> str:
        """Return the key of a value; all of a space begin alike, so that they can be found together."""
        return f"{self._key_of('kept', space)}:{self._key_of('kept', space, key).removeprefix(self._prefix)}"

    def _space(self, space: str) -> str:
        return self._key_of("counters", space)

    async def _refresh(self) -> Snapshot:
        """Return what the server holds; where that is less than what is known here, give it back first."""
        for _ in range(RACES):
            shared, known = await self._fetch(), self.known
            lost = shared.epoch != known.epoch or shared.revision < known.revision
            if not (lost and known.records):
                self._feed.publish(shared)
                return shared
            change = decide_reseed(shared, known, built_in=self._built_in, by=SELF, at=time.time())
            restored = await self._commit(shared, change, above=known.revision)
            if restored is not None:
                return restored
        raise self._contended()

    async def _change(self, decide: Callable[[Snapshot], Change]) -> Change:
        """Decide on what the server holds and commit it, again while other writers are faster."""
        for _ in range(RACES):
            shared = await self._refresh()
            change = decide(shared)
            if await self._commit(shared, change) is not None:
                return change
        raise self._contended()

    async def _fetch(self) -> Snapshot:
        known = self.known
        reply = await self._link.read(
            lambda: self._scripts["read"](keys=[self._meta, self._policies], args=[known.epoch, known.revision])
        )
        try:
            epoch, revision, schema = reply[0].decode(), int(reply[1]), int(reply[2])
            if schema > SCHEMA:
                raise self._refused(f"was written by a later version (schema {schema}, here {SCHEMA})")
            shared = known
            if len(reply) == 4:  # noqa: PLR2004 - the script's short answer lacks the records: they are known
                records = {record.name: record for record in map(_decode_record, reply[3])}
                shared = Snapshot.of(records, built_in=self._built_in, epoch=epoch, revision=revision)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._refused(f"holds policies that make no sense ({error})") from error
        self._unread = ""
        return shared

    async def _commit(self, shared: Snapshot, change: Change, *, above: int = 0) -> Snapshot | None:
        """Commit a change decided on `shared` as a revision over `above`; None when another revision stands by now."""
        epoch = shared.epoch or secrets.token_hex(8)
        revision = max(shared.revision, above) + 1
        arguments: list[Any] = [shared.epoch, shared.revision, epoch, revision, SCHEMA, self._channel]
        arguments.append(msgspec.json.encode(change.entry))
        for record in change.records:
            arguments += self._key_of("policy", record.name), msgspec.json.encode(record)
        keys = [self._meta, self._policies, self._audit]
        if not await self._link.write(lambda: self._scripts["commit"](keys=keys, args=arguments)):
            return None
        snapshot = apply(shared, change, built_in=self._built_in, epoch=epoch, revision=revision)
        self._feed.publish(snapshot)
        return snapshot

    def _contended(self) -> StoreUnavailable:
        return StoreUnavailable(f"the shared state at {self._where} is being changed too fast; try again")

    def _refused(self, problem: str) -> StateRefused:
        self._unread = f"the shared state at {self._where} {problem}"
        return StateRefused(f"{self._unread}. Nothing was changed there. Correct it, or name another server or prefix.")

    # ---- following ----

    async def _follow(self, poll_s: float) -> None:
        """Look whenever a message says so, and in any case once a poll; the poll is also what finds recovery."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll_s):
                    await self._look.wait()
            self._look.clear()
            await self.read()

    async def _listen(self, poll_s: float) -> None:
        """Turn each message into a look. What is missed while not subscribed, the poll finds."""
        while True:
            with contextlib.suppress(*AWAY):
                async with self._link.redis.pubsub(ignore_subscribe_messages=True) as messages:
                    async with asyncio.timeout(self._link.timeout_s):
                        await messages.subscribe(self._channel)
                    while True:
                        if await messages.get_message(timeout=None) is not None:
                            self._look.set()
            await asyncio.sleep(poll_s)


def _portions(items: Mapping[str, bytes]) -> Iterator[list[tuple[str, bytes]]]:
    """Split into lists of KEPT_BYTES or little more each."""
    portion: list[tuple[str, bytes]] = []
    size = 0
    for key, value in items.items():
        portion.append((key, value))
        size += len(key) + len(value)
        if size >= KEPT_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _literally(text: str) -> str:
    """Return the pattern that only this text matches."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)


def _read_files(settings: RedisSettings) -> dict[str, str]:
    """Return the scripts by name, once the files that the settings name are there."""
    for option, path in (("ca", settings.ca), ("cert", settings.cert), ("key", settings.key)):
        if path is not None and not Path(path).is_file():
            raise StateRefused(f"{option}: there is no file {path!r}")
    folder = resources.files("prefix_store") / "scripts"
    return {name: (folder / f"{name}.lua").read_text("utf-8") for name in ("read", "commit", "count")}
