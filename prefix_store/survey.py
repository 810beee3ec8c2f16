"""Going over every node of a tree that changes meanwhile, so that nobody waits for the whole of it.

Knows the shape of the tree, and writes nothing. Rule: every block that is there at the start and stays is told exactly
once, under a parent that was told before; what comes meanwhile may be told, what goes meanwhile may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from prefix_store.node import Node

if TYPE_CHECKING:
    from prefix_store.radix import RadixTree

P = TypeVar("P")


def survey(tree: RadixTree[P], tenant: str | None = None) -> Iterator[tuple[Node[P], Node[P]]]:
    """Yield each node with blocks, or each of one tenant, and the node above it: a root, or one yielded before.

    A node counts as it is when it is yielded. The tree may change between two nodes; purged ones are left out.
    """
    tops = [top for space, top in tree.roots.items() if tenant in {None, space.tenant}]
    stack = [(top, key) for top in tops for key in top.keys]
    while stack:
        above, key = stack.pop()
        node = above.child(key)  # by its first block, so that a node cut in two meanwhile is met at its upper half
        if node is None or node.detached:
            continue
        stack += [(node, below) for below in node.keys]
        yield node, above
