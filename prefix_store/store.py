"""Shared state behind one protocol: policies and their versions, the audit trail, counters, the feed of changes.

Owns: the values that cross the border and every decision about a change, taken in plain code. Knows no SQLite, no
Redis, no clock: what was done when is told by the caller in wall-clock seconds, expiry is each store's own.
Rule: a store only reads a snapshot and commits the next one against the revision it read; whether a change is
right is decided here, once, for all of them.

StateError
├── VersionConflict         the caller's: someone else changed the policy first
├── UnknownPolicy           the caller's: no policy of that name
├── StoreUnavailable        nobody's: the store does not answer now; nothing is pretended
└── StateRefused            the operator's: this file, server or setting cannot be used; says what to do
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from prefix_store.policy import Policy, PolicyRefused, PolicySet

Json = dict[str, object]

SCHEMA = 1  # of everything stored; a store written by a later one is refused


class StateError(Exception):
    """Root of every error that a store raises on purpose."""


class VersionConflict(StateError):
    """The policy is at another version than the caller changed; read it again."""

    def __init__(self, name: str, *, expected: int, actual: int) -> None:
        stands = f"stands at version {actual}" if actual else "does not exist"
        super().__init__(f"policy {name!r} {stands}, not at {expected}: read it again and repeat the change")
        self.name, self.expected, self.actual = name, expected, actual


class UnknownPolicy(StateError):
    """There is no policy of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no policy {name!r}")
        self.name = name


class StoreUnavailable(StateError):
    """The store does not answer. `perhaps` is True when a write had been sent: it may or may not have been done."""

    def __init__(self, message: str, *, perhaps: bool = False) -> None:
        super().__init__(message)
        self.perhaps = perhaps


class StateRefused(StateError):
    """State that must not be used, or settings that make no sense; the message says what to do."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored under a policy's name. A deleted policy leaves its version, so that none is ever given twice."""

    name: str
    version: int
    policy: Policy | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All policies at one revision. `epoch` names one life of the stored data: another epoch means it was lost."""

    records: Mapping[str, Record]
    policies: PolicySet
    epoch: str = ""
    revision: int = 0

    @classmethod
    def of(cls, records: Mapping[str, Record], *, built_in: Policy, epoch: str = "", revision: int = 0) -> Snapshot:
        """Return the snapshot that holds these records; raises PolicyRefused where they contradict each other."""
        live = tuple(record.policy for record in records.values() if record.policy is not None)
        policies = PolicySet(live, built_in=built_in)
        return cls(records=records, policies=policies, epoch=epoch, revision=revision)

    def version(self, name: str) -> int:
        """Return the version that a change of `name` must state: 0 for a policy that is not stored."""
        record = self.records.get(name)
        return 0 if record is None or record.policy is None else record.version


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the audit trail: who did what, when (wall clock, seconds), and the state before and after."""

    by: str
    at: float
    what: str
    subject: str
    before: Json | None = None
    after: Json | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A decided change, ready to commit against the revision it was decided on."""

    records: tuple[Record, ...]
    entry: Entry


def decide_put(snapshot: Snapshot, policy: Policy, *, by: str, at: float) -> Change:
    """Return the change that stores `policy`; raises VersionConflict, or PolicyRefused where it clashes."""
    actual = snapshot.version(policy.name)
    if policy.version != actual:
        raise VersionConflict(policy.name, expected=policy.version, actual=actual)
    snapshot.policies.adding(policy)
    last = snapshot.records.get(policy.name)
    stored = msgspec.structs.replace(policy, version=1 if last is None else last.version + 1)
    entry = Entry(by=by, at=at, what="policy.put", subject=policy.name, before=_json(last), after=_plain(stored))
    return Change(records=(Record(name=stored.name, version=stored.version, policy=stored),), entry=entry)


def decide_delete(snapshot: Snapshot, name: str, *, version: int, by: str, at: float) -> Change:
    """Return the change that deletes the policy; raises UnknownPolicy, VersionConflict, or PolicyRefused."""
    if snapshot.policies.get(name) is None:
        raise UnknownPolicy(name)
    snapshot.policies.removing(name)
    last = snapshot.records[name]
    if version != last.version:
        raise VersionConflict(name, expected=version, actual=last.version)
    entry = Entry(by=by, at=at, what="policy.delete", subject=name, before=_json(last))
    return Change(records=(Record(name=name, version=last.version + 1),), entry=entry)


def decide_reseed(shared: Snapshot, local: Snapshot, *, built_in: Policy, by: str, at: float) -> Change:
    """Return the change that gives a store back what it lost: of each policy the highest version, the store's on a tie.

    Two policies with one selector, which only a store that lost its data can bring together, leave the one with
    the higher version; the other is deleted.
    """
    merged = dict(shared.records)
    for name, record in local.records.items():
        if name not in merged or merged[name].version < record.version:
            merged[name] = record
    policies = PolicySet((), built_in=built_in)
    for record in sorted(merged.values(), key=lambda r: (-r.version, r.name not in shared.records, r.name)):
        if record.policy is None:
            continue
        try:
            policies = policies.adding(record.policy)
        except PolicyRefused:
            merged[record.name] = Record(name=record.name, version=record.version + 1)
    changed = tuple(record for name, record in merged.items() if shared.records.get(name) != record)
    restored: Json = {record.name: record.version for record in changed}
    entry = Entry(by=by, at=at, what="policies.reseed", subject="", after=restored)
    return Change(records=changed, entry=entry)


def apply(snapshot: Snapshot, change: Change, *, built_in: Policy, epoch: str, revision: int) -> Snapshot:
    """Return the snapshot after a change has been committed as `revision`."""
    records = dict(snapshot.records) | {record.name: record for record in change.records}
    return Snapshot.of(records, built_in=built_in, epoch=epoch, revision=revision)


def _json(record: Record | None) -> Json | None:
    return None if record is None or record.policy is None else _plain(record.policy)


def _plain(policy: Policy) -> Json:
    plain: Json = msgspec.to_builtins(policy)
    return plain | {"allowed_ttls": list(policy.allowed_ttls)}


class SharedState(Protocol):
    """State that outlives a gateway and that several may share. Async where it may wait, plain where it may not."""

    @property
    def known(self) -> Snapshot:
        """The newest snapshot seen here. Never waits; this is what requests use."""

    @property
    def degraded(self) -> str | None:
        """Why the store is on local knowledge only, or None when it answers."""

    async def read(self) -> Snapshot:
        """Return the newest snapshot, from local knowledge while degraded. Never raises."""

    async def put(self, policy: Policy, *, by: str, at: float) -> Policy:
        """Store `policy` over the version it states and return it at its new one.

        Raises VersionConflict, PolicyRefused (its selector is taken), StoreUnavailable.
        """

    async def delete(self, name: str, *, version: int, by: str, at: float) -> None:
        """Delete that version. Raises UnknownPolicy, VersionConflict, PolicyRefused (`default`), StoreUnavailable."""

    async def record(self, entry: Entry) -> None:
        """Add a line to the audit trail for something done elsewhere, such as a purge. Raises StoreUnavailable."""

    async def audit(self, *, limit: int = 100, skip: int = 0) -> tuple[Entry, ...]:
        """Return up to `limit` lines, newest first, after the newest `skip`. Raises StoreUnavailable."""

    async def count(self, space: str, increments: Mapping[str, int], *, ttl_s: float) -> None:
        """Add to the counters of a space, all or none; the whole space is forgotten `ttl_s` after its last increment.

        `ttl_s` is above zero. Raises StoreUnavailable.
        """

    async def counters(self, space: str) -> dict[str, int]:
        """Return the counters of a space that is not forgotten, else {}. Raises StoreUnavailable."""

    async def keep(self, space: str, items: Mapping[str, bytes], *, ttl_s: float) -> None:
        """Keep values under a space, each until `ttl_s` after it was last written. They may go before their time.

        `ttl_s` is above zero. Raises StoreUnavailable; then some may have been kept and some not.
        """

    async def recall(self, space: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of the values that are still kept. Raises StoreUnavailable."""

    async def forget(self, space: str) -> None:
        """Forget every value that is kept under a space. Raises StoreUnavailable; then some may be left."""

    def watch(self) -> AsyncIterator[Snapshot]:
        """Go over what is known: now, then at each change seen here. A slow reader skips to the newest."""

    async def close(self) -> None:
        """Let go of everything; watchers end. Closing twice is allowed."""
