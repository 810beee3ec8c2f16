"""Who runs in the next step. Knows no torch: it decides, the runner computes.

Owns the line, the running sequences and their phases. Rules:
- decodes go first, one token each; prefills get a chunk beside them that keeps the answers' pace, in `order`'s order;
- a sequence that needs what another is computing stands back for it;
- the sequence admitted first can always go on: when blocks run out, the youngest one is preempted, so there is no
  deadlock; what it finished stays in the tree, so that resuming is cheap;
- every sequence that was added leaves exactly once, through `absorb`, `cancel` or `fail`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine import order
from engine.cache import PrefixCache
from engine.chunk import Chunk, Outcome
from engine.counters import Counters
from engine.errors import RequestRefused
from engine.facts import refused
from engine.line import Before, Line
from engine.messages import Delta, FinishReason, Prefilled, Refused
from engine.pace import Pace
from engine.sequence import Matcher, Phase, Sequence

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
        self.line = Line(cache, max_model_len=max_model_len)
        self._planned: tuple[float, int] | None = None  # when the step under way began, its prompt tokens
        self.queue_timeout_s = queue_timeout_s
        self.step_tokens = step_tokens
        self.scored_rows = SCORED_ROWS
        self.max_num_seqs = max_num_seqs
        self.counters = Counters()
        self._running: list[Sequence] = []  # in the order of admission, oldest first
        self._by_id: dict[str, Sequence] = {}

    def __contains__(self, request_id: str) -> bool:
        """Whether a request of that id waits or runs."""
        return request_id in self._by_id

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self.line)

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: not while all that is there waits for its grammar."""
        return bool(self._running) or any(sequence.ready for sequence in self.line)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._by_id[sequence.request.id] = sequence
        self.line.join(sequence)

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
            for sequence in self.line
            if sequence.admitted is None and now - sequence.submitted >= self.queue_timeout_s
        ]
        self.fail(late, now=now)
        return late

    def plan(self, *, now: float) -> list[Chunk]:
        """Choose the chunks of the next step. Preempts and admits as needed; empty when there is nothing to do."""
        chunks: list[Chunk] = []
        budget = _Budget(self.step_tokens, self.scored_rows)
        preempted = self.counters.preempted
        self.line.afresh()

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
                if (short := self._admit(now=now, before=Before(sequence, weight, budget.tokens))) is None:
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
        assert {*self.line, *self._running} == set(self._by_id.values()), "a sequence is lost"
        assert len(self.line) + len(self._running) == len(self._by_id), "a sequence stands twice"
        assert all(s.phase is Phase.WAITING and s.hold is None for s in self.line), "a waiting sequence holds blocks"
        for sequence in self._running:
            assert sequence.hold is not None, "a running sequence holds nothing"
            assert sequence.hold.table.tokens >= sequence.computed, "K/V reach past the blocks"
            assert sequence.hold.published * self.cache.block_tokens <= sequence.computed, "published before computed"

    def _prefills(self, *, now: float) -> list[tuple[Sequence, int]]:
        """Return the running prefills in the order in which they are computed, each with its priority or a lent one."""
        prefills = [sequence for sequence in self._running if sequence.phase is Phase.PREFILL]
        weights = {one: one.request.keep.priority for one in prefills}
        for sequence, leader in self.line.back(self._running, now=now).items():
            weights[leader] = max(weights[leader], sequence.request.keep.priority)
        return [(one, weights[one]) for one in order.prefills(weights, now=now)]

    def _admit(self, *, now: float, before: Before | None = None) -> Sequence | None:
        """Run the next of the line, if it may come in."""
        admitted = self.line.admit(self._running, now=now, before=before) if self.running < self.max_num_seqs else None
        if admitted is not None:
            self._running.append(admitted)
        return admitted

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
        self.line.rejoin(sequence)
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
            self.line.leave(sequence)
        else:
            self._running.remove(sequence)
        sequence.move(phase)
        self.line.forget(sequence)
        del self._by_id[sequence.request.id]
        if sequence.hold is not None:
            self.cache.release(sequence.hold, sequence.tokens, sequence.computed, now=now)
            sequence.hold = None
