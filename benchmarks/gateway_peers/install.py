"""The rivals' own virtual environments, made once and kept in Keepwarm's cache folder.

Rule: a rival is installed from its wheels at a stated version, apart from Keepwarm and from the others; a folder that
was not finished is made anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.config import cache_dir, read_settings

DONE: Final = "installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One rival as its registry calls it."""

    name: str
    version: str
    extra: str = ""

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.name}{self.extra}=={self.version}"


LITELLM: Final = Package(name="litellm", version="1.108.7", extra="[proxy]")
VLLM_ROUTER: Final = Package(name="vllm-router", version="0.1.17")


def peers_dir() -> Path:
    """Return the folder of all rivals."""
    return cache_dir(read_settings({}, os.environ), os.environ) / "peers"


def installed(package: Package, folder: Path | None = None) -> Path:
    """Return the folder of a rival's commands, installing it first where it is not there. Raises RuntimeError."""
    home = (folder or peers_dir()) / f"{package.name}-{package.version}"
    commands = home / "bin"
    if (home / DONE).is_file():
        return commands
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)])
    _run([str(commands / "python"), "-m", "pip", "install", "--quiet", "--no-input", package.requirement])
    (home / DONE).touch()
    return commands


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
