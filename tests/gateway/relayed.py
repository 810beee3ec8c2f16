"""Relayed exchanges for tests: records as a relay tells them, and a fleet of made-up upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from gateway.record import Record, Routed
from gateway.relay.fleet import Fleet
from gateway.relay.upstream import Upstream
from gateway.routing.router import Policy
from tests.gateway.records import facts, record


def upstream(name: str, *models: str, **more: Any) -> Upstream:
    """An upstream that nobody connects to."""
    return Upstream(name=name, base_url=f"http://{name}.invalid/v1", models=models or ("large",), **more)


def fleet(*upstreams: Upstream, policies: Mapping[str, Policy] | None = None) -> Fleet:
    """A fleet in which time stands still and chance is always the same."""
    return Fleet(upstreams, clock=lambda: 0.0, policies=policies, chance=Random(7))


def relayed(
    prompt: int = 100,
    read: int | None = 60,
    *,
    why: str = "prefix",
    available: int = 80,
    captured: int = 70,
    **changes: Any,
) -> Record:
    """An answer of the upstream `a`; where `read` is None it did not say what it read."""
    unknown = {"timed": False, "misses": ()} | ({"unknown": prompt} if read is None else {})
    known: dict[str, Any] = {
        "model": "large",
        "upstream": "a",
        "prompt": facts(prompt, read or 0, 0, **unknown),
        "projected": None,
        "reported": read is not None,
        "routed": Routed(why=why, available=available, captured=captured, delivered=read),
    }
    return record(**(known | changes))
