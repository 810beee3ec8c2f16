"""What residency is made of: runs of links, who is believed to hold how much of them, and where two chains part.

Plain data; only `prefix_store.residency` writes it. Most nodes have one child and one holder, which then stand for
themselves: a fleet's tree is large, and a dictionary for each of them would be most of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

LINK_BYTES = 8


@dataclass(slots=True)
class Belief:
    """That a replica holds the first `blocks` blocks of a node's run. Times are the caller's monotonic seconds.

    It is `sure` once an answer has come for which they were computed or read.
    """

    blocks: int
    deadline: float
    used: float
    sure: bool


class Held(NamedTuple):
    """How many blocks a replica is believed to hold, and of how many nobody is sure yet."""

    blocks: int
    pending: int = 0


NOTHING = Held(0)


class Node:
    """A run of links. The top has none."""

    __slots__ = ("children", "holders", "links", "parent")

    def __init__(self, parent: Node | None, links: bytes) -> None:
        self.parent = parent
        self.links = links
        self.children: Node | dict[bytes, Node] | None = None  # by their first link
        self.holders: Holder | dict[Holder, None] | None = None  # in the order in which they came

    @property
    def blocks(self) -> int:
        """Blocks in the run."""
        return len(self.links) // LINK_BYTES

    def child(self, first: bytes) -> Node | None:
        """Return the child that begins with this link."""
        found = self.children
        if isinstance(found, Node):
            return found if found.links.startswith(first) else None
        return None if found is None else found.get(first)

    def below(self) -> Collection[Node]:
        """Return the children."""
        found = self.children
        if isinstance(found, Node):
            return (found,)
        return () if found is None else found.values()

    def attach(self, child: Node) -> None:
        """Put a child in its place, which may be another's that begins alike."""
        found, first = self.children, child.links[:LINK_BYTES]
        if isinstance(found, dict):
            found[first] = child
        elif found is None or found.links.startswith(first):
            self.children = child
        else:
            self.children = {found.links[:LINK_BYTES]: found, first: child}

    def detach(self, child: Node) -> bool:
        """Take a child away, if it is there."""
        found, first = self.children, child.links[:LINK_BYTES]
        if isinstance(found, dict):
            if found.get(first) is not child:
                return False
            del found[first]
            return True
        if found is not child:
            return False
        self.children = None
        return True

    def held_by(self) -> Collection[Holder]:
        """Return who is believed to hold some of it."""
        found = self.holders
        if isinstance(found, Holder):
            return (found,)
        return () if found is None else found.keys()

    def hold(self, holder: Holder) -> None:
        """Note one more holder."""
        found = self.holders
        if isinstance(found, dict):
            found[holder] = None
        else:
            self.holders = holder if found is None or found is holder else {found: None, holder: None}

    def let_go(self, holder: Holder) -> None:
        """Note that it is a holder no more."""
        found = self.holders
        if isinstance(found, dict):
            found.pop(holder, None)
        elif found is holder:
            self.holders = None


@dataclass(slots=True, eq=False)
class Holder:
    """A replica's share: what is believed of each node, from the least to the most recently used, ends first."""

    name: str
    capacity: int
    blocks: int
    order: OrderedDict[Node, Belief]


def agreeing(run: bytes, path: bytes, at: int) -> int:
    """Return how many links of `run` equal those of `path` from byte `at` on.

    Links commit to all before them, so chains that part never meet again and the place is found by halving.
    """
    if path.startswith(run, at):
        return len(run) // LINK_BYTES
    low, high = 0, min(len(run), len(path) - at) // LINK_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * LINK_BYTES
        if run[end - LINK_BYTES : end] == path[at + end - LINK_BYTES : at + end]:
            low = middle
        else:
            high = middle - 1
    return low
