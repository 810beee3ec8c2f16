"""One node of the radix tree: a run of blocks that always belong together.

Plain data; only the tree writes it. Rule: `tokens`, `hashes` and `payload` speak of the same blocks, and children are
ordered by the bytes of their first block, so that an exact child and the nearest ones are a bisect away. A node may
also be a partial block: one payload, fewer tokens than a block has, and never a child.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

from prefix_store.chain import HASH_BYTES, TOKEN_BYTES, Namespace
from prefix_store.retention import Kept, Retention

P = TypeVar("P")
Births = list[tuple[float, int]]  # stretches written at once: when, and how many blocks


class Node(Generic[P]):
    """A run of blocks. A root has no parent, no blocks and its namespace's hash."""

    __slots__ = (
        "births",
        "children",
        "deadline",
        "detached",
        "hashes",
        "kept",
        "keys",
        "leases",
        "namespace",
        "parent",
        "payload",
        "queued",
        "reads",
        "renewed",
        "retention",
        "shortened",
        "tokens",
        "used",
    )

    def __init__(
        self,
        parent: Node[P] | None,
        tokens: bytes,
        hashes: bytes,
        payload: list[P],
        retention: Retention | None,
        used: float,
        namespace: Namespace,
    ) -> None:
        self.parent = parent
        self.namespace = namespace
        self.tokens = tokens  # packed little-endian uint32
        self.hashes = hashes  # packed chain, 16 bytes a block
        self.payload = payload  # one per block
        self.retention = retention
        self.deadline = float("inf") if retention is None else retention.deadline
        self.kept = Kept.HELD if retention is None else retention.kept
        self.shortened = False  # whether a lowered policy moved the deadline
        self.births: Births = [(used, len(payload))] if payload else []  # sums to the blocks
        self.renewed = used  # when the last lease or write began: what its deadline counts from
        self.used = used  # the end of the last lease or write: what pressure goes by
        self.reads = 0
        self.leases = 0  # of leases that end here or below
        self.queued = 0  # which queues have an entry for it (see prefix_store.queues)
        self.detached = False  # purged, and kept only until its leases end
        self.keys: list[bytes] = []
        self.children: list[Node[P]] = []

    @property
    def idle_leaf(self) -> bool:
        """Whether the node may go: nobody leases it and nothing hangs below."""
        return not self.children and not self.leases and self.retention is not None

    def subtree(self) -> Iterator[Node[P]]:
        """Yield the node and everything below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            stack += node.children
            yield node

    def split(self, blocks: int, stride: int) -> Node[P]:
        """Cut the run after its first `blocks` blocks of `stride` bytes; return the new upper half.

        Each half keeps the old times. The lower half stays the same object, so leases and queue entries that speak of
        it stay true.
        """
        parent, cut = self.parent, blocks * stride
        assert parent is not None and 0 < blocks < len(self.payload)
        hashes, rest = self.hashes[: blocks * HASH_BYTES], self.hashes[blocks * HASH_BYTES :]
        upper = Node(
            parent, self.tokens[:cut], hashes, self.payload[:blocks], self.retention, self.used, self.namespace
        )
        upper.renewed, upper.shortened = self.renewed, self.shortened
        upper.births, self.births = part(self.births, blocks)
        upper.deadline, upper.kept, upper.reads, upper.leases = self.deadline, self.kept, self.reads, self.leases
        key = self.tokens[:stride]
        parent.drop(key)
        parent.attach(upper, key)
        self.tokens, self.hashes, self.payload = self.tokens[cut:], rest, self.payload[blocks:]
        upper.attach(self, self.tokens[:stride])
        return upper

    @property
    def born(self) -> float:
        """When it was first written."""
        return self.births[0][0]

    @property
    def length(self) -> int:
        """Tokens of the run."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def last_hash(self) -> bytes:
        """The chain up to the node's end."""
        return self.hashes[-HASH_BYTES:]

    def child(self, key: bytes) -> Node[P] | None:
        """Return the child whose first block is `key`. O(log children)."""
        at = bisect_left(self.keys, key)
        return self.children[at] if at < len(self.keys) and self.keys[at] == key else None

    def covering(self, beginning: bytes) -> Node[P] | None:
        """Return a child whose first block begins with `beginning`. O(log children)."""
        at = bisect_left(self.keys, beginning)
        return self.children[at] if at < len(self.keys) and self.keys[at].startswith(beginning) else None

    def partials(self, block: bytes) -> list[Node[P]]:
        """Return the children that are a beginning of `block` and shorter. O(tokens of a block · log children)."""
        cuts = range(TOKEN_BYTES, len(block), TOKEN_BYTES) if self.children else ()
        return [child for cut in cuts if (child := self.child(block[:cut])) is not None]

    def attach(self, child: Node[P], key: bytes) -> None:
        """Add a child under its first block."""
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.children.insert(at, child)
        child.parent = self

    def drop(self, key: bytes) -> None:
        """Remove the child whose first block is `key`."""
        at = bisect_left(self.keys, key)
        del self.keys[at], self.children[at]

    def near(self, block: bytes) -> Iterator[Iterator[tuple[bytes, Node[P]]]]:
        """Yield the children on either side of where `block` would stand, each side outwards.

        On one side the next child never shares more leading bytes with `block` than the one before it.
        """
        at = bisect_left(self.keys, block)
        for side in (range(at - 1, -1, -1), range(at, len(self.keys))):
            yield ((self.keys[index], self.children[index]) for index in side)


def part(births: Births, blocks: int) -> tuple[Births, Births]:
    """Part stretches after their first `blocks` blocks. O(stretches)."""
    first: Births = []
    for at, (born, count) in enumerate(births):
        if blocks < count:
            return [*first, (born, blocks)] if blocks else first, [(born, count - blocks), *births[at + 1 :]]
        first.append((born, count))
        blocks -= count
    return first, []


def common_tokens(one: bytes, other: bytes) -> int:
    """Return how many leading tokens two packed stretches share. O(length), in C."""
    length = min(len(one), len(other))
    difference = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    same_bytes = length if not difference else ((difference & -difference).bit_length() - 1) // 8
    return same_bytes // TOKEN_BYTES
