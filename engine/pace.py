"""How many prompt tokens go into a step beside answers that are being written. Pure: durations are told.

Owns what a prompt token costs, as measured. Rule: an answer waits for one chunk at most between two of its tokens, and
the chunk is as large as keeps that wait near `target_s`, or near `STRETCH` decodes where the machine is too slow for
both; where nobody waits, a step is as large as it may be.
"""

from __future__ import annotations

LEAST_TOKENS = 32  # smaller chunks waste more on reading the weights than they give back
STRETCH = 2.0  # times a decode alone: a prompt gets half of a step at least, however long a decode takes
WEIGHT = 0.25  # of the newest measurement


class Pace:
    """The size of chunks."""

    def __init__(self, target_s: float, most: int) -> None:
        """Aim at `target_s` between two tokens of an answer; never more than `most` tokens a step."""
        self._target_s, self._most = target_s, most
        self._decode_s = 0.0  # of a step without prompt tokens
        self._token_s: float | None = None  # of one prompt token more

    def limit(self, *, answering: bool) -> int:
        """Return how many prompt tokens the next step takes at most; `answering`: somebody waits for a token."""
        if not answering or self._token_s is None:
            return self._most
        left_s = max(self._target_s, STRETCH * self._decode_s) - self._decode_s
        return max(LEAST_TOKENS, min(self._most, int(left_s / self._token_s)))

    def measured(self, prompt_tokens: int, seconds: float) -> None:
        """Hear how long a step took that had so many prompt tokens in it."""
        if seconds <= 0:
            return
        if not prompt_tokens:
            self._decode_s += WEIGHT * (seconds - self._decode_s)
        elif prompt_tokens >= LEAST_TOKENS:
            if self._decode_s >= seconds:  # a step with more in it was faster: that was another time
                self._decode_s = seconds / 2
            cost = (seconds - self._decode_s) / prompt_tokens
            self._token_s = cost if self._token_s is None else self._token_s + WEIGHT * (cost - self._token_s)
