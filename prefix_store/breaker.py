"""Whether to try a service that has been failing.

Owns: the state of one circuit. Synchronous, awaits nothing; its clock is injected and steady.
Rule: the table `NEXT` is all that can happen. Of many callers that find the rest over, one makes the trial and the
others go on without the service.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping


class Circuit(enum.Enum):
    """CLOSED: calls go through. OPEN: none does until the rest is over. TRIAL: one call is finding out."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


NEXT: Mapping[Circuit, frozenset[Circuit]] = {
    Circuit.CLOSED: frozenset({Circuit.OPEN}),
    Circuit.OPEN: frozenset({Circuit.TRIAL, Circuit.CLOSED}),  # CLOSED: a call from before the opening came back well
    Circuit.TRIAL: frozenset({Circuit.CLOSED, Circuit.OPEN}),
}


class Breaker:
    """Opens after `failures` in a row and lets one trial through each `rest_s` seconds.

    Every admitted call ends in exactly one of `succeed`, `fail`, `abandon`.
    """

    def __init__(self, *, failures: int = 3, rest_s: float = 0.25, clock: Callable[[], float] = time.monotonic) -> None:
        if failures < 1 or rest_s <= 0:
            raise ValueError(f"a breaker needs at least one failure and a rest above zero, not {failures} and {rest_s}")
        self.circuit = Circuit.CLOSED
        self._limit, self._rest_s, self._clock = failures, rest_s, clock
        self._failed = 0  # in a row
        self._until = 0.0  # clock time at which the rest is over; open while now < until

    def admit(self) -> bool:
        """Return whether the caller may try now. In TRIAL the one admitted caller decides what comes next."""
        if self.circuit is Circuit.CLOSED:
            return True
        if self.circuit is Circuit.TRIAL or self._clock() < self._until:
            return False
        self._go(Circuit.TRIAL)
        return True

    def could_try(self) -> bool:
        """Return whether `admit` would let a call through now. Changes nothing."""
        return self.circuit is Circuit.CLOSED or (self.circuit is Circuit.OPEN and self._clock() >= self._until)

    def succeed(self) -> None:
        """Note that an admitted call was answered."""
        self._failed = 0
        if self.circuit is not Circuit.CLOSED:
            self._go(Circuit.CLOSED)

    def fail(self) -> None:
        """Note that an admitted call was not answered."""
        self._failed += 1
        if self.circuit is Circuit.TRIAL or (self.circuit is Circuit.CLOSED and self._failed >= self._limit):
            self._rest()

    def abandon(self) -> None:
        """Note that an admitted call was given up by its caller and says nothing about the service."""
        if self.circuit is Circuit.TRIAL:
            self._rest()

    def _rest(self) -> None:
        self._until = self._clock() + self._rest_s
        self._go(Circuit.OPEN)

    def _go(self, circuit: Circuit) -> None:
        assert circuit in NEXT[self.circuit], f"{self.circuit} → {circuit} is not a move"
        self.circuit = circuit
