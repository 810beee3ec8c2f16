"""Earlier requests of a tenant, and the hashes of their tokens, remembered here and in the state that gateways share.

Owns what is on its way to the shared state; what is here is `remembered`'s. Knows no request and no text. Rules:
remembering never waits; the shared state is asked only where memory has no answer, and not for longer than `wait_s`;
while it is away, what is known here is all there is. Every name under which something is shared is a digest under the
secret and the tenant, so no tenant finds another's, and a gateway with another secret finds nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gateway.flushing import flushing
from gateway.remembered import MOST_BYTES, Memory, nearest
from gateway.shelf import largest, rendered
from prefix_store.fingerprints import Fingerprint, Keyed, decode, encode
from prefix_store.store import SharedState, StateError

T = TypeVar("T")

FLUSH_S = 2.0
KEEP_S = 86_400.0
WAIT_S = 0.25
WAITING_BYTES = 16 << 20  # on their way to the shared state; above it the oldest go
CALL_BYTES = 1 << 20  # handed over in one call
POINTERS = 16  # parts under which a request can be found by other gateways


@dataclass(frozen=True, slots=True)
class _Parcel:
    """One request on its way: values by name, and which parts' hashes are among them."""

    tenant: str
    items: Mapping[str, bytes]
    parts: Sequence[bytes]
    bytes: int


class Recall:
    """Remembers and finds fingerprints."""

    def __init__(
        self,
        state: SharedState,
        *,
        secret: bytes,
        most_bytes: int = MOST_BYTES,
        waiting_bytes: int = WAITING_BYTES,
        keep_s: float = KEEP_S,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Remember in memory and in `state`. The gateways that are to find each other's have one `secret`."""
        self._state, self._secret = state, secret
        self._keep_s, self._wait_s, self._clock = keep_s, wait_s, clock
        self._memory = Memory(most_bytes=most_bytes, ttl_s=keep_s)
        self._waiting: deque[_Parcel] = deque()
        self._waiting_bytes, self._most_waiting = 0, waiting_bytes
        self._sharing = asyncio.Lock()  # so that nothing is on its way to the shared state while a tenant is forgotten
        self.dropped = 0  # requests that never reached the shared state

    @property
    def tenants(self) -> tuple[str, ...]:
        """Of whom something is remembered here."""
        return self._memory.tenants

    def keyed(self, tenant: str) -> Keyed:
        """Return the digests in which this tenant's requests are remembered."""
        return Keyed(self._secret, tenant)

    def remember(self, tenant: str, fingerprint: Fingerprint, hashes: Mapping[bytes, bytes]) -> None:
        """Remember a request. `hashes` are those of its parts, by `rendered`; of known parts they may be left out."""
        now = self._clock()
        self._memory.put(tenant, fingerprint, hashes, now)
        half_over = now - self._keep_s / 2  # what was shared before then is shared anew
        keys = self._memory.unshared(tenant, rendered(fingerprint), half_over)
        shared = self._memory.hashes(tenant, keys) | {key: hashes[key] for key in keys if key in hashes}
        names = _Names(self.keyed(tenant))
        items = {names.hashes(key): data for key, data in shared.items()}
        items[names.record(fingerprint.id)] = encode(fingerprint)
        items |= dict.fromkeys(names.pointers(fingerprint), fingerprint.id.encode())
        parcel = _Parcel(tenant, items, tuple(shared), sum(len(key) + len(data) for key, data in items.items()))
        self._memory.share(tenant, parcel.parts, now)
        self._waiting.append(parcel)
        self._waiting_bytes += parcel.bytes
        self._drop_oldest()

    async def find(self, tenant: str, current: Fingerprint, *, named: str | None) -> Fingerprint | None:
        """Return the earlier request to compare with, never the current one itself.

        The one that the client named, or None; else the latest of its partition, where it gave one; else the nearest.
        """
        now = self._clock()
        if named is not None:
            if named == current.id:
                return None
            known = self._memory.get(tenant, named, now)
            return known or await self._ask(self._fetch_one(tenant, named), None)
        if current.partition:
            known = self._memory.latest(tenant, current.partition, now, but=current.id)
            if known is not None:
                return known
        near = self._memory.nearest(tenant, current, now)
        if near is not None and not current.partition:
            return near
        return await self._ask(self._search(tenant, current, near), near)

    async def hashes(self, tenant: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the token hashes of parts, by `rendered`; those that nobody knows are left out."""
        known = self._memory.hashes(tenant, keys)
        missing = [key for key in keys if key not in known]
        if missing:
            fetched = await self._ask(self._fetch_hashes(tenant, missing), {})
            self._memory.learn(tenant, fetched)
            known |= fetched
        return known

    async def forget(self, tenant: str) -> bool:
        """Forget all of a tenant, here and in the shared state. Say whether the shared state did too.

        What other gateways have in their own memory stays there until its time is over.
        """
        async with self._sharing:
            self._memory.forget(tenant)
            self._waiting = deque(parcel for parcel in self._waiting if parcel.tenant != tenant)
            self._waiting_bytes = sum(parcel.bytes for parcel in self._waiting)
            try:
                await self._state.forget(_Names(self.keyed(tenant)).space)
            except StateError:
                return False
        return True

    # ---- from the shared state ----

    async def _ask(self, question: Coroutine[Any, Any, T], otherwise: T) -> T:
        """Return the shared state's answer, or what is known without it."""
        try:
            async with asyncio.timeout(self._wait_s):
                return await question
        except (StateError, TimeoutError):
            return otherwise

    async def _search(self, tenant: str, current: Fingerprint, near: Fingerprint | None) -> Fingerprint | None:
        """Look where other gateways left pointers: the partition's first, then those of parts unless one is near."""
        names = _Names(self.keyed(tenant))
        pointers = names.pointers(current)
        found = await self._state.recall(names.space, pointers)
        ids = {pointer: found[pointer].decode() for pointer in pointers if pointer in found}
        ids = {pointer: name for pointer, name in ids.items() if name != current.id}
        if current.partition and (same := ids.pop(names.partition(current.partition), None)) is not None:
            fetched = await self._fetch_one(tenant, same)
            if fetched is not None and fetched.partition == current.partition:
                return fetched
        if near is not None:
            return near
        return nearest(current, await self._fetch(tenant, dict.fromkeys(ids.values())))

    async def _fetch_one(self, tenant: str, name: str) -> Fingerprint | None:
        return next(iter(await self._fetch(tenant, [name])), None)

    async def _fetch(self, tenant: str, ids: Iterable[str]) -> list[Fingerprint]:
        """Return the records that are kept under these ids and alive, and remember them."""
        names, now = _Names(self.keyed(tenant)), self._clock()
        wanted = {names.record(name): name for name in ids}
        if not wanted:
            return []
        records = []
        for key, data in (await self._state.recall(names.space, list(wanted))).items():
            try:
                record = decode(data)
            except msgspec.DecodeError:
                continue
            if record.id == wanted[key] and now < record.at + self._keep_s:
                self._memory.put(tenant, record, {}, now)
                records.append(record)
        return records

    async def _fetch_hashes(self, tenant: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        names = _Names(self.keyed(tenant))
        found = await self._state.recall(names.space, [names.hashes(key) for key in keys])
        return {key: found[name] for key in keys if (name := names.hashes(key)) in found}

    # ---- to the shared state ----

    async def flush(self) -> None:
        """Hand over what waits, oldest first. What is not taken now stays for the next time."""
        while self._waiting:
            async with self._sharing:
                if not await self._hand_over():
                    return

    def flushing(self) -> AbstractAsyncContextManager[None]:
        """Flush now and then while the block runs, and once more at its end."""
        return flushing(self.flush, FLUSH_S)

    async def _hand_over(self) -> bool:
        """Hand over the oldest, if there still is one; say whether that went well."""
        if not self._waiting:
            return True
        parcels = self._take()
        items = {name: data for parcel in parcels for name, data in parcel.items.items()}
        try:
            await self._state.keep(_Names(self.keyed(parcels[0].tenant)).space, items, ttl_s=self._keep_s)
        except BaseException as error:
            self._put_back(parcels)
            if isinstance(error, StateError):
                return False
            raise
        return True

    def _take(self) -> list[_Parcel]:
        """Take the oldest parcel, and those of the same tenant behind it that fit into one call."""
        parcels = [self._waiting.popleft()]
        size = parcels[0].bytes
        while self._waiting and self._waiting[0].tenant == parcels[0].tenant:
            if size + self._waiting[0].bytes > CALL_BYTES:
                break
            parcels.append(self._waiting.popleft())
            size += parcels[-1].bytes
        self._waiting_bytes -= size
        return parcels

    def _put_back(self, parcels: Sequence[_Parcel]) -> None:
        self._waiting.extendleft(reversed(parcels))
        self._waiting_bytes += sum(parcel.bytes for parcel in parcels)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self._waiting_bytes > self._most_waiting:
            parcel = self._waiting.popleft()
            self._waiting_bytes -= parcel.bytes
            self._memory.share(parcel.tenant, parcel.parts, float("-inf"))
            self.dropped += 1


class _Names:
    """Under which names one tenant's things are shared."""

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed
        self.space = f"fp:{keyed.digest(b'space').hex()}"

    def record(self, name: str) -> str:
        return f"id:{self._keyed.digest(name.encode(errors='surrogatepass')).hex()}"  # a client may name anything

    def hashes(self, key: bytes) -> str:
        return f"hash:{key.hex()}"

    def partition(self, partition: bytes) -> str:
        return f"partition:{partition.hex()}"

    def pointers(self, fingerprint: Fingerprint) -> list[str]:
        """Return what points at the latest request that had it: the partition, the largest parts, the segments."""
        parts = [f"part:{part.content.hex()}" for part in largest(fingerprint.parts, POINTERS)]
        parts += [f"segment:{segment.hex()}" for segment in fingerprint.segments]
        return ([self.partition(fingerprint.partition)] if fingerprint.partition else []) + parts
