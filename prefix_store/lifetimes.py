"""Deadlines along a path: renewing, raising, capping, and what a changed policy does to them.

Functions on nodes; they move no node and free nothing. Rules: alive while `now < deadline`; a read renews by the node's
own class; the longest live class holds, a shorter one never shortens; a parent never ends before its child, so a
sliding parent is lifted to its child and a fixed one caps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from prefix_store.chain import Namespace
from prefix_store.node import Node
from prefix_store.retention import Kept, Retention

P = TypeVar("P")


def path_up(node: Node[P]) -> Iterator[Node[P]]:
    """Yield the nodes with blocks from `node` up, the root left out."""
    at: Node[P] | None = node
    while at is not None and at.retention is not None:
        yield at
        at = at.parent


def renew(end: Node[P], now: float) -> None:
    """Renew a path at the moment of a lease, each node by its own class. O(nodes)."""
    below, fixed = 0.0, False
    at: Node[P] | None = end
    while at is not None and (retention := at.retention) is not None:
        if retention.sliding:
            at.deadline = below = max(at.deadline, now + retention.ttl_s, below)
        else:
            fixed = fixed or at.deadline < below
            below = at.deadline
        at.renewed = at.used = now
        at.reads += 1
        at = at.parent
    if fixed:
        cap(end)


def write(node: Node[P], retention: Retention, now: float) -> None:
    """Take note that an existing block was computed again or asked for: the longer class holds."""
    alive = node.deadline > now
    if not alive or retention.deadline > node.deadline:
        node.retention = retention
    node.kept = max(node.kept, retention.kept) if alive else retention.kept
    node.deadline = max(node.deadline, retention.deadline)
    node.renewed, node.used = retention.since, now
    node.shortened = False


def lift(node: Node[P], deadline: float, end: Node[P]) -> None:
    """After a write down to `end`: what is above it lives as long, up to a fixed node, which caps the path instead."""
    for at in path_up(node):
        if at.deadline >= deadline:
            return
        if not (at.retention and at.retention.sliding):
            cap(end)
            return
        at.deadline = deadline


def cap(end: Node[P]) -> None:
    """No node of the path outlives its parent."""
    path = list(path_up(end))[::-1]
    for parent, child in pairwise(path):
        child.deadline = min(child.deadline, parent.deadline)


def limited(node: Node[P], held_s: float | None, most_s: float) -> Retention | None:
    """Return the node's retention under a policy that allows less; None when unmarked prefixes are no longer kept."""
    retention = node.retention
    assert retention is not None
    allowed = most_s if node.kept is Kept.PROMISED else held_s
    if allowed is None:
        return None
    return retention if retention.ttl_s <= allowed else replace(retention, ttl_s=allowed)


def shortened(
    nodes: Sequence[Node[P]], limits: Callable[[Namespace], tuple[float | None, float]], now: float
) -> dict[Node[P], float]:
    """Return the deadlines of nodes, parents first, under lowered limits: min(old, last start + new). O(nodes).

    `limits` gives a namespace's TTL for held prefixes (None: not kept) and for any, in seconds. No parent ends before
    its child.
    """
    deadlines: dict[Node[P], float] = {}
    for node in reversed(nodes):
        retention = limited(node, *limits(node.namespace))
        own = now if retention is None else min(node.deadline, node.renewed + retention.ttl_s)
        deadlines[node] = max([own, *(deadlines[child] for child in node.children if child in deadlines)])
    return deadlines
