"""Long English texts that nobody has sent before: pieces of Python's own manual, drawn by number.

Rule: a number gives the same text on every machine with the same Python, and two numbers share no opening.
"""

from __future__ import annotations

import functools
import random
from pydoc_data.topics import topics
from typing import Final

PIECE: Final = 60  # words that stay together
LONGEST: Final = 20  # letters: what is longer is a rule or a table


@functools.cache
def _words() -> tuple[str, ...]:
    every = (word for _, text in sorted(topics.items()) for word in text.split())
    return tuple(word for word in every if word.isascii() and len(word) < LONGEST)


def handbook(number: int, words: int) -> str:
    """Return the text of this number, so many words long beside its title."""
    source, drawn = _words(), random.Random(number)
    text: list[str] = []
    while len(text) < words:
        start = drawn.randrange(len(source) - PIECE)
        text += source[start : start + PIECE]
    return f"Handbook {number}. {' '.join(text[:words])}"
