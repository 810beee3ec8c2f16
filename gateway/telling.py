"""How a command tells what it found: a page of characters, the same as JSON, a picture in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console

from gateway.errors import ConfigError


def page(width: int) -> Console:
    """Return where to print: the terminal, or so many columns where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=width, highlight=False)


def print_json(told: Mapping[str, Any]) -> None:
    """Print what was found for programs."""
    typer.echo(msgspec.json.format(msgspec.json.encode(told)).decode())


def save(picture: str, file: Path) -> None:
    """Write a picture. Raises ConfigError when the file cannot be written."""
    try:
        file.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--picture {file}: {error.strerror}") from error
