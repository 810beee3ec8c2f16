"""The bundled engine in the shape of an upstream. Pure.

Rule: the gateway alone makes one; whether it may be asked is the engine's own word.
"""

from __future__ import annotations

from typing import Protocol

from gateway.relay.upstream import BUNDLED, PATHS, Upstream


class Engine(Protocol):
    """The bundled engine as routing sees it."""

    @property
    def model(self) -> str:
        """The model that it serves."""

    @property
    def card(self) -> object | None:
        """What is served, None while nothing can be."""

    @property
    def restarts(self) -> int:
        """How often it was started again."""


class Bundled(Upstream, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine in the shape of an upstream; only the gateway makes one."""

    name: str = BUNDLED
    base_url: str = ""

    def __post_init__(self) -> None:
        """No operator wrote it, so there is nothing to refuse."""


def bundled(model: str, most: int) -> Bundled:
    """Describe an engine that serves `model` and takes `most` requests at a time."""
    return Bundled(models=(model,), apis=tuple(PATHS), max_requests=most)
