"""A tree of words, for tests that can be read: blocks of four letters, each its own payload."""

from __future__ import annotations

from prefix_store.chain import Namespace
from prefix_store.leases import Lease, Published
from prefix_store.radix import RadixTree
from prefix_store.retention import Retention
from tests.prefix_store.twins import pack, retention, space

B = 4
HOME = space()


class Shelf(RadixTree[str]):
    """A tree of words: a prompt is written "abcd efgh", and each whole word is one block."""

    def __init__(self) -> None:
        super().__init__(B)

    def take(self, text: str, now: float, namespace: Namespace = HOME) -> Lease[str]:
        """Lease."""
        return self.lease(namespace, letters(text), now)

    def write(
        self, lease: Lease[str], text: str, now: float, terms: Retention | None = None, mark: str = ""
    ) -> Published[str]:
        """Publish the words after a lease, `mark` telling whose they are."""
        return self.publish(
            lease, letters(text), [word + mark for word in text.split()], now, terms or retention(since=now)
        )

    def put(self, text: str, now: float = 0.0, terms: Retention | None = None, namespace: Namespace = HOME) -> None:
        """Lease, publish the whole words that are missing, release."""
        lease = self.take(text, now, namespace)
        missing = [word for word in text.split()[lease.tokens // B :] if len(word) == B]
        self.write(lease, " ".join(missing), now, terms)
        self.release(lease, now)
        self.check()

    def hit(self, text: str, now: float, namespace: Namespace = HOME) -> str:
        """Read, and renew by it."""
        lease = self.take(text, now, namespace)
        self.release(lease, now)
        self.check()
        return " ".join(lease.payload)

    def look(self, text: str, now: float, namespace: Namespace = HOME) -> str:
        """Read without renewing."""
        return " ".join(self.peek(namespace, letters(text), now).payload)

    def all(self) -> list[str]:
        """Every block, sorted."""
        return sorted(self.payloads())


def letters(text: str) -> bytes:
    """Token ids of a text; blanks only separate blocks."""
    return pack([ord(letter) for letter in text.replace(" ", "")])
