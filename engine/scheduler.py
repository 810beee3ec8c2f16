"""Who runs in the next step. Knows no torch: it decides, the runner computes.

Owns the queue, the running sequences and their phases. Rules:
- decodes go first, one token each; prefills get a chunk beside them that keeps the answers' pace, in `order`'s order;
- a sequence that needs what another is computing stands back for it;
- the sequence admitted first can always go on: when blocks run out, the youngest one is preempted, so there is no
  deadlock; what it finished stays in the tree, so that resuming is cheap;
- every sequence that was added leaves exactly once, through `absorb`, `cancel` or `fail`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine import order
from engine.block_pool import BlockId
from engine.cache import PrefixCache
from engine.chunk import Chunk, Outcome
from engine.coalesce import Coalescing
from engine.errors import RequestRefused
from engine.facts import refused
from engine.messages import Delta, FinishReason, Prefilled, Refused
from engine.pace import Pace
from engine.sequence import Matcher, Phase, Sequence
from prefix_store.leases import Match

SCORED_ROWS = 256  # of prompt log-probabilities in one step: each needs a row of logits as wide as the vocabulary


@dataclass(slots=True)
class _Budget:
    """What is left of one step."""

    tokens: int
    scored: int

    def share(self, sequence: Sequence) -> int:
        """Return how many of a sequence's next tokens the step may still take."""
        return min(sequence.remaining, self.tokens, self.scored if sequence.unscored else self.tokens)

    def spend(self, chunk: Chunk) -> None:
        """Take off what a chunk needs."""
        self.tokens -= chunk.count
        self.scored -= len(chunk.scored)


@dataclass(slots=True)
class Counters:
    """What happened since the start; only the scheduler writes them."""

    prompt: int = 0
    read: int = 0
    write: int = 0
    generated: int = 0
    projected: int = 0
    finished: int = 0
    finished_by: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    cancelled: int = 0
    failed: int = 0
    preempted: int = 0
    steps: int = 0


class Scheduler:
    """Continuous batching over one cache."""

    def __init__(
        self,
        cache: PrefixCache,
        *,
        step_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        queue_timeout_s: float,
        inter_token_s: float,
    ) -> None:
        self.cache = cache
        self.pace = Pace(inter_token_s, step_tokens)
        self.coalescing = Coalescing(cache.block_tokens, cache.tree.storable)
        self._planned: tuple[float, int] | None = None  # when the step under way began, its prompt tokens
        self.queue_timeout_s = queue_timeout_s
        self.step_tokens = step_tokens
        self.scored_rows = SCORED_ROWS
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len  # a table never grows past it: the last tokens are never projected
        self.counters = Counters()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # in the order of admission, oldest first
        self._by_id: dict[str, Sequence] = {}
        self._followers: dict[Sequence, Sequence] | None = None  # who stands back for whom, as far as a step is planned
        self._turns = 0
        self._served: dict[str, int] = {}  # each tenant's last turn, while it has requests here

    def __contains__(self, request_id: str) -> bool:
        """Whether a request of that id waits or runs."""
        return request_id in self._by_id

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: not while all that is there waits for its grammar."""
        return bool(self._running) or any(sequence.ready for sequence in self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._by_id[sequence.request.id] = sequence
        self._waiting.append(sequence)
        self.coalescing.came(sequence, self._peek(sequence, now=sequence.submitted).readable)

    def confine(self, request_id: str, matcher: Matcher) -> None:
        """Let a waiting sequence go on, now that its grammar is compiled."""
        self._by_id[request_id].matcher = matcher

    def refuse(self, request_id: str, *, now: float) -> None:
        """End a waiting sequence whose grammar does not compile."""
        self.fail([self._by_id[request_id]], now=now)

    def cancel(self, request_id: str, *, now: float) -> None:
        """End a sequence whose client has left; finished blocks stay cached. An unknown id may just have ended."""
        if (sequence := self._by_id.get(request_id)) is not None:
            self._end(sequence, Phase.CANCELLED, now=now)
            self.counters.cancelled += 1

    def fail(self, sequences: Iterable[Sequence], *, now: float) -> None:
        """End sequences whose step went wrong. Nothing of the failed step is published."""
        for sequence in sequences:
            self._end(sequence, Phase.FAILED, now=now)
            self.counters.failed += 1

    def overdue(self, *, now: float) -> list[Sequence]:
        """End the sequences that have waited too long for their first room. A preempted one was let in and stays."""
        late = [
            sequence
            for sequence in self._waiting
            if sequence.admitted is None and now - sequence.submitted >= self.queue_timeout_s
        ]
        self.fail(late, now=now)
        return late

    def plan(self, *, now: float) -> list[Chunk]:
        """Choose the chunks of the next step. Preempts and admits as needed; empty when there is nothing to do."""
        chunks: list[Chunk] = []
        budget = _Budget(self.step_tokens, self.scored_rows)
        preempted = self.counters.preempted
        self._followers = None  # since the last plan blocks were published, and requests came and went

        def compute(sequence: Sequence) -> None:
            if chunk := self._chunk(sequence, budget, now=now):
                chunks.append(chunk)
                budget.spend(chunk)

        decoding = [sequence for sequence in self._running if sequence.phase is Phase.DECODE]
        for sequence in decoding:
            compute(sequence)
        budget.tokens = min(budget.tokens, self.pace.limit(answering=bool(chunks)))
        for sequence, weight in self._prefills(now=now):
            while budget.tokens and self.counters.preempted == preempted and sequence.hold is not None:
                if (short := self._admit(now=now, before=(sequence, weight, budget.tokens))) is None:
                    break
                compute(short)
            compute(sequence)
        chunks = [chunk for chunk in chunks if chunk.sequence.hold is not None]  # an older one may have preempted it
        while budget.tokens and self.counters.preempted == preempted and (admitted := self._admit(now=now)) is not None:
            compute(admitted)
        self._planned = now, sum(chunk.count for chunk in chunks if chunk.sequence.phase is Phase.PREFILL)
        return chunks

    def absorb(self, chunks: list[Chunk], outcomes: list[Outcome], *, now: float) -> list[Delta | Refused]:
        """Take in a computed step: `outcomes` says what came of each chunk, in order."""
        self.counters.steps += 1
        if self._planned is not None:
            began, prompt_tokens = self._planned
            self.pace.measured(prompt_tokens, now - began)
        events: list[Delta | Refused] = []
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            self._advance(chunk, outcome, now=now)
            if outcome.token is not None:
                events.append(self._append(chunk.sequence, outcome.token, outcome, now=now))
            elif chunk.completes:  # nothing is to be answered: the prompt was all
                prefilled = self._process(chunk.sequence, now=now)
                events.append(self._delta(chunk.sequence, outcome, prefilled, "length", now=now))
        return events

    def check(self) -> None:
        """Raise if queue, running list and index disagree, or cache and holds do."""
        self.cache.check()
        assert {*self._waiting, *self._running} == set(self._by_id.values()), "a sequence is lost"
        assert len(self._waiting) + len(self._running) == len(self._by_id), "a sequence stands twice"
        assert all(s.phase is Phase.WAITING and s.hold is None for s in self._waiting), (
            "a waiting sequence holds blocks"
        )
        for sequence in self._running:
            assert sequence.hold is not None, "a running sequence holds nothing"
            assert sequence.hold.table.tokens >= sequence.computed, "K/V reach past the blocks"
            assert sequence.hold.published * self.cache.block_tokens <= sequence.computed, "published before computed"

    def _prefills(self, *, now: float) -> list[tuple[Sequence, int]]:
        """Return the running prefills in the order in which they are computed, each with its priority or a lent one."""
        prefills = [sequence for sequence in self._running if sequence.phase is Phase.PREFILL]
        weights = {one: one.request.keep.priority for one in prefills}
        for sequence, leader in self._back(now=now).items():
            weights[leader] = max(weights[leader], sequence.request.keep.priority)
        return [(one, weights[one]) for one in order.prefills(weights, now=now)]

    def _back(self, *, now: float) -> dict[Sequence, Sequence]:
        """Return who stands back for whom. Looked up once for as long as the same sequences run."""
        if self._followers is None:
            self._followers = self.coalescing.following(
                self._waiting, self._running, lambda sequence: self._peek(sequence, now=now).tokens
            )
        return self._followers

    def _admit(self, *, now: float, before: tuple[Sequence, int, int] | None = None) -> Sequence | None:
        """Start the next waiting sequence if it fits beside the running ones.

        `before` names a running prefill, its priority and the tokens left of the step: then only who overtakes it.
        """
        if self.running >= self.max_num_seqs:
            return None
        back = self._back(now=now)
        free = (one for one in self._waiting if one not in back)
        matches = {one: self._peek(one, now=now) for one in order.candidates(free, self._running, now=now)}
        work = {one: one.length - match.readable for one, match in matches.items()}
        for sequence in order.ranked(matches, self._running, work.__getitem__, self._served, now=now):
            if self._running and not self._fits(sequence, matches[sequence]):
                return None  # who is first in line keeps the room that becomes free
            if before is not None:
                running, weight, left = before
                if work[sequence] > left or not order.overtakes(sequence, work[sequence], running, weight, now=now):
                    return None
            tails = [match.tail.node for one, match in matches.items() if one is not sequence and match.tail]
            tail = matches[sequence].tail
            return self._start(sequence, alone=tail is None or tail.node not in tails, now=now)
        return None

    def _start(self, sequence: Sequence, *, alone: bool, now: float) -> Sequence:
        """Admit it; `alone`: nobody else in line reads the partial block that it goes on from."""
        self._waiting.remove(sequence)
        self._followers = None
        admitted = now if sequence.admitted is None else sequence.admitted
        hold = self.cache.admit(sequence.request, sequence.readable, since=admitted, now=now, alone=alone)
        sequence.start(hold, now=now)
        self.coalescing.admitted(sequence, hold.ready)
        self._running.append(sequence)
        self._take_turn(sequence.request.namespace.tenant)
        return sequence

    def _take_turn(self, tenant: str) -> None:
        self._turns += 1
        self._served[tenant] = self._turns
        if len(self._served) > 2 * len(self._by_id) + 1:  # those that have left are forgotten
            here = {sequence.request.namespace.tenant for sequence in self._by_id.values()}
            self._served = {tenant: turn for tenant, turn in self._served.items() if tenant in here}

    def _peek(self, sequence: Sequence, *, now: float) -> Match[BlockId]:
        """Look how far a sequence is known. Renews nothing."""
        return self.cache.tree.peek(sequence.request.namespace, sequence.readable, now)

    def _fits(self, sequence: Sequence, match: Match[BlockId]) -> bool:
        """Whether its whole prompt fits beside what running prefills still need."""
        promised = sum(
            max(0, self._blocks(running.length + 1) - len(running.hold.table))
            for running in self._running
            if running.phase is Phase.PREFILL and running.hold is not None
        )
        fresh = self._blocks(sequence.length + 1) - len(match.payload)
        return promised + fresh <= self.cache.obtainable - match.idle  # what it reuses cannot be evicted for it

    def _blocks(self, tokens: int) -> int:
        return -(-min(tokens, self.max_model_len) // self.cache.block_tokens)

    def _chunk(self, sequence: Sequence, budget: _Budget, *, now: float) -> Chunk | None:
        """Make room for the next tokens of a sequence, preempting younger ones where it must."""
        wanted = budget.share(sequence)
        if not wanted or sequence.hold is None:  # preempted by an older one in this very step
            return None
        while (fits := self.cache.room(sequence.hold, sequence.computed + wanted, now=now)) <= sequence.computed:
            youngest = self._running[-1]
            if youngest is not sequence:
                self._preempt(youngest, now=now)
            elif len(self._running) > 1:
                self._preempt(sequence, now=now)
                return None
            else:
                raise AssertionError(f"{sequence.request.id} does not fit an empty pool: it should have been refused")
        return Chunk(sequence, sequence.computed, fits - sequence.computed, sequence.hold.pending)

    def _preempt(self, sequence: Sequence, *, now: float) -> None:
        assert sequence.hold is not None
        self._running.remove(sequence)
        self.cache.release(sequence.hold, sequence.tokens, sequence.computed, now=now)
        sequence.preempt()
        self._waiting.appendleft(sequence)
        self._followers = None
        self.counters.preempted += 1

    def _advance(self, chunk: Chunk, outcome: Outcome, *, now: float) -> None:
        sequence = chunk.sequence
        assert sequence.hold is not None
        self.cache.copied(sequence.hold, now=now)
        sequence.advance(chunk.count, outcome.scored)
        self.counters.projected += chunk.count
        self.cache.publish(sequence.hold, sequence.tokens, sequence.computed, now=now)

    def _append(self, sequence: Sequence, token: int, outcome: Outcome, *, now: float) -> Delta | Refused:
        reason = sequence.append(token)
        self.counters.generated += 1
        if sequence.matcher is not None and (failure := sequence.matcher.failure):
            self.fail([sequence], now=now)
            message = f"The answer cannot be confined to its grammar any further: {failure}"
            return refused(sequence.request.id, RequestRefused(message, field="response_format"))
        if sequence.phase is Phase.PREFILL and reason is None:
            sequence.move(Phase.DECODE)
        prefilled = self._process(sequence, now=now) if sequence.processed is None else None
        return self._delta(sequence, outcome, prefilled, reason, now=now)

    def _process(self, sequence: Sequence, *, now: float) -> Prefilled:
        assert sequence.hold is not None
        marks = self.cache.marks(sequence.request, sequence.hold, now=now)
        prefilled = sequence.process(marks=marks, now=now)
        self.counters.prompt += prefilled.prompt
        self.counters.read += prefilled.read
        self.counters.write += prefilled.write
        return prefilled

    def _delta(
        self,
        sequence: Sequence,
        outcome: Outcome,
        prefilled: Prefilled | None,
        reason: FinishReason | None,
        *,
        now: float,
    ) -> Delta:
        finished = None
        if reason is not None:
            finished = sequence.finished(reason, now=now)
            self._end(sequence, Phase.DONE, now=now)
            self.counters.finished += 1
            self.counters.finished_by[reason] += 1
        told = outcome.token is not None and reason != "stop"
        return Delta(
            id=sequence.request.id,
            tokens=(outcome.token,) if told and outcome.token is not None else (),
            logprobs=(outcome.logprob,) if told and outcome.logprob is not None else (),
            prefilled=prefilled,
            finished=finished,
        )

    def _end(self, sequence: Sequence, phase: Phase, *, now: float) -> None:
        if sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        sequence.move(phase)
        self.coalescing.forget(sequence.request.id)
        del self._by_id[sequence.request.id]
        if sequence.hold is not None:
            self.cache.release(sequence.hold, sequence.tokens, sequence.computed, now=now)
            sequence.hold = None
