"""The upstreams there are now, and which of them a request goes to.

Owns each upstream's state and each model's router. Opens no connection; clock and chance are given. Rules: a request is
sent only to an upstream that is well, serves the model, has the endpoint and has room; one that is removed or restarts
is believed to hold nothing from that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import get_args

from gateway.errors import NotSpoken, NoUpstream
from gateway.record import Outcome
from gateway.relay.health import REST_S, Health
from gateway.relay.upstream import Endpoint, Upstream
from gateway.routing.router import Choice, Policy, Router
from gateway.routing.wanted import PIECE_BYTES, Wanted

BLOCK_BYTES_PER_TOKEN = 4.0  # until answers say better


@dataclass(slots=True)
class Replica:
    """One upstream and what is known of it. Counts only grow."""

    upstream: Upstream
    health: Health
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
    def may_be_asked(self) -> bool:
        """Whether it is well and has room."""
        well = self.health.well and self.health.open and not self.draining
        return well and self.open < self.upstream.max_requests


@dataclass(slots=True)
class _Model:
    """One model's routing: its router, and how many bytes of a body make a token, learnt from answers."""

    router: Router
    bytes_per_token: float = field(default=BLOCK_BYTES_PER_TOKEN)


class Fleet:
    """Upstreams by name, and routers by model."""

    def __init__(
        self,
        upstreams: Iterable[Upstream],
        *,
        clock: Callable[[], float],
        policies: Mapping[str, Policy] | None = None,
        chance: Random | None = None,
    ) -> None:
        """Begin with these upstreams; `policies` says how a model's requests are routed, where not by prefix."""
        self.replicas: dict[str, Replica] = {}
        self._clock, self._policies, self._chance = clock, dict(policies or {}), chance
        self._models: dict[str, _Model] = {}
        self.replace(upstreams)

    def replace(self, upstreams: Iterable[Upstream]) -> None:
        """Go on with these upstreams. What changed its address or kind is another one; what is gone is forgotten."""
        wanted = {one.name: one for one in upstreams}
        for name, replica in list(self.replicas.items()):
            new = wanted.get(name)
            if new is None or (new.base_url, new.kind) != (replica.upstream.base_url, replica.upstream.kind):
                self.lost(name)
                del self.replicas[name]
        for name, upstream in wanted.items():
            if name in self.replicas:
                self.replicas[name].upstream = upstream
            else:
                self.replicas[name] = Replica(upstream, Health(self._clock))
            for model in upstream.models:
                self.router(model).weigh(name, upstream.weight)
        for name in [one for one in self._models if one not in self.models]:
            del self._models[name]

    @property
    def models(self) -> set[str]:
        """The models that upstreams serve."""
        return {model for replica in self.replicas.values() for model in replica.upstream.models}

    def router(self, model: str) -> Router:
        """Return the router of a model."""
        if model not in self._models:
            self._models[model] = _Model(Router(self._policies.get(model, "prefix"), chance=self._chance))
        return self._models[model].router

    def policy(self, model: str) -> Policy:
        """Return how a model's requests are routed."""
        known = self._models.get(model)
        return self._policies.get(model, "prefix") if known is None else known.router.policy

    def load_tokens(self, name: str) -> float:
        """Return the work that waits at an upstream, in tokens, over all models."""
        return sum(model.router.loads.at(name) for model in self._models.values())

    def resident_tokens(self, name: str) -> int:
        """Estimate how many tokens an upstream is believed to hold, over all models."""
        pieces = ((model, model.router.residency.blocks(name)) for model in self._models.values())
        return round(sum(PIECE_BYTES * blocks / model.bytes_per_token for model, blocks in pieces))

    def tokens(self, model: str, size: int) -> int:
        """Estimate how many tokens so many bytes of prompt are."""
        self.router(model)
        return max(1, round(size / self._models[model].bytes_per_token))

    def learn_size(self, model: str, size: int, tokens: int) -> None:
        """Hear how many tokens a prompt of so many bytes was."""
        if size and tokens and model in self._models:
            known = self._models[model]
            known.bytes_per_token += 0.1 * (size / tokens - known.bytes_per_token)

    def choose(
        self, model: str, endpoint: Endpoint, wanted: Wanted, now: float, *, tried: Collection[str] = ()
    ) -> tuple[Replica, Choice]:
        """Choose who answers, and count the request there until `Router.over`. Raises NotSpoken, NoUpstream."""
        serving = [one for one in self.replicas.values() if model in one.upstream.models]
        speaking = [one for one in serving if endpoint in one.upstream.endpoints]
        if not speaking:
            others = ", ".join(sorted({api for one in serving for api in one.upstream.endpoints}))
            raise NotSpoken(f"The model {model!r} is not served by this endpoint; its upstreams have: {others}.")
        ready = [one for one in speaking if one.may_be_asked and one.name not in tried]
        kept = [one for one in ready if not one.health.aside]
        kept = kept if 2 * len(kept) >= len(ready) else ready
        while kept:
            names = [one.name for one in kept]
            choice = self.router(model).choose(wanted, names, now)
            replica = self.replicas[choice.replica]
            if replica.health.breaker.admit():
                replica.open += 1
                replica.requests += 1
                return replica, choice
            self.router(model).over(choice, wanted, now, read=None, computed=False)
            kept.remove(replica)
        raise NoUpstream(f"No upstream that serves {model!r} can be asked now.", retry_after_s=REST_S)

    def lost(self, name: str) -> int:
        """Hear that an upstream restarted, was reset or is gone. Return how many pieces are believed no longer."""
        return sum(model.router.gone(name) for model in self._models.values())
