"""The synchronous engine: requests in, deltas out, one step at a time.

Owns scheduler and runner, and asks at each step what the compiler of grammars has ready. Knows no sockets; its clock
is given, and tests give their own. Rule: every request that was submitted ends in exactly one last event, and a step
that fails takes only its own sequences with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Protocol

import structlog

from engine import operations, reading
from engine.cache import PrefixCache
from engine.checks import check
from engine.chunk import Chunk, Outcome
from engine.config import EngineConfig
from engine.errors import EngineError, Overloaded, QueueTimeout, RequestRefused
from engine.facts import refused
from engine.messages import Abort, Delta, EngineBound, ModelCard, Refused, Submit
from engine.operator_messages import (
    AskRetention,
    AskStats,
    AskTree,
    Changed,
    EngineStats,
    Entries,
    ListEntries,
    Purge,
    RetentionView,
    SetPolicies,
    Tree,
)
from engine.request import Request
from engine.scheduler import Scheduler
from engine.sequence import Matcher, Sequence
from engine.survey import Surveys
from prefix_store.chain import Namespace

SWEEP_NODES = 64  # expired nodes freed between two steps; bounds how long a sweep holds the loop
RETRY_AFTER_S = 1.0
DEFAULT_TENANT = "default"

log = structlog.get_logger("engine")


class Computes(Protocol):
    """What the core needs of a runner; tests may script it."""

    def run(self, chunks: Items[Chunk]) -> list[Outcome]:
        """Compute one step and return what came of each chunk."""


class Grammars(Protocol):
    """What the core needs of a compiler of grammars, which works beside the steps; tests may drive it by hand."""

    @property
    def pending(self) -> bool:
        """Whether any grammar was begun and not taken yet."""

    @property
    def ready(self) -> bool:
        """Whether `take` would return something."""

    def begin(self, request_id: str, grammar: str) -> None:
        """Start compiling a request's grammar, or finding it compiled; never waits."""

    def forget(self, request_id: str) -> None:
        """Drop a request's grammar; an unknown id has none."""

    def take(self) -> list[tuple[str, Matcher | EngineError]]:
        """Hand over, once, what is compiled or why it is not."""

    def close(self) -> None:
        """Begin nothing more."""


class EngineCore:
    """One engine. Call `handle` with messages, `step` until it is no longer `busy`, `look` while it is `looking`."""

    def __init__(
        self,
        config: EngineConfig,
        card: ModelCard,
        runner: Computes,
        clock: Callable[[], float],
        *,
        grammars: Grammars,
    ) -> None:
        self.config = config
        self.card = card
        self.runner = runner
        self.clock = clock
        self.grammars = grammars
        self.cache = PrefixCache(blocks=card.blocks, block_tokens=card.block_tokens, model=card.name)
        self.scheduler = Scheduler(
            self.cache,
            step_tokens=config.step_tokens,
            inter_token_s=config.inter_token_s,
            max_num_seqs=config.max_num_seqs,
            max_model_len=card.max_model_len,
            queue_timeout_s=config.queue_timeout_s,
        )
        self.surveys = Surveys(self.cache.tree)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.busy or self.grammars.ready

    @property
    def looking(self) -> bool:
        """Whether `look` has anything to do."""
        return self.surveys.pending

    @property
    def compiling(self) -> bool:
        """Whether a request waits for its grammar, so that a step will have something to do without any message."""
        return self.grammars.pending

    def handle(self, message: EngineBound) -> Refused | EngineStats | Changed | Entries | None:
        """Take in one message. Return what must be answered at once."""
        match message:
            case Submit():
                return self._submit(message)
            case Abort(id=request_id):
                self.grammars.forget(request_id)
                self.scheduler.cancel(request_id, now=self.clock())
                return None
            case AskStats():
                return self.stats()
            case AskTree() | AskRetention():
                self.surveys.ask(message)
                return None
            case _:
                return self._operate(message)

    def step(self) -> list[Delta | Refused]:
        """Run one step of everything that can run, and free what has expired."""
        now = self.clock()
        self.cache.sweep(now=now, nodes=SWEEP_NODES)
        early: list[Delta | Refused] = [*self._confine(now=now), *self._overdue(now=now)]
        chunks = self.scheduler.plan(now=now)
        if not chunks:
            return early
        try:
            outcomes = self.runner.run(chunks)
        except Exception as error:
            log.exception("step_failed", sequences=len(chunks))
            failed = [chunk.sequence for chunk in chunks]
            self.scheduler.fail(failed, now=self.clock())
            reason = EngineError(f"The engine failed while computing this request ({type(error).__name__}).")
            return early + [refused(sequence.request.id, reason) for sequence in failed]
        return early + self.scheduler.absorb(chunks, outcomes, now=self.clock())

    def sweep(self) -> int:
        """Free expired blocks while idle; return how many went."""
        return self.cache.sweep(now=self.clock(), nodes=SWEEP_NODES)

    def stats(self) -> EngineStats:
        """Return a snapshot; it renews nothing."""
        return reading.read(self.cache, self.scheduler)

    def look(self) -> list[RetentionView | Tree]:
        """Go on with what was asked of the whole tree; return what is complete."""
        return self.surveys.advance(self.clock())

    def _confine(self, *, now: float) -> list[Refused]:
        """Let those go on whose grammar is compiled; refuse those whose grammar does not compile."""
        refusals = []
        for request_id, compiled in self.grammars.take():
            if isinstance(compiled, EngineError):
                self.scheduler.refuse(request_id, now=now)
                refusals.append(refused(request_id, compiled))
            else:
                self.scheduler.confine(request_id, compiled)
        return refusals

    def _overdue(self, *, now: float) -> list[Refused]:
        """Refuse those who have waited too long."""
        error = QueueTimeout(
            f"The request waited {self.config.queue_timeout_s:g} s for room and got none.", retry_after_s=RETRY_AFTER_S
        )
        late = [sequence.request.id for sequence in self.scheduler.overdue(now=now)]
        for request_id in late:
            self.grammars.forget(request_id)
        return [refused(request_id, error) for request_id in late]

    def _accept(self, submit: Submit) -> Request:
        """Check a request at the door; what passes can always be served."""
        check(submit, self.card)
        if submit.id in self.scheduler:
            raise RequestRefused(f"A request {submit.id} is under way already.", field="id")
        if self.scheduler.waiting >= self.config.max_waiting:
            raise Overloaded(f"{self.scheduler.waiting} requests wait already.", retry_after_s=RETRY_AFTER_S)
        seed = secrets.randbits(63) if submit.sampling.seed is None else submit.sampling.seed
        return Request(
            id=submit.id,
            tokens=submit.tokens,
            namespace=self._namespace(submit.tenant, submit.partition, submit.rendering),
            max_tokens=submit.max_tokens,
            sampling=submit.sampling,
            stop_ids=frozenset([*submit.stop_ids, *(self.card.eos_ids if submit.grammar else ())]),
            keep=submit.keep,
            prompt_logprobs=submit.prompt_logprobs,
            confined=bool(submit.grammar),
            seed=seed,
        )

    def _submit(self, submit: Submit) -> Refused | None:
        try:
            self.scheduler.add(Sequence(self._accept(submit), now=self.clock()))
        except EngineError as error:
            return refused(submit.id, error)
        if submit.grammar:
            self.grammars.begin(submit.id, submit.grammar)
        return None

    def _operate(self, message: SetPolicies | Purge | ListEntries) -> Changed | Entries:
        now, token_bytes = self.clock(), self.card.kv_bytes_per_token
        match message:
            case SetPolicies():
                return operations.set_policies(self.cache, message, token_bytes=token_bytes, now=now)
            case Purge():
                namespace = self._namespace(message.tenant or DEFAULT_TENANT, message.partition, message.rendering)
                return operations.purge(self.cache, message, namespace=namespace, token_bytes=token_bytes, now=now)
            case ListEntries():
                return operations.list_entries(self.cache, message, now=now)

    def _namespace(self, tenant: str, partition: str, rendering: str) -> Namespace:
        return Namespace(
            tenant=tenant,
            model=self.card.name,
            weights=self.card.weights,
            rendering=rendering,
            kv_dtype=self.card.kv_space,
            block_tokens=self.card.block_tokens,
            partition=partition,
        )
