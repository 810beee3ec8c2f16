"""What the tree hands out: matches, leases, and what became of published blocks. Values; only the tree makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from prefix_store.node import Node

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Tail(Generic[P]):
    """A block that shares its first `tokens` tokens with what follows a match, to be copied from."""

    payload: P
    tokens: int  # 1 … block_tokens − 1
    node: Node[P]


@dataclass(frozen=True, slots=True)
class Match(Generic[P]):
    """What a peek found: whole blocks, and the best partial one after them."""

    tokens: int
    payload: list[P]
    tail: Tail[P] | None
    idle: int  # of the whole blocks, those on no leased path

    @property
    def readable(self) -> int:
        """Tokens that need not be computed, the partial block's among them."""
        return self.tokens + (self.tail.tokens if self.tail else 0)


class Lease(Generic[P]):
    """A hold on a path while a request works. Given by `lease`, ended by `release`; only the tree writes it."""

    __slots__ = ("generation", "node", "payload", "tail", "tokens")

    def __init__(self, node: Node[P], tokens: int, payload: list[P], tail: Tail[P] | None, generation: int) -> None:
        self.node = node  # where the path ends
        self.tokens = tokens  # of the path, whole blocks
        self.payload = payload  # what the match found, one per block
        self.tail = tail
        self.generation = generation  # the tenant's purges when the lease began


@dataclass(frozen=True, slots=True)
class Published(Generic[P]):
    """What became of published blocks."""

    payload: list[P]  # what the tree holds for them now: use this
    spare: list[P]  # the caller's own, for blocks that the tree had already
    stored: bool = True  # False after a purge: the payload stays the caller's


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Sizes; O(1) to take."""

    nodes: int
    blocks: int  # in the tree
    idle: int  # of these, on no leased path


@dataclass(frozen=True, slots=True)
class Place(Generic[P]):
    """Where a walk ended: `blocks` blocks into `node`, `tokens` tokens from the root."""

    node: Node[P]
    blocks: int
    tokens: int
