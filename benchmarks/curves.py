"""The engine's curves: first token over what is cached, steps over the batch, steps over the context.

Rule: every point has the floor measured beside it, as often.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.cost import (
    BATCH_FLOOR,
    COLD,
    COLD_FLOOR,
    CONTEXT,
    CONTEXT_FLOOR,
    OWN,
    SHARED,
    SUFFIX_TOKENS,
    WARM,
    WARM_FLOOR,
    Plan,
    Points,
)
from benchmarks.measure import Advance
from benchmarks.timed import UNCACHED, Ask, Timed


class Room:
    """One engine, one long text of random tokens, and where the values go."""

    def __init__(self, plan: Plan, timed: Timed, points: Points, advance: Advance) -> None:
        self.plan, self.timed, self.points, self.advance = plan, timed, points, advance
        self._dice = random.Random(7)
        vocab = timed.core.card.vocab_size
        self._text = [self._dice.randrange(vocab) for _ in range(max(*plan.cached, plan.shared, plan.own))]

    def measure(self) -> None:
        """Measure everything."""
        self.cold()
        self.timed.cache(self._text, "")
        self.advance("the longest prefix is cached")
        self.warm()
        self.contexts()
        self.batches()

    def cold(self) -> None:
        """Time first tokens of prompts of which nothing is read."""
        for _ in range(self.plan.colds):
            for length in self._dice.sample(self.plan.cached, len(self.plan.cached)):
                ask = Ask(self._text[:length], self.timed.suffix(), "", UNCACHED)
                self.points.add(COLD, length, self.timed.first_token_ms(ask))
                self.points.add(COLD_FLOOR, length, self._prefill_floor_ms(length))
                self.advance(f"{length:,} tokens, nothing cached")

    def warm(self) -> None:
        """Time first tokens over more and more that is cached, each round in another order."""
        self.timed.first_token_ms(self._ask(self.plan.cached[0]))
        for round_ in range(self.plan.rounds):
            for cached in self._dice.sample(self.plan.cached, len(self.plan.cached)):
                self.points.add(WARM, cached, self.timed.first_token_ms(self._ask(cached)))
                self.points.add(WARM_FLOOR, cached, self.timed.floor.ms(SUFFIX_TOKENS, wanted=1))
            self.advance(f"first tokens on cached prefixes, round {round_ + 1} of {self.plan.rounds}")

    def contexts(self) -> None:
        """Time the steps of one sequence behind more and more context."""
        for context in self.plan.cached:
            self._steps(CONTEXT, CONTEXT_FLOOR, context, [self._ask(context)])
            self.advance(f"answering behind {context:,} tokens")

    def batches(self) -> None:
        """Time the steps of more and more sequences, over one prefix and over one each."""
        for count in self.plan.sequences:
            self._steps(SHARED, BATCH_FLOOR, count, [self._ask(self.plan.shared) for _ in range(count)])
            self.advance(f"{count} on one prefix")
        for at in range(max(self.plan.sequences)):
            self.timed.cache(self._text[: self.plan.own], f"own {at}")
        for count in self.plan.sequences:
            asks = [self._ask(self.plan.own, partition=f"own {at}") for at in range(count)]
            self._steps(OWN, BATCH_FLOOR, count, asks)
            self.advance(f"{count} on prefixes of their own")

    def _ask(self, cached: int, *, partition: str = "") -> Ask:
        return Ask(self._text[:cached], self.timed.suffix(), partition)

    def _steps(self, curve: str, floor: str, at: int, asks: Sequence[Ask]) -> None:
        engine_ms, floor_ms = self.timed.between_tokens_ms(asks, self.plan.decodes)
        self.points.add(curve, at, *engine_ms)
        self.points.add(floor, at, *floor_ms)

    def _prefill_floor_ms(self, length: int) -> float:
        """Time one whole step's linear layers and those of the rest; a prompt needs the first as often as it fits."""
        whole = self.timed.core.config.step_tokens
        chunks, rest = divmod(length + SUFFIX_TOKENS, whole)
        chunk_ms = self.timed.floor.ms(whole, wanted=0) if chunks else 0.0
        return chunks * chunk_ms + self.timed.floor.ms(rest, wanted=1)
