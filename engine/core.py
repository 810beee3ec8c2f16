"""The synchronous engine: requests in, deltas out, one step at a time.

Owns scheduler and runner. Knows no sockets; its clock is given, and tests give their own. Rule: every request that was
submitted ends in exactly one last event, and a step that fails takes only its own sequences with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Protocol

import structlog

from engine import operations
from engine.cache import PrefixCache
from engine.config import EngineConfig
from engine.errors import EngineError, Overloaded, PromptTooLong, QueueTimeout, RequestRefused
from engine.messages import (
    Abort,
    AskStats,
    Changed,
    Delta,
    EngineBound,
    EngineStats,
    Entries,
    ListEntries,
    ModelCard,
    Purge,
    Refused,
    SetPolicies,
    Submit,
)
from engine.request import TOKEN_BYTES, Request
from engine.scheduler import Chunk, Scheduler
from engine.sequence import Sequence
from prefix_store.chain import Namespace

SWEEP_NODES = 64  # expired nodes freed between two steps; bounds how long a sweep holds the loop
RETRY_AFTER_S = 1.0
DEFAULT_TENANT = "default"

log = structlog.get_logger("engine")


class Computes(Protocol):
    """What the core needs of a runner; tests may script it."""

    def run(self, chunks: Items[Chunk]) -> list[int]:
        """Compute one step and return one token per chunk that samples."""


class EngineCore:
    """One engine. Call `handle` with messages and `step` until it is no longer `busy`."""

    def __init__(self, config: EngineConfig, card: ModelCard, runner: Computes, clock: Callable[[], float]) -> None:
        self.config = config
        self.card = card
        self.runner = runner
        self.clock = clock
        self.cache = PrefixCache(blocks=card.blocks, block_tokens=card.block_tokens, model=card.name)
        self.scheduler = Scheduler(
            self.cache,
            step_tokens=config.step_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=card.max_model_len,
            queue_timeout_s=config.queue_timeout_s,
        )

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.busy

    def handle(self, message: EngineBound) -> Refused | EngineStats | Changed | Entries | None:
        """Take in one message. Return what must be answered at once."""
        match message:
            case Submit():
                return self._submit(message)
            case Abort(id=request_id):
                self.scheduler.cancel(request_id, now=self.clock())
                return None
            case AskStats():
                return self.stats()
            case _:
                return self._operate(message)

    def step(self) -> list[Delta | Refused]:
        """Run one step of everything that can run, and free what has expired."""
        now = self.clock()
        self.cache.sweep(now=now, nodes=SWEEP_NODES)
        late: list[Delta | Refused] = [self._too_late(sequence) for sequence in self.scheduler.overdue(now=now)]
        chunks = self.scheduler.plan(now=now)
        if not chunks:
            return late
        try:
            sampled = self.runner.run(chunks)
        except Exception as error:
            log.exception("step_failed", sequences=len(chunks))
            failed = [chunk.sequence for chunk in chunks]
            self.scheduler.fail(failed, now=self.clock())
            reason = EngineError(f"The engine failed while computing this request ({type(error).__name__}).")
            return late + [refused(sequence.request.id, reason) for sequence in failed]
        return late + list(self.scheduler.absorb(chunks, sampled, now=self.clock()))

    def sweep(self) -> int:
        """Free expired blocks while idle; return how many went."""
        return self.cache.sweep(now=self.clock(), nodes=SWEEP_NODES)

    def stats(self) -> EngineStats:
        """Return a snapshot; it renews nothing."""
        cache, counters = self.cache.stats(), self.scheduler.counters
        return EngineStats(
            waiting=self.scheduler.waiting,
            running=self.scheduler.running,
            blocks_free=cache.free,
            blocks_cached=cache.cached,
            blocks_held=cache.held,
            nodes=cache.nodes,
            prompt_tokens_total=counters.prompt,
            read_tokens_total=counters.read,
            write_tokens_total=counters.write,
            generated_tokens_total=counters.generated,
            projected_tokens_total=counters.projected,
            requests_finished_total=counters.finished,
            requests_cancelled_total=counters.cancelled,
            requests_failed_total=counters.failed,
            preemptions_total=counters.preempted,
            blocks_evicted_total=cache.evicted_total,
            blocks_expired_total=cache.expired_total,
            steps_total=counters.steps,
            blocks_promised=cache.promised,
            tombstones=len(self.cache.tree.tombstones),
            tenant_blocks=dict(self.cache.tree.census.by_tenant),
            broken_promises={f"{klass}|{tenant}": n for (klass, tenant), n in self.cache.tree.broken.items()},
            purged_total=cache.purged_total,
        )

    def _too_late(self, sequence: Sequence) -> Refused:
        waited = self.config.queue_timeout_s
        message = f"The request waited {waited:g} s for room and got none."
        return refused(sequence.request.id, QueueTimeout(message, retry_after_s=RETRY_AFTER_S))

    def _accept(self, submit: Submit) -> Request:
        """Check a request at the door; what passes can always be served."""
        prompt = len(submit.tokens) // TOKEN_BYTES
        limit, pool = self.card.max_model_len, self.card.blocks * self.card.block_tokens
        if prompt == 0:
            raise RequestRefused("The prompt has no tokens.", field="messages")
        if submit.max_tokens < 1:
            raise RequestRefused(f"max_tokens must be at least 1, not {submit.max_tokens}.", field="max_tokens")
        if prompt + submit.max_tokens > limit:
            raise PromptTooLong.of(prompt=prompt, answer=submit.max_tokens, limit=limit)
        if prompt + submit.max_tokens > pool:
            raise RequestRefused(
                f"This server's KV memory holds {pool} tokens. However, you requested {prompt + submit.max_tokens} "
                f"tokens ({prompt} in the messages, {submit.max_tokens} in the completion).",
                field="messages",
            )
        highest = max(memoryview(submit.tokens).cast("I"))
        if highest >= self.card.vocab_size:
            raise RequestRefused(f"Token id {highest} is not below {self.card.vocab_size}.", field="messages")
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
            stop_ids=frozenset(submit.stop_ids),
            keep=submit.keep,
            seed=seed,
        )

    def _submit(self, submit: Submit) -> Refused | None:
        try:
            self.scheduler.add(Sequence(self._accept(submit), now=self.clock()))
        except EngineError as error:
            return refused(submit.id, error)
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
            kv_dtype=self.card.dtype,
            block_tokens=self.card.block_tokens,
            partition=partition,
        )


def refused(request_id: str, error: EngineError) -> Refused:
    """Turn an error into the message that carries it over the border."""
    return Refused(
        id=request_id,
        kind=type(error).__name__,
        message=str(error),
        field=getattr(error, "field", ""),
        retry_after_s=getattr(error, "retry_after_s", 0.0),
    )
