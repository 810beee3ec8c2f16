"""Who is served first. Pure: time is an argument, the scheduler acts.

Rules, the first that tells two sequences apart decides:
- one that was let in before and preempted comes before all that were not;
- one that has waited `AGED_S` comes before all that have not: the tenant's first that has less running, then the
  tenant's that was served longest ago, then the longest. Nobody waits longer for what came later, nor for all that
  another tenant sent at once;
- a higher priority;
- the tenant that has less running, so that one which sends twelve requests at once competes with itself;
- less to compute, so that a short suffix is not stuck behind a long cold prompt; then who came first.
Among running prefills one admitted `AGED_S` ago goes before all that were not, then a higher priority, its own or that
of a request which waits for what it computes, then the one with least left. Who is first in line overtakes a running
prefill where it fits whole into the step, has less to compute and no lower priority, and the other has not aged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from itertools import islice, zip_longest

from engine.sequence import Sequence

AGED_S = 5.0
EACH = 8  # waiting sequences of one tenant that are looked at for one place
MOST = 32  # of all


def candidates(waiting: Iterable[Sequence], running: Iterable[Sequence], *, now: float) -> list[Sequence]:
    """Return the sequences among which the next is chosen: a few of each tenant, those with least running first.

    O(waiting · log of a few).
    """

    def rank(sequence: Sequence) -> tuple[float, ...]:
        aged = now - sequence.submitted >= AGED_S
        return (sequence.admitted is None, not aged, 0 if aged else -sequence.request.keep.priority, sequence.submitted)

    load = Counter(sequence.request.namespace.tenant for sequence in running)
    by_tenant: dict[str, list[Sequence]] = {}
    for sequence in waiting:
        if sequence.ready:
            by_tenant.setdefault(sequence.request.namespace.tenant, []).append(sequence)
    few = {tenant: nsmallest(EACH, sequences, key=rank) for tenant, sequences in by_tenant.items()}
    tenants = sorted(few, key=lambda tenant: (rank(few[tenant][0])[:2], load[tenant], few[tenant][0].submitted))
    turns = zip_longest(*(few[tenant] for tenant in tenants))
    return list(islice((one for turn in turns for one in turn if one is not None), MOST))


def ranked(
    sequences: Iterable[Sequence],
    running: Iterable[Sequence],
    uncached: Callable[[Sequence], int],
    served: Mapping[str, int],
    *,
    now: float,
) -> list[Sequence]:
    """Return the waiting sequences, the one to be served first at the head.

    `uncached` counts tokens to compute; `served` grows with each tenant's last turn.
    """
    load = Counter(sequence.request.namespace.tenant for sequence in running)

    def rank(sequence: Sequence) -> tuple[float, ...]:
        if sequence.admitted is not None:
            return (0, sequence.submitted)
        request = sequence.request
        if now - sequence.submitted >= AGED_S:
            tenant = request.namespace.tenant
            return (1, load[tenant], served.get(tenant, 0), sequence.submitted)
        return (2, -request.keep.priority, load[request.namespace.tenant], uncached(sequence), sequence.submitted)

    return sorted(sequences, key=rank)


def overtakes(first: Sequence, work: int, running: Sequence, weight: int, *, now: float) -> bool:
    """Whether the first in line, with `work` tokens to compute, goes before a running prefill of priority `weight`."""
    aged = running.admitted is not None and now - running.admitted >= AGED_S
    return not aged and work < running.remaining and first.request.keep.priority >= weight


def prefills(weights: Mapping[Sequence, int], *, now: float) -> list[Sequence]:
    """Return the running prefills, given with their priorities, the one to be computed first at the head."""

    def rank(sequence: Sequence) -> tuple[float, ...]:
        admitted = now if sequence.admitted is None else sequence.admitted
        if now - admitted >= AGED_S:
            return (0, admitted)
        return (1, -weights[sequence], sequence.remaining)

    return sorted(weights, key=rank)
