"""Looks at the whole tree, a slice between two steps, so that no decode waits for them.

Owns the looks that were asked for. Rules: a look renews nothing; times in it are as of its beginning; who asks for what
is being looked at already gets that look; what stays meanwhile is in it, once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from heapq import nlargest

from msgspec.structs import replace

from engine.block_pool import BlockId
from engine.operator_messages import SPANS_S, AskRetention, AskTree, RetentionView, Tree, TreeNode
from prefix_store.node import Node
from prefix_store.radix import RadixTree
from prefix_store.retention import Kept
from prefix_store.survey import survey

SLICE_NODES = 2048  # looked at between two steps: some milliseconds
NOWHERE = -1

Question = AskTree | AskRetention
Answer = Tree | RetentionView
Look = Generator[None, None, Answer]


class Surveys:
    """Looks in the order in which they were asked for, one at a time."""

    def __init__(self, tree: RadixTree[BlockId], *, slice_nodes: int = SLICE_NODES) -> None:
        self._tree = tree
        self._slice = slice_nodes
        self._asked: dict[Question, list[int]] = {}  # the numbers of those who ask the same
        self._look: Look | None = None  # for the first of them

    @property
    def pending(self) -> bool:
        """Whether anyone waits for a look."""
        return bool(self._asked)

    def ask(self, question: Question) -> None:
        """Queue a question; `advance` answers it."""
        self._asked.setdefault(replace(question, seq=0), []).append(question.seq)

    def advance(self, now: float) -> list[Answer]:
        """Look at one more slice. Return the answers that are complete."""
        if not self._asked:
            return []
        question = next(iter(self._asked))
        if self._look is None:
            self._look = self._begin(question, now)
        try:
            next(self._look)
        except StopIteration as done:
            self._look = None
            answer: Answer = done.value
            return [replace(answer, seq=seq) for seq in self._asked.pop(question)]
        return []

    def _begin(self, question: Question, now: float) -> Look:
        if isinstance(question, AskTree):
            return _largest(self._tree, question, now, self._slice)
        return _ages(self._tree, now, self._slice)


def _ages(tree: RadixTree[BlockId], now: float, size: int) -> Look:
    """Count live tokens by class: how old they are, and how long they still have."""
    ages: dict[str, list[int]] = {}
    deadlines: dict[str, list[int]] = {}
    for seen, (node, _) in enumerate(survey(tree), 1):
        if node.deadline > now and node.retention is not None:
            klass = node.retention.klass
            if klass not in ages:
                ages[klass], deadlines[klass] = ([0] * (len(SPANS_S) + 1) for _ in range(2))
            for born, blocks in node.births:
                ages[klass][bisect_left(SPANS_S, now - born)] += blocks * tree.block_tokens
            deadlines[klass][bisect_left(SPANS_S, node.deadline - now)] += len(node.payload) * tree.block_tokens
        if not seen % size:
            yield
    return RetentionView(
        seq=0,
        ages={klass: tuple(tokens) for klass, tokens in ages.items()},
        deadlines={klass: tuple(tokens) for klass, tokens in deadlines.items()},
    )


class _Rows:
    """What a look at the tree has seen, one row a node, parents first; counts in blocks."""

    def __init__(self) -> None:
        self.nodes: list[Node[BlockId]] = []
        self.above: list[int] = []  # the parent's row
        self.start: list[int] = []  # blocks before the node
        self.own: list[int] = []
        self.ends: list[bytes] = []  # the chain's hash at the node's end
        self._row_of: dict[Node[BlockId], int] = {}

    def add(self, node: Node[BlockId], parent: Node[BlockId]) -> int:
        """Note a node as it is now; return how many there are."""
        above = self._row_of.get(parent, NOWHERE)
        self._row_of[node] = len(self.nodes)
        self.nodes.append(node)
        self.above.append(above)
        self.start.append(self.start[above] + self.own[above] if above != NOWHERE else 0)
        self.own.append(len(node.payload))
        self.ends.append(node.last_hash)
        return len(self.nodes)

    def sums(self) -> list[int]:
        """Return the blocks in and below each node."""
        sums = self.own.copy()
        for row in range(len(sums) - 1, -1, -1):
            if self.above[row] != NOWHERE:
                sums[self.above[row]] += sums[row]
        return sums

    def view(self, row: int, subtree: int, unit: int, now: float) -> TreeNode:
        """Show one node; `unit` is the tokens of a block."""
        node, above = self.nodes[row], self.above[row]
        assert node.retention is not None, "a root is no row"
        return TreeNode(
            id=self.ends[row].hex(),
            parent=None if above == NOWHERE else self.ends[above].hex(),
            start=self.start[row] * unit,
            tokens=self.own[row] * unit,
            subtree_tokens=subtree * unit,
            tenant=node.namespace.tenant,
            model=node.namespace.model,
            klass=node.retention.klass,
            kept="promised" if node.kept is Kept.PROMISED else "held",
            left_s=node.deadline - now,
            idle_s=max(0.0, now - node.used),  # it may have been used since the look began
            age_s=max(0.0, now - node.born),
            reads=node.reads,
            leases=node.leases,
        )


def _largest(tree: RadixTree[BlockId], question: AskTree, now: float, size: int) -> Look:
    """Find the nodes with most tokens in and below them: a parent has more than its child, so it is among them too."""
    rows = _Rows()
    for node, parent in survey(tree, question.tenant):
        if not rows.add(node, parent) % size:
            yield
    yield
    sums = rows.sums()
    yield
    largest = nlargest(question.limit, range(len(sums)), key=sums.__getitem__)
    yield
    nodes: list[TreeNode] = []
    for row in largest:
        nodes.append(rows.view(row, sums[row], tree.block_tokens, now))
        if not len(nodes) % size:
            yield
    return Tree(seq=0, total=len(sums), nodes=tuple(nodes))
