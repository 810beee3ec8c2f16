"""Who is served first. Pure: time is an argument, the scheduler acts.

Rules, the first that tells two sequences apart decides:
- one that was let in before and preempted comes before all that were not;
- one that has waited `AGED_S` comes before all that have not, the longest first: nobody waits longer for others' sake;
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

from engine.sequence import Sequence

AGED_S = 5.0
EACH = 8  # waiting sequences of one tenant that are looked at for one place
MOST = 32  # of all


def candidates(waiting: Iterable[Sequence]) -> list[Sequence]:
    """Return the sequences among which the next is chosen: the first few of each tenant that may run."""
    seen: Counter[str] = Counter()
    found: list[Sequence] = []
    for sequence in waiting:
        tenant = sequence.request.namespace.tenant
        if sequence.ready and seen[tenant] < EACH:
            seen[tenant] += 1
            found.append(sequence)
            if len(found) == MOST:
                break
    return found


def ranked(
    sequences: Iterable[Sequence], running: Iterable[Sequence], uncached: Callable[[Sequence], int], *, now: float
) -> list[Sequence]:
    """Return the waiting sequences, the one to be served first at the head. `uncached` counts tokens to compute."""
    load = Counter(sequence.request.namespace.tenant for sequence in running)

    def rank(sequence: Sequence) -> tuple[float, ...]:
        if sequence.admitted is not None:
            return (0, sequence.submitted)
        if now - sequence.submitted >= AGED_S:
            return (1, sequence.submitted)
        request = sequence.request
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
