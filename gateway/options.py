"""Settings as options of commands: flag, help and default from the table in `gateway.config`."""

from __future__ import annotations

from typing import Any

import typer

from gateway.config import SETTINGS


def option(name: str) -> Any:
    """Return a setting's option."""
    row = SETTINGS[name]
    unset = row.default or "none"
    return typer.Option(row.flag, metavar=name.upper(), help=f"{row.help} (default: {unset}; {row.env})")
