"""Byte-identical text to token ids: what was tokenised once is not tokenised again.

Owns the remembered segments. Knows no tokenizer: a segment is a text between two borders at which the caller knows that
a tokenizer cuts, and what it was encoded to. Rules: a hash proposes, the text decides; one tenant's segments are never
found by another, and when memory is short the tenant that holds the most gives way first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict

import xxhash

ENTRY_BYTES = 400  # about what Python takes for an entry beside its text and ids


class Segment:
    """One text and its ids, little-endian uint32. `ends` holds where in the text each token ends, once asked for."""

    __slots__ = ("ends", "ids", "text")

    def __init__(self, text: str, ids: bytes) -> None:
        self.text = text
        self.ids = ids
        self.ends: bytes | None = None  # characters, little-endian uint32

    @property
    def tokens(self) -> int:
        """Count of tokens."""
        return len(self.ids) // 4

    @property
    def size(self) -> int:
        """Bytes of memory, about; `ends` is counted whether there or not."""
        return ENTRY_BYTES + len(self.text) * (1 if self.text.isascii() else 2) + 2 * len(self.ids)


class SegmentIndex:
    """Remembers segments up to `limit` bytes. Safe to share between threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._by_tenant: defaultdict[str, OrderedDict[int, Segment]] = defaultdict(OrderedDict)
        self._sizes: defaultdict[str, int] = defaultdict(int)
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes held, about."""
        return self._size

    def get(self, tenant: str, text: str, *, kind: int = 0) -> Segment | None:
        """Return what `text` was encoded to. `kind` tells apart ways of encoding the same text."""
        key = _key(text, kind)
        with self._lock:
            segments = self._by_tenant.get(tenant)
            found = segments.get(key) if segments else None
            if segments is None or found is None or found.text != text:
                return None
            segments.move_to_end(key)
            return found

    def put(self, tenant: str, segment: Segment, *, kind: int = 0) -> Segment:
        """Remember a segment and return it; one that is larger than all memory is not kept."""
        if segment.size > self._limit:
            return segment
        with self._lock:
            segments, key = self._by_tenant[tenant], _key(segment.text, kind)
            before = segments.pop(key, None)
            segments[key] = segment
            self._grow(tenant, segment.size - (before.size if before else 0))
            while self._size > self._limit:
                self._evict(max(self._sizes, key=self._sizes.__getitem__))
        return segment

    def _evict(self, tenant: str) -> None:
        _, oldest = self._by_tenant[tenant].popitem(last=False)
        self._grow(tenant, -oldest.size)
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant], self._sizes[tenant]

    def _grow(self, tenant: str, size: int) -> None:
        self._sizes[tenant] += size
        self._size += size


def _key(text: str, kind: int) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), kind)
