"""What the tree holds, counted as it changes: blocks in all, idle, by tenant, promised, by class.

Owns the counters. Rule: every number equals what a walk over the tree would count; `RadixTree.check` proves it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from prefix_store.node import Node
from prefix_store.retention import Kept

Kind = tuple[str, Kept]  # a class, and how firmly it is kept


def kind(node: Node[Any]) -> Kind:
    """Return what an entry is counted under."""
    return node.retention.klass if node.retention is not None else "", node.kept


class Census:
    """Counters that only the tree writes. Each change is O(1)."""

    def __init__(self) -> None:
        self.nodes = 0
        self.nodes_of: Counter[str] = Counter()  # by tenant
        self.blocks = 0
        self.idle = 0  # blocks on no leased path
        self.by_tenant: Counter[str] = Counter()  # blocks
        self.promised: Counter[str] = Counter()  # promised blocks by tenant
        self.entries: Counter[Kind] = Counter()  # one that fell to 0 stays: it is known to be none
        self.entry_blocks: Counter[Kind] = Counter()
        self.over: set[str] = set()  # tenants that hold more than their share
        self._shares: dict[str, int] = {}  # blocks
        self._share: int | None = None  # of every other tenant; None: no bound

    def set_shares(self, share: int | None, by_tenant: dict[str, int]) -> None:
        """Bound what tenants hold, in blocks; those over it go first under pressure."""
        self._share, self._shares = share, by_tenant
        for tenant in self.by_tenant:
            self._weigh(tenant)

    def add(self, node: Node[Any], blocks: int) -> None:
        """Count blocks that came to a node, or with a negative number that went from it."""
        tenant = node.namespace.tenant
        self.blocks += blocks
        self.by_tenant[tenant] += blocks
        self.entry_blocks[kind(node)] += blocks
        if not node.leases:
            self.idle += blocks
        if node.kept is Kept.PROMISED:
            self.promised[tenant] += blocks
        if not self.by_tenant[tenant]:
            del self.by_tenant[tenant], self.promised[tenant]
        self._weigh(tenant)

    def come(self, node: Node[Any]) -> None:
        """Count a new node; its blocks are counted apart."""
        self.nodes += 1
        self.entries[kind(node)] += 1
        self.nodes_of[node.namespace.tenant] += 1

    def go(self, node: Node[Any]) -> None:
        """Count a node that went, with its blocks."""
        self.add(node, -len(node.payload))
        self.nodes -= 1
        self.entries[kind(node)] -= 1
        self.nodes_of[node.namespace.tenant] -= 1
        if not self.nodes_of[node.namespace.tenant]:
            del self.nodes_of[node.namespace.tenant]

    def keep(self, node: Node[Any], before: Kind) -> None:
        """Count a node that was of the kind `before` and may be of another now."""
        now = kind(node)
        if now == before:
            return
        blocks = len(node.payload)
        for counts, count in ((self.entries, 1), (self.entry_blocks, blocks)):
            counts[before] -= count
            counts[now] += count
        if node.kept is not before[1]:
            self.promised[node.namespace.tenant] += blocks if node.kept is Kept.PROMISED else -blocks

    def _weigh(self, tenant: str) -> None:
        share = self._shares.get(tenant, self._share)
        if share is not None and self.by_tenant.get(tenant, 0) > share:
            self.over.add(tenant)
        else:
            self.over.discard(tenant)
