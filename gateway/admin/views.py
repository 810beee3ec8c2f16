"""What the engine holds, as a dashboard draws it: retention and the tree. Pure: the engine's answers in, JSON out.

Rule: what nobody knows is null, what is known to be none is 0; times left, idle and age are rounded to milliseconds.
"""

from __future__ import annotations

from math import inf
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.messages import ModelCard
from engine.operator_messages import SPANS_S, EngineStats, Histo, RetentionView, Tree, TreeNode
from prefix_store.classes import RetentionClasses

Json = dict[str, Any]

KEPT = ("promised", "held")


class RetentionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Retention is shown whole: there is nothing to choose."""


class TreeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes to show, and whose."""

    limit: Annotated[int, Meta(ge=1, le=5000)] = 2000
    tenant: str | None = None


def retention(view: RetentionView, stats: EngineStats, card: ModelCard, classes: RetentionClasses) -> Json:
    """Shape what is kept, for how long, and what became of the rest."""
    return {
        "classes": _classes(stats, card, classes),
        "ages": _tokens(view.ages),
        "deadlines": _tokens(view.deadlines),
        "reuse_gap": _blocks(stats.reuse_gap),
        "age_at_read": _blocks(stats.age_at_read),
        "lifetime": _blocks(stats.lifetime),
        "idle_before_evict": _blocks(stats.idle_before_evict),
        "evictions": {
            "expired": stats.blocks_expired_total,
            "evicted": stats.blocks_evicted_total,
            "purged": stats.purged_total,
        },
        "policy_changed": stats.blocks_policy_changed_total,
        "broken": [_broken(key, blocks) for key, blocks in sorted(stats.broken_promises.items())],
        "capacity": {
            "blocks": card.blocks,
            "free": stats.blocks_free,
            "cached": stats.blocks_cached,
            "held": stats.blocks_held,
            "promised": stats.blocks_promised,
            "kv_bytes": card.kv_bytes,
            "kv_bytes_per_token": card.kv_bytes_per_token,
            "kv_dtype": card.kv_dtype,
            "block_tokens": card.block_tokens,
        },
    }


def tree(shown: Tree) -> Json:
    """Shape the largest nodes, parents before children."""
    return {"total": shown.total, "nodes": [_node(node) for node in shown.nodes]}


def _classes(stats: EngineStats, card: ModelCard, classes: RetentionClasses) -> list[Json]:
    """Show every class that is configured or was ever kept, the shortest first."""
    lengths: dict[str, float | None] = dict(classes.lengths_s)
    for klass in sorted({key.rpartition("|")[0] for key in stats.entries_by} - lengths.keys()):
        lengths[klass] = _seconds(klass, classes)
    return [
        {"class": klass, "ttl_s": ttl_s} | {kept: _count(f"{klass}|{kept}", stats, card) for kept in KEPT}
        for klass, ttl_s in sorted(lengths.items(), key=lambda length: inf if length[1] is None else length[1])
    ]


def _seconds(klass: str, classes: RetentionClasses) -> float | None:
    try:
        return classes.seconds(klass)
    except ValueError:  # a name that was configured once
        return None


def _count(key: str, stats: EngineStats, card: ModelCard) -> Json:
    tokens = stats.tokens_by.get(key, 0)
    return {"entries": stats.entries_by.get(key, 0), "tokens": tokens, "bytes": tokens * card.kv_bytes_per_token}


def _broken(key: str, blocks: int) -> Json:
    klass, _, tenant = key.partition("|")
    return {"class": klass, "tenant": tenant, "blocks": blocks}


def _tokens(by_class: dict[str, tuple[int, ...]]) -> Json:
    return {"edges_s": list(SPANS_S), "tokens": {klass: list(counts) for klass, counts in sorted(by_class.items())}}


def _blocks(histo: Histo) -> Json:
    return {"edges_s": list(SPANS_S), "blocks": list(histo.counts)}


def _node(node: TreeNode) -> Json:
    plain: Json = msgspec.structs.asdict(node)
    plain["class"] = plain.pop("klass")
    for field in ("left_s", "idle_s", "age_s"):
        plain[field] = round(plain[field], 3)
    return plain
