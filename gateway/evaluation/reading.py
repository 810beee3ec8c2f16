"""The long text whose perplexity is measured and whose sentences hide the facts; the stretches in which it is read."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.demo.handbook import HANDBOOK
from gateway.evaluation.errors import Unmeasurable

MOST_BYTES: Final = 1 << 20  # of a file; what comes after is not read
MOST_TOKENS: Final = 32_768  # whose log-probabilities are told


def read_text(file: Path | None) -> tuple[str, str]:
    """Return the text's name and the text; the bundled one where no file is given. Raises Unmeasurable."""
    if file is None:
        return "a harbour's handbook", HANDBOOK
    try:
        with file.open("rb") as stream:
            read = stream.read(MOST_BYTES)
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(read, final=len(read) < MOST_BYTES)
    except OSError as error:
        raise Unmeasurable(f"--text {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unmeasurable(f"--text {file}: no UTF-8 text ({error.reason} at byte {error.start})") from error
    if not text.strip():
        raise Unmeasurable(f"--text {file}: holds no text")
    return file.name, text


def stretches(tokens: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Slide a window over a text: (from, to, told from), so that each token is told once.

    All but the first window's are told after at least half a window that is read again.
    """
    start = told = 0
    while told < tokens:
        end = min(start + width, tokens)
        yield start, end, told
        told = end
        start += max(1, width // 2)
