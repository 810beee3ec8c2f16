"""The rivals' own virtual environments, made once and kept in Keepwarm's cache folder.

Rule: a rival is installed from a registry at a stated version, apart from Keepwarm and from the others; a folder that
was not finished is made anew, but for what took long to compile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.config import cache_dir, read_settings

DONE: Final = "installed"
CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"  # asked where the machine's registry has no CPU build
LAST: Final = 800  # characters of an installer's complaint that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One rival as its registry calls it, and what is installed in the same step."""

    name: str
    version: str
    extra: str = ""
    beside: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.name}{self.extra}=={self.version}"


def peers_dir() -> Path:
    """Return the folder of all rivals."""
    return cache_dir(read_settings({}, os.environ), os.environ) / "peers"


def installed(
    package: Package,
    folder: Path | None = None,
    tools: Sequence[str] = (),
    finish: Callable[[Path], None] | None = None,
    kept: Container[str] = (),
) -> Path:
    """Return the folder of a rival's commands, installing it first where it is not there. Raises RuntimeError.

    With `tools`, these are installed in place of the package itself, which `finish` then makes. `finish` is told the
    environment, and does what pip does not; what it leaves in folders called as in `kept` is there again when it is
    told anew after it was broken off.
    """
    home = (folder or peers_dir()) / f"{package.name}-{package.version}"
    commands = home / "bin"
    if (home / DONE).is_file():
        return commands
    home.mkdir(parents=True, exist_ok=True)
    for part in home.iterdir():
        if part.name not in kept:
            shutil.rmtree(part) if part.is_dir() and not part.is_symlink() else part.unlink()
    call([sys.executable, "-m", "venv", str(home)])
    pip_install(home, tools or (*package.beside, package.requirement))
    if finish is not None:
        finish(home)
    (home / DONE).touch()
    return commands


def pip_install(home: Path, requirements: Sequence[str]) -> None:
    """Install into an environment. Raises RuntimeError."""
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    try:
        call([*command, *requirements])
    except RuntimeError:
        if not any("+cpu" in each for each in requirements):
            raise
        call([*command, "--extra-index-url", CPU_INDEX, *requirements])


def call(command: Sequence[str], **environ: str) -> None:
    """Run a command to its end. Raises RuntimeError with its last words."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | environ)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-LAST:]
        raise RuntimeError(f"{' '.join(command)} failed: {said}")
