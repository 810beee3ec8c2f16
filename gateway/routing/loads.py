"""How much work waits at each replica, in tokens. Pure; owns the sums.

Work is what is still to be computed of prompts, and a share for every answer that is being written. Work that other
gateways have sent is told as a sum. Rule: what was added is taken away exactly once, however a request ends.
"""

from __future__ import annotations

from collections import defaultdict

ANSWER_TOKENS = 64.0  # what one answer under way delays others by, in prompt tokens


class Loads:
    """Work by replica."""

    def __init__(self) -> None:
        self._own: defaultdict[str, float] = defaultdict(float)
        self._open: dict[int, tuple[str, float]] = {}  # by ticket: where, and what it still adds
        self._others: dict[str, float] = {}
        self._next = 0

    def add(self, replica: str, tokens: int) -> int:
        """Add a prompt of which `tokens` are to be computed. Return the ticket under which it is taken away."""
        self._next += 1
        work = tokens + ANSWER_TOKENS
        self._open[self._next] = replica, work
        self._own[replica] += work
        return self._next

    def computed(self, ticket: int) -> None:
        """Hear that a request's prompt is computed: only its answer is left."""
        if ticket in self._open:
            replica, work = self._open[ticket]
            self._own[replica] -= work - ANSWER_TOKENS
            self._open[ticket] = replica, ANSWER_TOKENS

    def take(self, ticket: int) -> None:
        """Take a request away. Twice is allowed."""
        replica, work = self._open.pop(ticket, ("", 0.0))
        if replica:
            self._own[replica] -= work

    def others(self, work: dict[str, float]) -> None:
        """Hear what other gateways have sent to each replica by now."""
        self._others = dict(work)

    def own(self) -> dict[str, float]:
        """Return what this gateway has sent, for others to know."""
        return {replica: work for replica, work in self._own.items() if work > 0}

    def at(self, replica: str) -> float:
        """Return the work that waits at a replica, in tokens."""
        return self._own.get(replica, 0.0) + self._others.get(replica, 0.0)

    def open(self, replica: str) -> int:
        """Count this gateway's requests at a replica. O(requests)."""
        return sum(1 for name, _ in self._open.values() if name == replica)
