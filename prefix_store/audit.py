"""Every invariant of the radix tree, asserted. For tests and idle engines; never on the hot path."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from prefix_store.census import Kind, kind
from prefix_store.chain import HASH_BYTES, TOKEN_BYTES, BlockHash, chain, root
from prefix_store.node import Node
from prefix_store.retention import Kept

if TYPE_CHECKING:
    from prefix_store.radix import RadixTree

EVERY_QUEUE = 3  # both bits of `Node.queued`


def check(tree: RadixTree[Any]) -> None:
    """Raise if any invariant is broken. O(tokens)."""
    nodes, stride = list(tree.nodes()), tree.block_tokens * TOKEN_BYTES
    census = tree.census
    blocks = Counter[str]()
    promised = Counter[str]()
    entries, entry_blocks = Counter[Kind](), Counter[Kind]()
    for node in nodes:
        blocks[node.namespace.tenant] += len(node.payload)
        promised[node.namespace.tenant] += len(node.payload) * (node.kept is Kept.PROMISED)
        entries[kind(node)] += 1
        entry_blocks[kind(node)] += len(node.payload)
    assert len(nodes) == census.nodes, "a node was lost"
    assert sum(blocks.values()) == census.blocks and +blocks == +census.by_tenant, "a block was lost"
    assert +promised == +census.promised, "promised blocks are miscounted"
    assert +entries == +census.entries and +entry_blocks == +census.entry_blocks, "a class is miscounted"
    assert tree.spans.written == census.blocks + tree.spans.lifetime.blocks, "a block went untold"
    purged = sum(len(node.payload) for node in nodes if node.detached)
    assert tree.gone.total() + tree.grown == tree.spans.lifetime.blocks + purged, "a block went without a cause"
    assert sum(len(node.payload) for node in nodes if not node.leases) == census.idle, "idle blocks are miscounted"
    assert tree.tombstones.blocks == sum(stone.blocks for stone in tree.tombstones), "tombstones are miscounted"
    for namespace, top in tree.roots.items():
        assert top.children or top.leases, "an empty root stays"
        assert top.hashes == root(namespace), "a root has another namespace's hash"
    for node in [*tree.roots.values(), *nodes]:
        assert node.keys == [child.tokens[:stride] for child in node.children], "a key is not the first block"
        assert node.keys == sorted(set(node.keys)), "children are out of order or doubled"
        assert all(child.parent is node for child in node.children), "a child has another parent"
        assert node.leases >= sum(child.leases for child in node.children), "a lease is not counted above"
    for node in nodes:
        _check_node(node, tree.block_tokens)


def _check_node(node: Node[Any], block_tokens: int) -> None:
    stride = block_tokens * TOKEN_BYTES
    assert node.payload, "a node without blocks"
    partial = 0 < len(node.tokens) < stride and not node.children
    assert len(node.tokens) == len(node.payload) * stride or (len(node.payload) == 1 and partial), (
        "tokens and payload disagree"
    )
    assert len(node.payload) == sum(blocks for _, blocks in node.births), "births and payload disagree"
    assert node.births == sorted(node.births, key=lambda birth: birth[0]), "a later block is older"
    assert len(node.hashes) == len(node.payload) * HASH_BYTES, "hashes and payload disagree"
    if node.detached:
        assert node.leases or node.children, "a purged node stays without a lease"
        return
    assert node.parent is not None, "a node without a parent"
    expected = chain(BlockHash(node.parent.last_hash), node.tokens, min(block_tokens, node.length))
    assert node.hashes == expected, "a broken chain"
    assert node.deadline <= node.parent.deadline, "a parent would go before its child"
    assert not node.idle_leaf or node.queued == EVERY_QUEUE, "an idle leaf is in no queue"
