"""The upstreams there are now, and which of them a request goes to.

Owns each upstream's state and each model's router. Opens no connection; clock and chance are given. Rules: a request is
sent only to an upstream that is well, serves the model, has the endpoint and has room; one that is removed or restarts
is believed to hold nothing from that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from random import Random
from typing import Protocol

from gateway.errors import NotSpoken, NoUpstream
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
    piece_bytes: float = float(PIECE_BYTES)


class Follower(Protocol):
    """Who is told what a fleet learns, at once and without waiting."""

    def computed(self, model: str, choice: Choice, wanted: Wanted, now: float) -> None:
        """Hear that a prompt is computed; its answer goes on."""

    def learnt(self, model: str, choice: Choice, wanted: Wanted, now: float, *, read: int | None) -> None:
        """Hear what an answer said: its prompt was computed, and `read` tokens of it were not, where it said so."""

    def lost(self, replica: str) -> None:
        """Hear that a replica holds nothing any more."""


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
        self._followers: list[Follower] = []
        self._capacities: dict[str, int] = {}  # in tokens, of replicas that said
        self.replace(upstreams)

    def follow(self, follower: Follower) -> None:
        """Tell `follower` from now on, and choose as one of several that choose."""
        self._followers.append(follower)
        for model in self._models.values():
            model.router.together = True

    def replace(self, upstreams: Iterable[Upstream]) -> None:
        """Go on with these upstreams. What changed its address or kind is another one; what is gone is forgotten."""
        wanted = {one.name: one for one in upstreams}
        for name, replica in list(self.replicas.items()):
            new = wanted.get(name)
            if new is None or (new.base_url, new.kind) != (replica.upstream.base_url, replica.upstream.kind):
                self._capacities.pop(name, None)
                self.lost(name)
                del self.replicas[name]
        for name, upstream in wanted.items():
            if name in self.replicas:
                self.replicas[name].upstream = upstream
            else:
                self.replicas[name] = Replica(upstream, Health(self._clock))
            for model in upstream.models:
                self.router(model).weigh(name, upstream.weight)
            if upstream.capacity_tokens is not None:
                self.bound(name, upstream.capacity_tokens)
        for name in [one for one in self._models if one not in self.models]:
            del self._models[name]

    @property
    def models(self) -> set[str]:
        """The models that upstreams serve."""
        return {model for replica in self.replicas.values() for model in replica.upstream.models}

    def router(self, model: str) -> Router:
        """Return the router of a model."""
        if model not in self._models:
            router = Router(self._policies.get(model, "prefix"), chance=self._chance)
            router.together = bool(self._followers)
            self._models[model] = _Model(router)
        return self._models[model].router

    def tokens(self, model: str, size: int) -> int:
        """Estimate how many tokens so many bytes of prompt are."""
        self.router(model)
        return max(1, round(size / self._models[model].bytes_per_token))

    def learn_size(self, model: str, size: int, tokens: int, pieces: int = 0) -> None:
        """Hear how many tokens a prompt of so many bytes was, and in how many pieces it was hashed."""
        if size and tokens and model in self._models:
            known = self._models[model]
            known.bytes_per_token += 0.1 * (size / tokens - known.bytes_per_token)
            if pieces:
                known.piece_bytes += 0.1 * (size / pieces - known.piece_bytes)

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

    def computed(self, model: str, choice: Choice, wanted: Wanted, now: float) -> None:
        """Hear that a request's prompt is computed; its answer goes on."""
        self.router(model).answering(choice)
        for follower in self._followers:
            follower.computed(model, choice, wanted, now)

    def over(self, model: str, choice: Choice, wanted: Wanted, now: float, *, read: int | None, computed: bool) -> None:
        """Hear that a request is over, as a router hears it."""
        self.router(model).over(choice, wanted, now, read=read, computed=computed)
        if computed:
            for follower in self._followers:
                follower.learnt(model, choice, wanted, now, read=read)

    def bound(self, name: str, tokens: int) -> None:
        """Hear how many tokens an upstream's cache holds. What its operator said of it stands."""
        if name in self.replicas:
            self._capacities[name] = self.replicas[name].upstream.capacity_tokens or tokens
            for model in self.replicas[name].upstream.models:
                self._bound(model, name)

    def _bound(self, model: str, name: str) -> None:
        self.router(model)
        known = self._models[model]
        pieces = self._capacities[name] * known.bytes_per_token / known.piece_bytes
        known.router.residency.bound(name, max(1, ceil(pieces)))

    def routers(self) -> list[tuple[str, Router]]:
        """Return each model's router."""
        return [(model, known.router) for model, known in self._models.items()]

    def lost(self, name: str, *, tell: bool = True) -> int:
        """Hear that an upstream restarted, was reset or is gone. Return how many pieces are believed no longer."""
        for follower in self._followers if tell else ():
            follower.lost(name)
        gone = self._lost(name)
        for model in self.replicas[name].upstream.models if name in self._capacities else ():
            self._bound(model, name)
        return gone

    def _lost(self, name: str) -> int:
        return sum(model.router.gone(name) for model in self._models.values())
