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
from gateway.relay.bundled import Engine, bundled
from gateway.relay.health import REST_S, Health
from gateway.relay.replica import Changes, Replica, changes_of
from gateway.relay.upstream import BUNDLED, Endpoint, Upstream
from gateway.routing.router import Choice, Policy, Router
from gateway.routing.wanted import PIECE_BYTES, Wanted

BLOCK_BYTES_PER_TOKEN = 4.0  # until answers say better


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
        engine: Engine | None = None,
        engine_requests: int = 1,
    ) -> None:
        """Begin with these upstreams; `policies` says how a model's requests are routed, where not by prefix.

        An `engine` that takes `engine_requests` at a time is one more candidate for its model where upstreams serve it.
        """
        self.replicas: dict[str, Replica] = {}
        self.models: frozenset[str] = frozenset()  # that upstreams serve
        self.policies: Mapping[str, Policy] = {}
        self._clock, self._chance = clock, chance
        self._engine, self._engine_requests, self._engine_life = engine, engine_requests, 0
        self._models: dict[str, _Model] = {}
        self._followers: list[Follower] = []
        self._capacities: dict[str, int] = {}  # in tokens, of replicas that said
        self.replace(upstreams, policies or {})

    def follow(self, follower: Follower) -> None:
        """Tell `follower` from now on, and choose as one of several that choose."""
        self._followers.append(follower)
        for model in self._models.values():
            model.router.together = True

    def replace(self, upstreams: Iterable[Upstream], policies: Mapping[str, Policy] | None = None) -> Changes:
        """Go on with these upstreams, and these policies if any are given; all at once.

        What changed its address or kind is another one; what is gone is forgotten, and what it still answers ends.
        """
        wanted = {one.name: one for one in upstreams}
        before = {name: one.upstream for name, one in self.replicas.items() if one.engine is None}
        self.models = frozenset(model for one in wanted.values() for model in one.models)
        self.policies = dict(self.policies if policies is None else policies)
        changes = changes_of(before, wanted)
        if self._engine is not None and self._engine.model in self.models:
            wanted[BUNDLED] = bundled(self._engine.model, self._engine_requests)
        for name, replica in list(self.replicas.items()):
            new = wanted.get(name)
            if new is None or (new.base_url, new.kind) != (replica.upstream.base_url, replica.upstream.kind):
                self._capacities.pop(name, None)
                self.lost(name)
                del self.replicas[name]
        self._models = {model: known for model, known in self._models.items() if model in self.models}
        for model, known in self._models.items():
            known.router.policy = self.policies.get(model, "prefix")
        for name, upstream in wanted.items():
            self._go_on(name, upstream)
        return changes

    def _go_on(self, name: str, upstream: Upstream) -> None:
        """Go on with what is said of one upstream now."""
        if name in self.replicas:
            for model in set(self.replicas[name].upstream.models) & self.models - set(upstream.models):
                self.router(model).gone(name)
            self.replicas[name].upstream = upstream
        else:
            engine = self._engine if name == BUNDLED else None
            self.replicas[name] = Replica(upstream, Health(self._clock), engine)
        for model in upstream.models:
            self.router(model).weigh(name, upstream.weight)
        if upstream.capacity_tokens is not None:
            self.bound(name, upstream.capacity_tokens)

    def router(self, model: str) -> Router:
        """Return the router of a model."""
        if model not in self._models:
            router = Router(self.policies.get(model, "prefix"), chance=self._chance)
            router.together = bool(self._followers)
            self._models[model] = _Model(router)
        return self._models[model].router

    def policy(self, model: str) -> Policy:
        """Return how a model's requests are routed."""
        known = self._models.get(model)
        return self.policies.get(model, "prefix") if known is None else known.router.policy

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
        if self._engine is not None and self._engine.restarts != self._engine_life:
            self._engine_life = self._engine.restarts
            self.lost(BUNDLED)
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

    def computed(self, router: Router, model: str, choice: Choice, wanted: Wanted, now: float) -> float:
        """Hear from whom `router` chose that a prompt is computed at `now`, which is returned; its answer goes on."""
        router.answering(choice)
        for follower in self._followers:
            follower.computed(model, choice, wanted, now)
        return now

    def over(
        self,
        router: Router,
        model: str,
        choice: Choice,
        wanted: Wanted,
        now: float,
        *,
        read: int | None,
        computed: bool,
    ) -> None:
        """Hear that a request is over, as its router hears it."""
        router.over(choice, wanted, now, read=read, computed=computed)
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
        if name in self.replicas:
            self.replicas[name].life += 1
        for follower in self._followers if tell else ():
            follower.lost(name)
        gone = sum(model.router.gone(name) for model in self._models.values())
        if name in self._capacities and name in self.replicas:
            for model in self.replicas[name].upstream.models:
                self._bound(model, name)
        return gone

    def load_tokens(self, name: str) -> int:
        """Return the work that waits at an upstream, in tokens."""
        return round(sum(model.router.loads.at(name) for model in self._models.values()))

    def resident_tokens(self, name: str) -> int:
        """Estimate the tokens that an upstream is believed to hold."""
        return round(
            sum(
                known.router.residency.blocks(name) * PIECE_BYTES / known.bytes_per_token
                for known in self._models.values()
            )
        )
