"""The line: who waits, who stands back, and who of them is let in next. Knows no torch.

Owns the waiting sequences, the turns of tenants and what is known of beginnings that are being computed. It is told
which sequences run and lets one more in; the scheduler runs it. Rules: the order is `engine.order`'s; who is first in
line keeps the room that becomes free; one that needs what another is computing stands back for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine import order
from engine.block_pool import BlockId
from engine.cache import PrefixCache
from engine.coalesce import Coalescing
from engine.sequence import Phase, Sequence
from prefix_store.leases import Match


@dataclass(frozen=True, slots=True)
class Before:
    """A running prefill that would be overtaken, its priority, and the tokens that are left of the step."""

    running: Sequence
    weight: int
    tokens: int


class Line:
    """Waiting sequences over one cache."""

    def __init__(self, cache: PrefixCache, *, max_model_len: int) -> None:
        self.coalescing = Coalescing(cache.block_tokens, cache.tree.storable)
        self._cache = cache
        self._max_model_len = max_model_len
        self._waiting: deque[Sequence] = deque()
        self._followers: dict[Sequence, Sequence] | None = None  # who stands back for whom, as far as a step is planned
        self._turns = 0
        self._served: dict[str, int] = {}  # each tenant's last turn, while it has requests here

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def join(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._waiting.append(sequence)
        self.coalescing.came(sequence, self._peek(sequence, now=sequence.submitted).readable)

    def rejoin(self, sequence: Sequence) -> None:
        """Queue one that was preempted, before all others."""
        self._waiting.appendleft(sequence)
        self._followers = None

    def leave(self, sequence: Sequence) -> None:
        """Let a waiting sequence go."""
        self._waiting.remove(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Hear that a sequence is gone for good."""
        self.coalescing.forget(sequence.request.id)

    def afresh(self) -> None:
        """Forget what was looked up for the last step: blocks were published since, and requests came and went."""
        self._followers = None

    def back(self, running: Items[Sequence], *, now: float) -> dict[Sequence, Sequence]:
        """Return who stands back for whom. Looked up once for as long as the same sequences run."""
        if self._followers is None:
            self._followers = self.coalescing.following(
                self._waiting, running, lambda sequence: self._peek(sequence, now=now).tokens
            )
        return self._followers

    def admit(self, running: Items[Sequence], *, now: float, before: Before | None = None) -> Sequence | None:
        """Start the next sequence if it fits beside the running ones; with `before` only if it overtakes that one."""
        back = self.back(running, now=now)
        free = (one for one in self._waiting if one not in back)
        matches = {one: self._peek(one, now=now) for one in order.candidates(free, running, now=now)}
        work = {one: one.length - match.readable for one, match in matches.items()}
        for sequence in order.ranked(matches, running, work.__getitem__, self._served, now=now):
            if running and not self._fits(sequence, matches[sequence], running):
                return None  # who is first in line keeps the room that becomes free
            mine = work[sequence]
            if before is not None and (
                mine > before.tokens or not order.overtakes(sequence, mine, before.running, before.weight, now=now)
            ):
                return None
            tails = [match.tail.node for one, match in matches.items() if one is not sequence and match.tail]
            tail = matches[sequence].tail
            alone = tail is None or tail.node not in tails
            self._start(sequence, alone=alone, spoken_for=self._promised(running), now=now)
            self._take_turn(sequence, running)
            return sequence
        return None

    def _start(self, sequence: Sequence, *, alone: bool, spoken_for: int, now: float) -> None:
        """Let it in; `alone`: nobody else in line reads the partial block that it goes on from."""
        self._waiting.remove(sequence)
        self._followers = None
        admitted = now if sequence.admitted is None else sequence.admitted
        hold = self._cache.admit(
            sequence.request, sequence.readable, since=admitted, now=now, alone=alone, spoken_for=spoken_for
        )
        sequence.start(hold, now=now)
        self.coalescing.admitted(sequence, hold.ready)

    def _take_turn(self, sequence: Sequence, running: Items[Sequence]) -> None:
        self._turns += 1
        self._served[sequence.request.namespace.tenant] = self._turns
        if len(self._served) > 2 * (len(self._waiting) + len(running)) + 1:  # those that have left are forgotten
            here = {one.request.namespace.tenant for one in (sequence, *self._waiting, *running)}
            self._served = {tenant: turn for tenant, turn in self._served.items() if tenant in here}

    def _peek(self, sequence: Sequence, *, now: float) -> Match[BlockId]:
        """Look how far a sequence is known. Renews nothing."""
        return self._cache.tree.peek(sequence.request.namespace, sequence.readable, now)

    def _fits(self, sequence: Sequence, match: Match[BlockId], running: Items[Sequence]) -> bool:
        """Whether its whole prompt fits beside what running prefills still need."""
        fresh = self._blocks(sequence.length + 1) - len(match.payload)
        return (
            self._promised(running) + fresh <= self._cache.obtainable - match.idle
        )  # what it reuses cannot be evicted for it

    def _promised(self, running: Items[Sequence]) -> int:
        """Return the blocks that running prefills are yet to take."""
        return sum(
            max(0, self._blocks(one.length + 1) - len(one.hold.table))
            for one in running
            if one.phase is Phase.PREFILL and one.hold is not None
        )

    def _blocks(self, tokens: int) -> int:
        return -(-min(tokens, self._max_model_len) // self._cache.block_tokens)
