"""What of one sequence bends its next choice: the tokens that it has, how often its answer said each, its biases.

Owned by the sequence, which adds each token as it comes, so that no step counts a prompt again. Knows no numpy: plain
arrays, which whoever computes reads as they lie. Rule: what counts is the sequence's tokens, whether their K/V were
computed or read from the cache.
"""

from __future__ import annotations

from array import array

from engine.messages import Sampling


def weighs(sampling: Sampling) -> bool:
    """Whether penalties or biases would change anything."""
    return bool(
        sampling.logit_bias
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
    )


class Weighing:
    """The tokens that penalties look at, each once, with how often the answer has said it; and the biases."""

    __slots__ = ("_place", "biased", "biases", "ids", "times")

    def __init__(self, sampling: Sampling, tokens: bytes | bytearray, prompt: int) -> None:
        """Take prompt and answer so far (little-endian uint32); the prompt's count for the repetition penalty alone."""
        known = memoryview(tokens).cast("I")
        first = dict.fromkeys(known[:prompt]) if sampling.repetition_penalty != 1.0 else {}
        self.ids = array("q", first)
        self.times = array("q", bytes(8 * len(first)))
        self.biased = array("q", sampling.logit_bias)
        self.biases = array("d", sampling.logit_bias.values())
        self._place = {token: place for place, token in enumerate(self.ids)}
        for token in known[prompt:]:
            self.say(token)

    def say(self, token: int) -> None:
        """Count one more token of the answer."""
        place = self._place.setdefault(token, len(self.ids))
        if place == len(self.ids):
            self.ids.append(token)
            self.times.append(0)
        self.times[place] += 1
