"""What operators do to a running cache: policies, purges, and a look at the entries.

Functions on the cache; each decides and acts in one go, between two steps. Rules: a preview counts exactly what the
action would do and changes nothing, not even a renewal; counts are true, by tenant; an answer is given only once the
tree obeys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.block_pool import BlockId
from engine.cache import PrefixCache
from engine.operator_messages import Changed, Entries, EntryView, ListEntries, PolicyTerms, Purge, SetPolicies, Tally
from engine.terms import governing
from prefix_store import lifetimes
from prefix_store.chain import Namespace
from prefix_store.node import Node
from prefix_store.retention import Kept

Limits = tuple[float | None, float]  # seconds that held and that any prefixes may last
Entry = Node[BlockId]


def set_policies(cache: PrefixCache, message: SetPolicies, *, token_bytes: int, now: float) -> Changed:
    """Put policies in force, or say what that would expire and keep now. O(nodes).

    Lowered limits act at once: deadline = min(old, last start + new). Raised ones act at the next touch.
    """
    limits = _limits(governing(message.policies, cache.terms.model))
    live = [node for node in cache.tree.nodes() if not node.detached and node.deadline > now]
    deadlines = lifetimes.shortened(live, limits, now)
    gone, kept = _Count(token_bytes), _Count(token_bytes)
    for node in live:
        (kept if deadlines[node] > now else gone).add(node)
    if not message.preview:
        cache.terms.set(message.policies)
        cache.tree.census.set_shares(*cache.terms.shares())
        cache.tree.shorten(limits, now)
    return Changed(seq=message.seq, gone=gone.tallies(), kept=kept.tallies(), leased_tokens=gone.leased)


def purge(cache: PrefixCache, message: Purge, *, namespace: Namespace, token_bytes: int, now: float) -> Changed:
    """Forget every entry that matches, with all that continues it, or say what that would be. O(nodes).

    `namespace` is the one that `message.prefix` was or would be sent under.
    """
    tops = _tops(cache, message, namespace, now)
    doomed = {node for top in tops for node in top.subtree()}
    gone, kept = _Count(token_bytes), _Count(token_bytes)
    for node in cache.tree.nodes():
        if not node.detached:
            (gone if node in doomed else kept).add(node)
    if not message.preview:
        for top in tops:
            cache.purged(cache.tree.detach(top, now))
        cache.tree.forbid({node.namespace.tenant for node in doomed} | ({message.tenant} if message.tenant else set()))
    return Changed(seq=message.seq, gone=gone.tallies(), kept=kept.tallies(), leased_tokens=gone.leased)


def list_entries(cache: PrefixCache, message: ListEntries, *, now: float) -> Entries:
    """Return one page of the entries, in the tree's order. Renews nothing. O(nodes)."""
    nodes = [node for node in cache.tree.nodes() if message.tenant in {None, node.namespace.tenant}]
    page = nodes[message.offset : message.offset + message.limit]
    return Entries(seq=message.seq, total=len(nodes), entries=tuple(_view(node, now) for node in page))


def _limits(by_tenant: dict[str | None, PolicyTerms]) -> Callable[[Namespace], Limits]:
    def of(namespace: Namespace) -> Limits:
        policy = by_tenant.get(namespace.tenant) or by_tenant[None]
        return policy.default_ttl_s, policy.max_ttl_s

    return of


def _tops(cache: PrefixCache, message: Purge, namespace: Namespace, now: float) -> list[Entry]:
    """Return the highest nodes that match: their subtrees hold everything that is to go, and nothing twice."""
    if message.prefix is not None:
        top = cache.tree.locate(namespace, message.prefix, now)
        return [] if top is None or not _matches(top, message, now) else [top]
    tops: list[Entry] = []
    chosen: set[Entry] = set()
    for node in cache.tree.nodes():  # parents come first
        if node.detached:
            continue
        if node.parent in chosen:
            chosen.add(node)
        elif _matches(node, message, now):
            chosen.add(node)
            tops.append(node)
    return tops


def _matches(node: Entry, message: Purge, now: float) -> bool:
    assert node.retention is not None
    return (
        message.tenant in {None, node.namespace.tenant}
        and message.model in {None, node.namespace.model}
        and message.klass in {None, node.retention.klass}
        and (message.older_than_s is None or now - node.used >= message.older_than_s)
    )


def _view(node: Entry, now: float) -> EntryView:
    assert node.retention is not None
    block = node.namespace.block_tokens
    return EntryView(
        id=node.last_hash.hex(),
        tenant=node.namespace.tenant,
        model=node.namespace.model,
        tokens=sum(len(above.payload) for above in lifetimes.path_up(node)) * block,
        own_tokens=len(node.payload) * block,
        klass=node.retention.klass,
        kept="promised" if node.kept is Kept.PROMISED else "held",
        left_s=node.deadline - now,
        age_s=now - node.born,
        idle_s=now - node.used,
        reads=node.reads,
        leases=node.leases,
    )


class _Count:
    """Entries and tokens, counted by tenant."""

    def __init__(self, token_bytes: int) -> None:
        self._token_bytes = token_bytes
        self._entries: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self.leased = 0  # tokens in use

    def add(self, node: Entry) -> None:
        tokens = len(node.payload) * node.namespace.block_tokens
        self._entries[node.namespace.tenant] += 1
        self._tokens[node.namespace.tenant] += tokens
        self.leased += tokens if node.leases else 0

    def tallies(self) -> dict[str, Tally]:
        return {
            tenant: Tally(entries=entries, tokens=self._tokens[tenant], bytes=self._tokens[tenant] * self._token_bytes)
            for tenant, entries in sorted(self._entries.items())
        }
