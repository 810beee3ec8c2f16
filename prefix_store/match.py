"""Reading the tree: how far a prompt's tokens are known. Pure: renews nothing, splits nothing.

Rule: a child is found by the tokens of its first block and verified by all of them; what has expired is not there.
"""

from __future__ import annotations

from typing import TypeVar

from prefix_store.chain import TOKEN_BYTES
from prefix_store.leases import Place, Tail
from prefix_store.node import Node, common_tokens

P = TypeVar("P")


def walk(top: Node[P], tokens: bytes, now: float, block_tokens: int) -> Place[P]:
    """Follow `tokens` through live nodes as far as whole blocks agree. O(tokens + nodes · log children)."""
    stride = block_tokens * TOKEN_BYTES
    node, at = top, 0
    end = len(tokens) - len(tokens) % stride
    while at < end:
        child = node.child(tokens[at : at + stride])
        if child is None or child.deadline <= now:
            break
        size = len(child.tokens)
        if size > stride and tokens[at : at + size] != child.tokens:
            blocks = common_tokens(child.tokens, tokens[at:end]) // block_tokens
            return Place(child, blocks, (at + blocks * stride) // TOKEN_BYTES)
        node, at = child, at + size
    return Place(node, 0, at // TOKEN_BYTES)


def best_tail(place: Place[P], tokens: bytes, now: float, block_tokens: int) -> Tail[P] | None:
    """Return the live block that shares most leading tokens with what follows the match."""
    stride = block_tokens * TOKEN_BYTES
    wanted = tokens[place.tokens * TOKEN_BYTES :][:stride]
    if len(wanted) < TOKEN_BYTES:
        return None
    if place.blocks:
        rest = place.node.tokens[place.blocks * stride :][:stride]
        shared = min(common_tokens(rest, wanted), block_tokens - 1)
        return Tail(place.node.payload[place.blocks], shared, place.node) if shared else None
    best: Tail[P] | None = None
    for side in place.node.near(wanted):
        for key, child in side:
            shared = min(common_tokens(key, wanted), block_tokens - 1)
            if shared <= (best.tokens if best else 0):
                break  # those further out share no more
            if child.deadline > now:
                best = Tail(child.payload[0], shared, child)
    return best


def payload_to(node: Node[P] | None) -> list[P]:
    """Return the payload from the root to the end of `node`."""
    path = []
    while node is not None:
        path.append(node.payload)
        node = node.parent
    return [payload for run in reversed(path) for payload in run]
