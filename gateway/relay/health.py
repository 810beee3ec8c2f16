"""Whether an upstream may be asked. Pure: clocks are given.

Three judges, and every one must agree: probes (an upstream that fails `FAILURES` in a row is unwell until `SUCCESSES`
succeed), the circuit of its last answers, and its share of failures among them, beyond which it is put aside for a
while that grows each time. Rule: of many that would be put aside at once, half stay: a fleet that fails as a whole is
asked nonetheless, for there is nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from prefix_store.breaker import Breaker

FAILURES: Final = 3
SUCCESSES: Final = 2
BROKEN: Final = 5  # answers in a row that failed open the circuit
REST_S: Final = 5.0
WINDOW: Final = 20  # answers that an upstream is judged by
FEWEST: Final = 10
WORST: Final = 0.5  # share of failures
ASIDE_S: Final = 15.0  # the first time; then twice, three times as long
ASIDE_MOST_S: Final = 300.0


class Health:
    """What is known of one upstream's health."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start well: the first answers tell."""
        self.breaker = Breaker(failures=BROKEN, rest_s=REST_S, clock=clock)
        self.well = True
        self.why = ""
        self._clock = clock
        self._probes = 0  # in a row against what is believed
        self._answers: deque[bool] = deque(maxlen=WINDOW)
        self._aside_until = 0.0
        self._asides = 0

    @property
    def aside(self) -> bool:
        """Whether it is put aside for failing too often."""
        return self._clock() < self._aside_until

    @property
    def open(self) -> bool:
        """Whether its circuit lets a request through, or would let one try."""
        return self.breaker.could_try()

    def probed(self, problem: str) -> bool:
        """Hear of a probe; `problem` is "" where it went well. Return whether it is well now and was not before."""
        if (not problem) == self.well:
            self._probes = 0
            return False
        self._probes += 1
        if self._probes < (FAILURES if self.well else SUCCESSES):
            return False
        self.well, self._probes, self.why = not self.well, 0, problem
        if self.well:
            self.breaker.succeed()
        return self.well

    def answered(self, *, well: bool) -> None:
        """Hear of an answer to a request that was let through."""
        self._answers.append(well)
        if well:
            self.breaker.succeed()
            return
        self.breaker.fail()
        failed = self._answers.count(False)
        if len(self._answers) >= FEWEST and failed >= WORST * len(self._answers):
            self._asides += 1
            self._aside_until = self._clock() + min(ASIDE_MOST_S, ASIDE_S * self._asides)
            self._answers.clear()

    def gave_up(self) -> None:
        """Hear that a request that was let through ended without telling anything, because its client left."""
        self.breaker.abandon()
