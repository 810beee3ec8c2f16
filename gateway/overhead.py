"""The gateway's own time, by phase. Owns nothing: whoever counts is handed in.

Rule: a phase is measured where it happens, awaiting included, so that a thread that is waited for counts too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, Protocol, get_args

Phase = Literal["auth", "parse", "render", "hash", "account"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


class Stopwatch(Protocol):
    """Who counts the gateway's own time."""

    def spent(self, phase: Phase, seconds: float) -> None:
        """Hear that a phase of one request took so long."""


@contextmanager
def timed(stopwatch: Stopwatch, phase: Phase) -> Iterator[None]:
    """Tell how long the block takes, however it ends."""
    began = time.perf_counter()
    try:
        yield
    finally:
        stopwatch.spent(phase, time.perf_counter() - began)
