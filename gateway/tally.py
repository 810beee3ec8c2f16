"""What all gateways together have read, written and missed, tenant by tenant.

Owns the counts since the last flush; the shared state owns the sums. Rules: counting never waits; counts that could not
be flushed are kept for the next time; a tenant's sums are forgotten a month after its last request.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

from gateway.flushing import flushing
from gateway.record import Record
from prefix_store.store import SharedState, StoreUnavailable

FLUSH_S = 2.0
KEEP_S = 30 * 86_400.0
FATES = "missed_"  # prefix of the counters of tokens by what became of them
REASONS = "because_"  # and by why they were not read


class Tally:
    """Counts of this gateway on their way to the sums of all."""

    def __init__(self, state: SharedState, tenants: Iterable[str]) -> None:
        """Count for the `tenants` that there are, towards `state`."""
        self._state = state
        self._tenants = tuple(sorted(set(tenants)))
        self._fresh: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def ended(self, record: Record, tokens: bytes) -> None:  # noqa: ARG002 - a witness; only the counts matter here
        """Count one prompt. One that only makes the cache warm is no hit and no miss: it is counted apart."""
        facts = record.prompt
        if facts is None:
            return
        counts = self._fresh[record.tenant]
        if record.prewarm:
            counts["prewarms"] += 1
            counts["prewarm_write_tokens"] += facts.write
            return
        counts["requests"] += 1
        counts["prompt_tokens"] += facts.prompt
        counts["read_tokens"] += facts.read
        counts["write_tokens"] += facts.write
        for miss in facts.misses:
            counts[FATES + miss.fate] += miss.tokens
            counts[REASONS + miss.reason] += miss.tokens

    async def flush(self) -> None:
        """Hand the counts over. What the store does not take now stays for the next time."""
        for tenant in list(self._fresh):
            counts = self._fresh.pop(tenant)
            try:
                await self._state.count(_space(tenant), {key: n for key, n in counts.items() if n}, ttl_s=KEEP_S)
            except StoreUnavailable as error:
                if not error.perhaps:  # else they may have arrived, and counting twice is worse than once too few
                    self._fresh[tenant].update(counts)

    async def sums(self) -> dict[str, dict[str, int]]:
        """Return the sums of all gateways by tenant. Raises StoreUnavailable."""
        await self.flush()
        return {tenant: await self._state.counters(_space(tenant)) for tenant in self._tenants}

    def flushing(self) -> AbstractAsyncContextManager[None]:
        """Flush now and then while the block runs, and once more at its end."""
        return flushing(self.flush, FLUSH_S)


def _space(tenant: str) -> str:
    return f"usage:{tenant}"
