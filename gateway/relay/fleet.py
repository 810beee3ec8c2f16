"""The upstreams there are now, and which of them a request goes to.

Owns each upstream's state and each model's router. Opens no connection; clock and chance are given. Rules: a request is
sent only to an upstream that is well, serves the model, has the endpoint and has room; one that is removed or restarts
is believed to hold nothing from that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from gateway.errors import NotSpoken, NoUpstream
from gateway.relay.bundled import Engine, bundled
from gateway.relay.health import REST_S, Health
from gateway.relay.upstream import BUNDLED, Endpoint, Upstream
from gateway.routing.router import Choice, Policy, Router
from gateway.routing.wanted import PIECE_BYTES, Wanted
from prefix_store.breaker import Circuit

BLOCK_BYTES_PER_TOKEN = 4.0  # until answers say better


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
        self.replace(upstreams, policies or {})

    def replace(self, upstreams: Iterable[Upstream], policies: Mapping[str, Policy] | None = None) -> Changes:
        """Go on with these upstreams, and these policies if any are given; all at once.

        What changed its address or kind is another one; what is gone is forgotten, and what it still answers ends.
        """
        wanted = {one.name: one for one in upstreams}
        before = {name: one.upstream for name, one in self.replicas.items() if one.engine is None}
        self.models = frozenset(model for one in wanted.values() for model in one.models)
        self.policies = dict(self.policies if policies is None else policies)
        changes = _changes(before, wanted)
        if self._engine is not None and self._engine.model in self.models:
            wanted[BUNDLED] = bundled(self._engine.model, self._engine_requests)
        for name, replica in list(self.replicas.items()):
            new = wanted.get(name)
            if new is None or (new.base_url, new.kind) != (replica.upstream.base_url, replica.upstream.kind):
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

    def router(self, model: str) -> Router:
        """Return the router of a model."""
        if model not in self._models:
            self._models[model] = _Model(Router(self.policies.get(model, "prefix"), chance=self._chance))
        return self._models[model].router

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

    def lost(self, name: str) -> int:
        """Hear that an upstream restarted, was reset or is gone. Return how many pieces are believed no longer."""
        if name in self.replicas:
            self.replicas[name].life += 1
        return sum(model.router.gone(name) for model in self._models.values())

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


def _changes(before: Mapping[str, Upstream], after: Mapping[str, Upstream]) -> Changes:
    both = sorted(before.keys() & after.keys())
    return Changes(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(name for name in both if before[name] != after[name]),
        unchanged=tuple(name for name in both if before[name] == after[name]),
    )
