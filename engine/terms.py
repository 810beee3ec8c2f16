"""What of the operator's policies the engine enforces: who is governed by which, and how much may be promised.

Owns the policies in force and the reservations of requests that run. Knows no tree and no clock. Rules: the most
specific policy governs; what is promised and reserved under one policy never exceeds its budget of the pool's blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from engine.operator_messages import PolicyTerms

DEFAULT = PolicyTerms(name="default")


class Terms:
    """Policies of one model, and the promise budget under each."""

    def __init__(self, *, model: str, blocks: int) -> None:
        self.model = model
        self._blocks = blocks
        self._by_tenant: dict[str | None, PolicyTerms] = {None: DEFAULT}
        self._reserved: Counter[str] = Counter()  # blocks by policy

    def set(self, policies: tuple[PolicyTerms, ...]) -> None:
        """Put these policies in the place of those before; reservations stay under their policies' names."""
        self._by_tenant = governing(policies, self.model)

    def govern(self, tenant: str) -> PolicyTerms:
        """Return the policy of a tenant."""
        return self._by_tenant.get(tenant) or self._by_tenant[None]

    def shares(self) -> tuple[int, dict[str, int]]:
        """Return the blocks that any tenant may hold, and those that named ones may."""
        bound = {tenant: int(policy.pool_share * self._blocks) for tenant, policy in self._by_tenant.items()}
        everyone = bound.pop(None)
        return everyone, {tenant: blocks for tenant, blocks in bound.items() if tenant is not None}

    def room(self, tenant: str, promised: Mapping[str, int]) -> int:
        """Return how many blocks may still be promised to a tenant, given those `promised` by tenant. O(tenants)."""
        policy = self.govern(tenant)
        taken = sum(blocks for other, blocks in promised.items() if self.govern(other).name == policy.name)
        return int(policy.promise_budget * self._blocks) - taken - self._reserved[policy.name]

    def reserve(self, policy: str, blocks: int) -> None:
        """Set blocks aside under a policy for a running request, or with a negative number give them up."""
        self._reserved[policy] += blocks

    @property
    def reserved(self) -> int:
        """Blocks set aside for running requests."""
        return sum(self._reserved.values())


def governing(policies: tuple[PolicyTerms, ...], model: str) -> dict[str | None, PolicyTerms]:
    """Return each tenant's most specific policy for one model; None stands for every other tenant."""
    by_selector = {(policy.model, policy.tenant): policy for policy in policies}
    everyone = by_selector.get((model, None)) or by_selector.get((None, None)) or DEFAULT
    tenants = {policy.tenant for policy in policies if policy.tenant is not None and policy.model in {None, model}}
    chosen: dict[str | None, PolicyTerms] = {None: everyone}
    for tenant in tenants:
        chosen[tenant] = by_selector.get((model, tenant)) or by_selector[None, tenant]
    return chosen
