"""The latest exchanges, kept whole so that an operator can look at one.

Owns a ring of records, bounded by count and by bytes. Knows no HTTP, no JSON and no clock. Rules: it is told of an
exchange and asks for none; the oldest goes first; a place in the ring is good for this process only, and one of another
process is recognised.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.record import Record

MOST = 2_000
MOST_BYTES = 64 << 20
# what things take in memory, measured
RECORD_BYTES = 800
MISS_BYTES = 320
MARK_BYTES = 180
WRITTEN_BYTES = 100
COMPARISON_BYTES = 700


class UnknownPlace(Exception):
    """The place was never given out by this ring."""


@dataclass(frozen=True, slots=True)
class Page:
    """Records, the latest first. `next` is where to go on, None where there is nothing more."""

    records: tuple[Record, ...]
    next: str | None
    places: tuple[str, ...] = ()  # one for each record: where to go on after it


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    record: Record
    bytes: int


class Recent:
    """A witness that remembers."""

    def __init__(self, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        """Keep up to `most` records, in about `most_bytes`."""
        self._most, self._most_bytes = most, most_bytes
        self.life = secrets.token_hex(4)  # what places of this ring begin with
        self._ring: deque[_Kept] = deque()
        self._by_id: dict[str, _Kept] = {}
        self._count = 0
        self.bytes = 0  # held, as nearly as can be counted

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._ring)

    @property
    def since(self) -> float | None:
        """When the oldest that is kept arrived."""
        return self._ring[0].record.at if self._ring else None

    def ended(self, record: Record, tokens: bytes) -> None:  # noqa: ARG002 - a witness; tokens are not for keeping
        """Keep one exchange."""
        self._count += 1
        kept = _Kept(self._count, record, _bytes(record))
        self._ring.append(kept)
        self._by_id[record.id] = kept
        self.bytes += kept.bytes
        while len(self._ring) > self._most or self.bytes > self._most_bytes:
            gone = self._ring.popleft()
            self.bytes -= gone.bytes
            if self._by_id.get(gone.record.id) is gone:
                del self._by_id[gone.record.id]

    @property
    def top(self) -> str:
        """The place before which all is that is kept now."""
        return self._place(self._count + 1)

    def get(self, name: str) -> Record | None:
        """Return the exchange of that id, the latest where several had it."""
        kept = self._by_id.get(name)
        return None if kept is None else kept.record

    def page(self, accepts: Callable[[Record], bool], *, limit: int, before: str | None = None) -> Page:
        """Return up to `limit` records that are accepted, the latest first. Raises UnknownPlace."""
        border = self._number(before)
        found: list[_Kept] = []
        for kept in reversed(self._ring):
            if (border is None or kept.number < border) and accepts(kept.record):
                if len(found) == limit:
                    return self._page(found, more=True)
                found.append(kept)
        return self._page(found, more=False)

    def _page(self, found: list[_Kept], *, more: bool) -> Page:
        places = tuple(self._place(one.number) for one in found)
        return Page(tuple(one.record for one in found), places[-1] if more else None, places)

    def _place(self, number: int) -> str:
        return f"{self.life}-{number}"

    def _number(self, place: str | None) -> int | None:
        if place is None:
            return None
        life, _, number = place.partition("-")
        if life != self.life or not (number.isascii() and number.isdecimal() and len(number) < 20):  # noqa: PLR2004
            raise UnknownPlace(place)
        return int(number)


def _bytes(record: Record) -> int:
    facts = record.prompt
    if facts is None:
        return RECORD_BYTES
    return (
        RECORD_BYTES
        + MISS_BYTES * len(facts.misses)
        + MARK_BYTES * len(facts.retention)
        + WRITTEN_BYTES * len(facts.written)
        + (0 if facts.comparison is None else COMPARISON_BYTES)
    )
