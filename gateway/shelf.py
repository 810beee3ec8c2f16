"""One tenant's remembered requests, with the parts and hashes that they share and the indexes over them.

Owns one shelf. Knows no clock, no bound and no other tenant. Rule: what only a dropped record used goes with it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from prefix_store.fingerprints import Fingerprint, Part

HOLDERS = 8  # latest requests known for one content or partition
CANDIDATES = 3  # by each of two counts, looked at closely when the nearest is sought
_SHIFT = 40  # tokens that were asked count before tokens that were answered
# what things take in memory, measured; places in dictionaries included
RECORD_BYTES = 900
SETTING_BYTES = 160
LINK_BYTES = 8  # one record's use of a part
PART_BYTES = 420
HASHES_BYTES = 160
HOLDERS_BYTES = 120
SEGMENT_ENTRY_BYTES = 56
SEGMENT_TOKENS = 8  # what sharing a segment counts for beside sharing a part
HOLDER_BYTES = 8


class _Used:
    """A part, and how many records have it."""

    __slots__ = ("part", "records")

    def __init__(self, part: Part) -> None:
        self.part, self.records = part, 0


class _Hashes:
    """The hashes of a part's tokens, how many parts and answers are made of them, and when they were last shared."""

    __slots__ = ("data", "shared_at", "users")

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.shared_at = float("-inf")
        self.users = 0


class Shelf:
    """Fingerprints by id, least recently used first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._records: OrderedDict[str, Fingerprint] = OrderedDict()
        self._parts: dict[Part, _Used] = {}
        self._hashes: dict[bytes, _Hashes] = {}  # by `rendered`
        self._holders: dict[bytes, tuple[str, ...]] = {}  # content, answer or partition → ids, oldest first

    @property
    def eldest(self) -> Fingerprint | None:
        """The least recently used record."""
        return next(iter(self._records.values()), None)

    def put(self, fingerprint: Fingerprint, hashes: Mapping[bytes, bytes]) -> None:
        """Remember a request, in the place of one with its id."""
        if fingerprint.id in self._records:
            self._replace(fingerprint, hashes)
            return
        parts = tuple(map(self._use, fingerprint.parts))
        kept = self._records[fingerprint.id] = msgspec.structs.replace(fingerprint, parts=parts)
        if kept.answer is not None:
            self._use_hashes(kept.answer.rendered)
        for key in _marks(kept):
            self._hold(key, kept.id)
        self.bytes += _record_bytes(kept)
        self.learn(hashes)

    def drop(self, name: str) -> None:
        """Forget a request and what only it used."""
        record = self._records.pop(name)
        self.bytes -= _record_bytes(record)
        for key in _marks(record):
            self._unhold(key, name)
        for part in record.parts:
            used = self._parts[part]
            used.records -= 1
            if not used.records:
                del self._parts[part]
                self.bytes -= PART_BYTES
                self._release_hashes(part.rendered)
        if record.answer is not None:
            self._release_hashes(record.answer.rendered)

    def get(self, name: str) -> Fingerprint | None:
        """Find a request by its id; that is a use of it."""
        record = self._records.get(name)
        if record is not None:
            self._records.move_to_end(name)
        return record

    def of_partition(self, partition: bytes) -> list[Fingerprint]:
        """Return requests of a partition, latest first."""
        names = reversed(self._holders.get(_of_partition(partition), ()))
        return sorted((self._records[name] for name in names), key=lambda record: record.at, reverse=True)

    def alike(self, current: Fingerprint) -> list[Fingerprint]:
        """Return the few requests that seem to share most with the current one, later ones first."""
        votes: dict[str, int] = {}
        rare: dict[str, int] = {}  # from what few have: of what many have, only the latest are known
        for part in current.parts:
            if part.kind != "opening":
                tokens = part.end - part.begin
                holders = self._holders.get(part.content, ())
                for name in holders:
                    votes[name] = votes.get(name, 0) + (tokens << _SHIFT)
                    if len(holders) < HOLDERS:
                        rare[name] = rare.get(name, 0) + tokens
                for name in self._holders.get(_of_answer(part.content), ()):
                    votes[name] = votes.get(name, 0) + tokens
        for segment in current.segments:
            for name in self._holders.get(_of_segment(segment), ()):
                votes[name] = votes.get(name, 0) + (SEGMENT_TOKENS << _SHIFT)
        names = {name for counts in (votes, rare) for name in self._most(counts, but=current.id)}
        return sorted((self._records[name] for name in names), key=lambda record: record.at, reverse=True)

    def hashes(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the hashes that are here."""
        found = ((key, self._hashes.get(key)) for key in keys)
        return {key: held.data for key, held in found if held is not None and held.data is not None}

    def learn(self, hashes: Mapping[bytes, bytes]) -> None:
        """Take hashes of parts that are here without."""
        for key, data in hashes.items():
            held = self._hashes.get(key)
            if held is not None and held.data is None:
                held.data = data
                self.bytes += len(data)

    def unshared(self, keys: Iterable[bytes], since: float) -> list[bytes]:
        """Return the keys, each once, of parts that were not shared since then."""
        found = ((key, self._hashes.get(key)) for key in dict.fromkeys(keys))
        return [key for key, held in found if held is None or held.shared_at < since]

    def share(self, keys: Iterable[bytes], at: float) -> None:
        """Note when parts were shared."""
        for key in keys:
            held = self._hashes.get(key)
            if held is not None:
                held.shared_at = at

    def check(self) -> None:
        """Assert every invariant."""
        records, parts, hashes = self._records.values(), self._parts, self._hashes
        uses = [part for record in records for part in record.parts]
        assert parts.keys() == set(uses), "parts are those of the records"
        assert sum(used.records for used in parts.values()) == len(uses), "every use is counted"
        made = [part.rendered for part in parts] + [record.answer.rendered for record in records if record.answer]
        assert hashes.keys() == set(made), "hashes are those of the parts and answers"
        assert sum(held.users for held in hashes.values()) == len(made), "every user is counted"
        assert all(0 < len(names) <= HOLDERS for names in self._holders.values()), "holders are few and some"
        for key, names in self._holders.items():
            assert all(key in _marks(self._records[name]) for name in names), "a holder holds what it is named for"
        weight = sum(map(_record_bytes, records)) + len(parts) * PART_BYTES
        weight += sum(HASHES_BYTES + len(held.data or b"") for held in hashes.values())
        weight += sum(HOLDERS_BYTES + HOLDER_BYTES * len(names) for names in self._holders.values())
        assert self.bytes == weight, "the sum is the sum"

    def _most(self, votes: dict[str, int], *, but: str) -> list[str]:
        votes.pop(but, None)
        return heapq.nlargest(CANDIDATES, votes, key=lambda name: (votes[name], self._records[name].at))

    def _replace(self, fingerprint: Fingerprint, hashes: Mapping[bytes, bytes]) -> None:
        keys = rendered(fingerprint)
        for key in keys:
            self._use_hashes(key)  # else they would go with the old record
        self.drop(fingerprint.id)
        self.put(fingerprint, hashes)
        for key in keys:
            self._release_hashes(key)

    def _use(self, part: Part) -> Part:
        used = self._parts.get(part)
        if used is None:
            used = self._parts[part] = _Used(part)
            self.bytes += PART_BYTES
            self._use_hashes(part.rendered)
        used.records += 1
        return used.part

    def _use_hashes(self, key: bytes) -> None:
        held = self._hashes.get(key)
        if held is None:
            held = self._hashes[key] = _Hashes()
            self.bytes += HASHES_BYTES
        held.users += 1

    def _release_hashes(self, key: bytes) -> None:
        held = self._hashes[key]
        held.users -= 1
        if not held.users:
            del self._hashes[key]
            self.bytes -= HASHES_BYTES + len(held.data or b"")

    def _hold(self, key: bytes, name: str) -> None:
        before = self._holders.get(key)
        names = (*(before or ())[1 - HOLDERS :], name)
        self._holders[key] = names
        self.bytes += HOLDER_BYTES * (len(names) - len(before or ())) + (HOLDERS_BYTES if before is None else 0)

    def _unhold(self, key: bytes, name: str) -> None:
        before = self._holders.get(key, ())
        names = tuple(other for other in before if other != name)
        self.bytes -= HOLDER_BYTES * (len(before) - len(names))
        if names:
            self._holders[key] = names
        elif before:
            del self._holders[key]
            self.bytes -= HOLDERS_BYTES


def _marks(record: Fingerprint) -> Iterable[bytes]:
    """Return what a request can be found by, each once."""
    marks: dict[bytes, None] = dict.fromkeys(part.content for part in record.parts if part.kind != "opening")
    if record.answer is not None:
        marks[_of_answer(record.answer.content)] = None
    marks |= dict.fromkeys(map(_of_segment, record.segments))
    if record.partition:
        marks[_of_partition(record.partition)] = None
    return marks


def _of_partition(partition: bytes) -> bytes:
    return b"partition " + partition


def _of_segment(segment: bytes) -> bytes:
    return b"segment " + segment


def _of_answer(content: bytes) -> bytes:
    return b"answer " + content


def _record_bytes(record: Fingerprint) -> int:
    segments = SEGMENT_ENTRY_BYTES * len(record.segments)
    return RECORD_BYTES + segments + LINK_BYTES * len(record.parts) + SETTING_BYTES * len(record.settings)


def rendered(record: Fingerprint) -> list[bytes]:
    """Return the keys of a request's hashes, those of its answer last."""
    return [part.rendered for part in record.parts] + ([] if record.answer is None else [record.answer.rendered])


def largest(parts: Sequence[Part], most: int) -> list[Part]:
    """Return the parts with most tokens, one of each content, without the opening of the answer."""
    unlike = {part.content: part for part in parts if part.kind != "opening"}
    return heapq.nlargest(most, unlike.values(), key=lambda part: part.end - part.begin)
