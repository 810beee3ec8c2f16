"""What this gateway remembers of requests: fingerprints and the hashes of their parts, tenant by tenant.

Owns the records, the parts and hashes that records share, and the bounds. Awaits nothing; time is an argument. Rules: a
part is kept once, however many records have it; when room is short, the tenant that holds most lets go of what it used
least recently, so that no tenant is pushed out by a greedier one; nothing is found across tenants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.shelf import SEGMENT_TOKENS, Shelf
from prefix_store.fingerprints import Fingerprint

MOST_BYTES = 64 << 20


class Memory:
    """All tenants' shelves under one bound."""

    def __init__(self, *, most_bytes: int = MOST_BYTES, ttl_s: float) -> None:
        """Set how much there is room for, and how long a fingerprint counts."""
        self._most, self._ttl_s = most_bytes, ttl_s
        self._shelves: dict[str, Shelf] = {}
        self.bytes = 0  # held by all, as nearly as can be counted

    def put(self, tenant: str, fingerprint: Fingerprint, hashes: Mapping[bytes, bytes], now: float) -> None:
        """Remember a request; what is over, or finds no room, goes."""
        shelf = self._shelves.setdefault(tenant, Shelf())
        before = shelf.bytes
        shelf.put(fingerprint, hashes)
        while (eldest := shelf.eldest) is not None and not self._alive(eldest, now):
            shelf.drop(eldest.id)
        self.bytes += shelf.bytes - before
        self._make_room()

    def get(self, tenant: str, name: str, now: float) -> Fingerprint | None:
        """Find a request by its id; that is a use of it."""
        shelf = self._shelves.get(tenant)
        found = None if shelf is None else shelf.get(name)
        return found if found is not None and self._alive(found, now) else None

    def latest(self, tenant: str, partition: bytes, now: float, *, but: str) -> Fingerprint | None:
        """Return the latest request of a partition, other than `but`."""
        shelf = self._shelves.get(tenant)
        records = () if shelf is None else shelf.of_partition(partition)
        return next((found for found in records if found.id != but and self._alive(found, now)), None)

    def nearest(self, tenant: str, current: Fingerprint, now: float) -> Fingerprint | None:
        """Return the request that shares most with the current one, the latest on a tie; None where none shares."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            return None
        return nearest(current, (found for found in shelf.alike(current) if self._alive(found, now)))

    def hashes(self, tenant: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the hashes that are here."""
        shelf = self._shelves.get(tenant)
        return {} if shelf is None else shelf.hashes(keys)

    def learn(self, tenant: str, hashes: Mapping[bytes, bytes]) -> None:
        """Take hashes that came from elsewhere, for parts that are here without."""
        shelf = self._shelves.get(tenant)
        if shelf is not None:
            before = shelf.bytes
            shelf.learn(hashes)
            self.bytes += shelf.bytes - before
            self._make_room()

    def unshared(self, tenant: str, keys: Sequence[bytes], since: float) -> list[bytes]:
        """Return those of the parts that have not been handed to the shared state since then."""
        shelf = self._shelves.get(tenant)
        return list(dict.fromkeys(keys)) if shelf is None else shelf.unshared(keys, since)

    def share(self, tenant: str, keys: Iterable[bytes], at: float) -> None:
        """Note when these parts were handed to the shared state."""
        shelf = self._shelves.get(tenant)
        if shelf is not None:
            shelf.share(keys, at)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Of whom something is remembered."""
        return tuple(self._shelves)

    def forget(self, tenant: str) -> None:
        """Forget all of a tenant."""
        shelf = self._shelves.pop(tenant, None)
        if shelf is not None:
            self.bytes -= shelf.bytes

    def check(self) -> None:
        """Assert every invariant."""
        for shelf in self._shelves.values():
            shelf.check()
        assert self.bytes == sum(shelf.bytes for shelf in self._shelves.values()), "the sum is the sum"
        assert self.bytes <= self._most, "the bound holds"

    def _alive(self, fingerprint: Fingerprint, now: float) -> bool:
        return now < fingerprint.at + self._ttl_s

    def _make_room(self) -> None:
        while self.bytes > self._most:
            tenant = max(self._shelves, key=lambda name: self._shelves[name].bytes)
            shelf = self._shelves[tenant]
            eldest = shelf.eldest
            assert eldest is not None, "an empty shelf weighs nothing"
            self.bytes -= shelf.bytes
            shelf.drop(eldest.id)
            self.bytes += shelf.bytes


def nearest(current: Fingerprint, others: Iterable[Fingerprint]) -> Fingerprint | None:
    """Return the one with most of the current request's tokens in parts that it had too, the latest on a tie.

    Between equal ones, one whose answer has come back in the current request is nearer.
    """
    best, best_rank = None, (0, 0, 0.0)
    for other in others:
        if other.id == current.id:
            continue
        had = {part.content for part in other.parts if part.kind != "opening"}
        answer = None if other.answer is None else other.answer.content
        shared = answered = 0
        for part in current.parts:
            if part.kind != "opening":
                tokens = part.end - part.begin
                shared += tokens * (part.content in had)
                answered += tokens * (part.content == answer)
        shared += SEGMENT_TOKENS * len({*current.segments} & {*other.segments})
        rank = (shared, answered, other.at)
        if shared and rank > best_rank:
            best, best_rank = other, rank
    return best
