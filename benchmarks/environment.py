"""The environment card: on what, and beside what, the numbers were measured.

Rule: it only reads. It is taken before a benchmark and its load again after it, because a busy machine explains much.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

LIBRARIES = ("torch", "transformers", "aiohttp", "keepwarm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One machine at one moment."""

    taken_at: str  # UTC, ISO 8601
    cpu: str
    cores: int  # that this process may run on
    threads: int  # of torch, in the engine
    memory_gib: float
    system: str
    python: str
    versions: dict[str, str]  # of `LIBRARIES`
    load: float  # average over one minute


def take_card() -> Card:
    """Describe this machine now."""
    return Card(
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=cpu_model(Path("/proc/cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        threads=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: version(name) for name in LIBRARIES},
        load=load(),
    )


def load() -> float:
    """Return how many processes wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def cpu_model(cpuinfo: Path) -> str:
    """Return the processor's name as Linux gives it, or the machine's kind where it gives none."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "model name":
                return value.strip()
    return platform.machine()


def version(distribution: str) -> str:
    """Return an installed version; Keepwarm itself may run from its source tree."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "from source"
