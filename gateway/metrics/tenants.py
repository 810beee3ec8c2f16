"""Series by tenant, for those tenants that the operator names; all others are one.

Owns these counters. Rule: what a caller sends never makes a series.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from gateway.metrics.own import OTHER
from gateway.record import Record

KINDS: Final = ("read", "write", "uncached", "unknown")


class Tenants:
    """Counts by tenant."""

    def __init__(self, registry: CollectorRegistry, names: Collection[str]) -> None:
        """Count for these names, and together for all others. With no names there are no series."""
        self._named = frozenset(names)
        self.names = (*sorted(self._named), OTHER)
        tokens = Counter(
            "keepwarm_tenant_input_tokens", "Prompt tokens, by tenant.", ["tenant", "cache"], registry=registry
        )
        requests = Counter("keepwarm_tenant_requests", "Model requests, by tenant.", ["tenant"], registry=registry)
        shown = self.names if self._named else ()
        self._requests = {name: requests.labels(name) for name in shown}
        self._tokens = {(name, cache): tokens.labels(name, cache) for name in shown for cache in KINDS}

    def fold(self, tenant: str) -> str:
        """Return the label of a tenant."""
        return tenant if tenant in self._named else OTHER

    def ended(self, record: Record) -> None:
        """Count one exchange."""
        if not self._named:
            return
        name = self.fold(record.tenant)
        self._requests[name].inc()
        facts = record.prompt
        if facts is None or record.prewarm:
            return
        for cache, tokens in zip(KINDS, (facts.read, facts.write, facts.uncached, facts.unknown), strict=True):
            self._tokens[name, cache].inc(tokens)
