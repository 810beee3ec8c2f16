"""One upstream and what is known of it; what a change of all of them comes to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from gateway.record import Outcome
from gateway.relay.bundled import Engine
from gateway.relay.health import Health
from gateway.relay.upstream import BUNDLED, Upstream
from prefix_store.breaker import Circuit


@dataclass(slots=True)
class Replica:
    """One upstream and what is known of it. Counts only grow."""

    upstream: Upstream
    health: Health
    engine: Engine | None = None  # of the bundled one
    life: int = 0  # how often it was lost: what it was sent before is not believed of it any more
    open: int = 0  # requests that it is answering
    requests: int = 0
    failures: int = 0
    draining: bool = False
    prompt_tokens: int = 0  # of answers that said what was read
    read_tokens: int = 0
    available_tokens: int = 0
    captured_tokens: int = 0
    retries: int = 0  # requests that went on from it to another
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(get_args(Outcome), 0))

    @property
    def name(self) -> str:
        """What metrics, ledger and page call it."""
        return self.upstream.name

    @property
    def well(self) -> bool:
        """Whether it is there, well, and not on its way out."""
        if self.draining or (self.engine is not None and self.engine.card is None):
            return False
        return self.health.well and self.health.open

    @property
    def may_be_asked(self) -> bool:
        """Whether it is well and has room."""
        return self.well and self.open < self.upstream.max_requests

    @property
    def state(self) -> str:
        """Return its state in one word, the gravest first."""
        if self.draining:
            return "draining"
        if self.engine is not None:
            return "unwell" if self.engine.card is None else BUNDLED
        if not self.health.well:
            return "unwell"
        if self.health.breaker.circuit is not Circuit.CLOSED:
            return str(self.health.breaker.circuit.value)
        return "aside" if self.health.aside else "well"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What became of upstreams, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]


def changes_of(before: Mapping[str, Upstream], after: Mapping[str, Upstream]) -> Changes:
    """Compare what was configured with what is."""
    both = sorted(before.keys() & after.keys())
    return Changes(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(name for name in both if before[name] != after[name]),
        unchanged=tuple(name for name in both if before[name] == after[name]),
    )
