"""What the engine has done since it started, counted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """What happened since the start; only the scheduler writes them."""

    prompt: int = 0
    read: int = 0
    write: int = 0
    generated: int = 0
    projected: int = 0
    finished: int = 0
    finished_by: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    cancelled: int = 0
    failed: int = 0
    preempted: int = 0
    steps: int = 0
