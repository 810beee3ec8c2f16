"""The engine's snapshot: what scheduler, cache and tree have counted, as one message.

Pure: it reads and renews nothing. Knows no clock.
"""

from __future__ import annotations

from engine.cache import PrefixCache
from engine.operator_messages import EngineStats, Histo
from engine.scheduler import Scheduler
from prefix_store.census import Kind
from prefix_store.reasons import Fate
from prefix_store.retention import Kept
from prefix_store.spans import Span


def read(cache: PrefixCache, scheduler: Scheduler) -> EngineStats:
    """Put the snapshot together. O(tenants + classes)."""
    sizes, counters, tree = cache.stats(), scheduler.counters, cache.tree
    census, spans, gone = tree.census, tree.spans, tree.gone
    return EngineStats(
        waiting=scheduler.waiting,
        running=scheduler.running,
        blocks_free=sizes.free,
        blocks_cached=sizes.cached,
        blocks_held=sizes.held,
        nodes=sizes.nodes,
        prompt_tokens_total=counters.prompt,
        read_tokens_total=counters.read,
        write_tokens_total=counters.write,
        generated_tokens_total=counters.generated,
        projected_tokens_total=counters.projected,
        requests_finished_total=counters.finished,
        requests_cancelled_total=counters.cancelled,
        requests_failed_total=counters.failed,
        preemptions_total=counters.preempted,
        compacted_blocks_total=cache.compacted,
        coalesced_tokens_total=scheduler.line.coalescing.saved_tokens,
        blocks_evicted_total=gone[Fate.EVICTED] + gone[Fate.BROKEN_PROMISE],
        blocks_expired_total=gone[Fate.EXPIRED] + gone[Fate.POLICY_CHANGED],
        blocks_policy_changed_total=gone[Fate.POLICY_CHANGED],
        purged_total=gone[Fate.PURGED],
        steps_total=counters.steps,
        blocks_promised=sizes.promised,
        tombstones=len(tree.tombstones),
        tenant_blocks=dict(census.by_tenant),
        broken_promises={f"{klass}|{tenant}": n for (klass, tenant), n in tree.broken.items()},
        finished_by=counters.finished_by | {"cancelled": counters.cancelled},
        entries_by={_key(kind): entries for kind, entries in census.entries.items()},
        tokens_by={_key(kind): blocks * cache.block_tokens for kind, blocks in census.entry_blocks.items()},
        lifetime=_histo(spans.lifetime),
        idle_before_evict=_histo(spans.idle_before_evict),
        reuse_gap=_histo(spans.reuse_gap),
        age_at_read=_histo(spans.age_at_read),
        extents=tuple(cache.scatter.counts),
        extents_total=cache.scatter.total,
    )


def _key(kind: Kind) -> str:
    klass, kept = kind
    return f"{klass}|{'promised' if kept is Kept.PROMISED else 'held'}"


def _histo(span: Span) -> Histo:
    return Histo(counts=tuple(span.counts), sum=span.total_s)
