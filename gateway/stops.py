"""Stop strings over a stream of text pieces: find the first one, and send everything that cannot be part of one.

Pure. Each stop runs as a Knuth-Morris-Pratt automaton, so a character costs O(1) amortised however long the stops are,
and the outcome does not depend on where the text was cut into pieces.
Rule: the stop that is complete first wins; of those that end at the same character, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Scans one answer. `held` is the longest tail that may still grow into a stop."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepare for `stops`, none of them empty."""
        self._stops = tuple(stops)
        self._borders = tuple(_borders(stop) for stop in self._stops)
        self._depths = [0] * len(self._stops)  # how much of each stop the text ends with
        self._held = ""
        self.hit: str | None = None  # the stop that ended the answer

    def feed(self, text: str) -> str:
        """Take the next piece and return what may be sent now; after `hit` the answer is over."""
        if not self._stops:
            return text
        for position, character in enumerate(text):
            found = self._advance(character)
            if found:
                seen = self._held + text[: position + 1]
                self.hit, self._held = seen[-found:], ""
                return seen[: len(seen) - found]
        seen = self._held + text
        keep = max(self._depths)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]

    def finish(self) -> str:
        """Return what was held back: the answer ended before it became a stop."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Move every automaton by one character; the length of the stop that is now complete, or 0."""
        found = 0
        for index, stop in enumerate(self._stops):
            depth = self._depths[index]
            while depth and stop[depth] != character:
                depth = self._borders[index][depth - 1]
            if stop[depth] == character:
                depth += 1
            if depth == len(stop):
                found = max(found, depth)
                depth = self._borders[index][depth - 1]
            self._depths[index] = depth
        return found


def _borders(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper prefix that is also its suffix. O(n)."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        borders[index] = length
    return borders
