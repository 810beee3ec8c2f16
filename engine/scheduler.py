"""Who runs in the next step. Knows no torch: it decides, the runner computes.

Owns the queue, the running sequences and their phases. Rules:
- decodes go first, one token each; what is left of `step_tokens` goes to prefills in the order of their admission;
- the sequence admitted first can always go on: when blocks run out, the youngest one is preempted, so there is no
  deadlock; what it finished stays in the tree, so that resuming is cheap;
- every sequence that was added leaves exactly once, through `absorb`, `cancel` or `fail`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from engine.cache import PrefixCache
from engine.hold import TailCopy
from engine.messages import Delta
from engine.request import TOKEN_BYTES
from engine.sequence import Phase, Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Project tokens [start, start + count) of one sequence; `samples` when the last of them yields a new token."""

    sequence: Sequence
    start: int
    count: int
    copy: TailCopy | None = None

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the end of what is known, so that a next token follows."""
        return self.start + self.count == self.sequence.length


@dataclass(slots=True)
class Counters:
    """What happened since the start; only the scheduler writes them."""

    prompt: int = 0
    read: int = 0
    write: int = 0
    generated: int = 0
    projected: int = 0
    finished: int = 0
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
    ) -> None:
        self.cache = cache
        self.queue_timeout_s = queue_timeout_s
        self.step_tokens = step_tokens
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len  # a table never grows past it: the last tokens are never projected
        self.counters = Counters()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # in the order of admission, oldest first
        self._by_id: dict[str, Sequence] = {}

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
        """Whether a step would do anything."""
        return bool(self._by_id)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._by_id[sequence.request.id] = sequence
        self._waiting.append(sequence)

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
        budget = self.step_tokens
        preempted = self.counters.preempted
        for phase in (Phase.DECODE, Phase.PREFILL):
            for sequence in list(self._running):
                if budget and sequence.phase is phase and (chunk := self._chunk(sequence, budget, now=now)):
                    chunks.append(chunk)
                    budget -= chunk.count
        chunks = [chunk for chunk in chunks if chunk.sequence.hold is not None]  # an older one may have preempted it
        while budget and self.counters.preempted == preempted and (admitted := self._admit(now=now)) is not None:
            if chunk := self._chunk(admitted, budget, now=now):
                chunks.append(chunk)
                budget -= chunk.count
        return chunks

    def absorb(self, chunks: list[Chunk], sampled: list[int], *, now: float) -> list[Delta]:
        """Take in a computed step: `sampled` has one token per chunk that samples, in order."""
        self.counters.steps += 1
        fresh = iter(sampled)
        deltas = []
        for chunk in chunks:
            sequence = chunk.sequence
            samples = chunk.samples
            self._advance(chunk, now=now)
            if samples:
                deltas.append(self._append(sequence, next(fresh), now=now))
        return deltas

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

    def _admit(self, *, now: float) -> Sequence | None:
        """Start the next waiting sequence if it fits beside the running ones."""
        if not self._waiting or self.running >= self.max_num_seqs:
            return None
        sequence = self._waiting[0]
        if self._running and not self._fits(sequence, now=now):
            return None
        self._waiting.popleft()
        admitted = now if sequence.admitted is None else sequence.admitted
        hold = self.cache.admit(sequence.request, bytes(sequence.tokens), since=admitted, now=now)
        sequence.start(hold, now=now)
        self._running.append(sequence)
        return sequence

    def _fits(self, sequence: Sequence, *, now: float) -> bool:
        """Whether its whole prompt fits beside what running prefills still need. A peek: it renews nothing."""
        match = self.cache.tree.peek(sequence.request.namespace, bytes(sequence.tokens[:-TOKEN_BYTES]), now)
        promised = sum(
            max(0, self._blocks(running.length + 1) - len(running.hold.table))
            for running in self._running
            if running.phase is Phase.PREFILL and running.hold is not None
        )
        fresh = self._blocks(sequence.length + 1) - len(match.payload)
        return promised + fresh <= self.cache.obtainable - match.idle  # what it reuses cannot be evicted for it

    def _blocks(self, tokens: int) -> int:
        return -(-min(tokens, self.max_model_len) // self.cache.block_tokens)

    def _chunk(self, sequence: Sequence, budget: int, *, now: float) -> Chunk | None:
        """Make room for the next tokens of a sequence, preempting younger ones where it must."""
        if sequence.hold is None:  # preempted by an older one in this very step
            return None
        wanted = min(sequence.remaining, budget)
        while (fits := self.cache.room(sequence.hold, sequence.computed + wanted, now=now)) <= sequence.computed:
            youngest = self._running[-1]
            if youngest is not sequence:
                self._preempt(youngest, now=now)
            elif len(self._running) > 1:
                self._preempt(sequence, now=now)
                return None
            else:
                raise AssertionError(f"{sequence.request.id} does not fit an empty pool: it should have been refused")
        return Chunk(sequence, sequence.computed, fits - sequence.computed, sequence.hold.copy)

    def _preempt(self, sequence: Sequence, *, now: float) -> None:
        assert sequence.hold is not None
        self._running.remove(sequence)
        self.cache.release(sequence.hold, now=now)
        sequence.preempt()
        self._waiting.appendleft(sequence)
        self.counters.preempted += 1

    def _advance(self, chunk: Chunk, *, now: float) -> None:
        sequence = chunk.sequence
        assert sequence.hold is not None
        self.cache.copied(sequence.hold, now=now)
        sequence.advance(chunk.count)
        self.counters.projected += chunk.count
        self.cache.publish(sequence.hold, sequence.tokens, sequence.computed, now=now)

    def _append(self, sequence: Sequence, token: int, *, now: float) -> Delta:
        first = sequence.first_token is None
        reason = sequence.append(token, now=now)
        self.counters.generated += 1
        if sequence.phase is Phase.PREFILL and reason is None:
            sequence.move(Phase.DECODE)
        prefilled = None
        if first:
            assert sequence.hold is not None
            marks = self.cache.marks(sequence.request, sequence.hold, now=now)
            prefilled = sequence.prefilled(marks=marks, now=now)
            self.counters.prompt += prefilled.prompt
            self.counters.read += prefilled.read
            self.counters.write += prefilled.write
        finished = None
        if reason is not None:
            finished = sequence.finished(reason, now=now)
            self._end(sequence, Phase.DONE, now=now)
            self.counters.finished += 1
        tokens = () if reason == "stop" else (token,)
        return Delta(id=sequence.request.id, tokens=tokens, prefilled=prefilled, finished=finished)

    def _end(self, sequence: Sequence, phase: Phase, *, now: float) -> None:
        if sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        sequence.move(phase)
        del self._by_id[sequence.request.id]
        if sequence.hold is not None:
            self.cache.release(sequence.hold, now=now)
            sequence.hold = None
