"""The life of one request inside the engine. Knows no torch.

Owns: the tokens so far, how far their K/V reach, and the facts for the usage. Rule: phases change only along `NEXT`.

    [0, computed)          K/V lie in the pool
    [computed, length)     known tokens that are still to be projected; the last of them yields the next token
    [0, resolved)          prompt positions whose outcome (read or computed) is decided and never changes again
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from engine.facts import missed
from engine.messages import Finished, FinishReason, KeptMark, Prefilled, TokenLogprob
from engine.request import TOKEN_BYTES, Request
from engine.weighing import Weighing, weighs
from prefix_store.reasons import Absence

if TYPE_CHECKING:
    from engine.hold import Hold


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()
    CANCELLED = auto()
    FAILED = auto()


NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.PREFILL, Phase.CANCELLED, Phase.FAILED}),
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.WAITING, Phase.DONE, Phase.CANCELLED, Phase.FAILED}),
    Phase.DECODE: frozenset({Phase.WAITING, Phase.DONE, Phase.CANCELLED, Phase.FAILED}),  # WAITING: preempted
    Phase.DONE: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.FAILED: frozenset(),
}


class Matcher(Protocol):
    """Where one answer stands in its grammar."""

    @property
    def failure(self) -> str:
        """Why the grammar cannot be followed any further; empty while it can."""

    def allowed(self) -> bytes:
        """Return one bit for each token of the vocabulary, set where it may come next, lowest bit first."""

    def advance(self, token: int) -> None:
        """Go on by an allowed token."""


class Sequence:
    """One request's tokens, progress and facts."""

    __slots__ = (
        "_phase",
        "absences",
        "admitted",
        "computed",
        "generated",
        "hold",
        "matcher",
        "processed",
        "projected",
        "read",
        "request",
        "resolved",
        "scored",
        "submitted",
        "tokens",
        "weighing",
    )

    def __init__(self, request: Request, *, now: float) -> None:
        self.request = request
        self.tokens = bytearray(request.tokens)
        self.generated = 0
        self.computed = 0
        self.resolved = 0
        self.read = 0
        self.projected = 0  # K/V projections really done, recomputing included
        self.hold: Hold | None = None
        self.submitted = now
        self.admitted: float | None = None
        self.processed: float | None = None  # when the prompt was, and the first token there if one was wanted
        self.matcher: Matcher | None = None  # after preemption too, where the answer stands
        self.scored: list[TokenLogprob] = []  # of the prompt's tokens after the first, where asked for
        self.weighing = (  # what penalties and biases look at, where there are any
            Weighing(request.sampling, request.tokens, request.prompt) if weighs(request.sampling) else None
        )
        self.absences: list[Absence] = []  # of the first admission: preemption changes no usage
        self._phase = Phase.WAITING

    @property
    def phase(self) -> Phase:
        """Where the sequence stands."""
        return self._phase

    @property
    def length(self) -> int:
        """Tokens known so far, prompt and answer."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def remaining(self) -> int:
        """Known tokens that are still to be projected."""
        return self.length - self.computed

    @property
    def ready(self) -> bool:
        """Whether it may be admitted: a confined answer waits for its grammar."""
        return self.matcher is not None or not self.request.confined

    @property
    def unscored(self) -> int:
        """Prompt tokens whose log-probability is asked for and not known yet."""
        return 0 if self.request.prompt_logprobs is None else self.request.prompt - 1 - len(self.scored)

    @property
    def readable(self) -> bytes:
        """The beginning that may come from the cache: all but the last token, or what of a prompt is scored so far."""
        if not self.request.cached:
            return b""
        return bytes(self.tokens[: (len(self.scored) if self.unscored else self.length - 1) * TOKEN_BYTES])

    def move(self, phase: Phase) -> None:
        """Enter `phase`; an illegal move is our bug."""
        assert phase in NEXT[self._phase], f"{self.request.id}: {self._phase.name} → {phase.name}"
        self._phase = phase

    def start(self, hold: Hold, *, now: float) -> None:
        """Begin, or begin again after preemption, on what the cache holds. Usage of decided positions stays."""
        self.move(Phase.PREFILL)
        self.hold = hold
        self.computed = hold.ready
        hit = min(hold.ready, self.request.prompt)
        self.read += max(0, hit - self.resolved)
        self.resolved = max(self.resolved, hit)
        if self.admitted is None:
            self.admitted = now
            self.absences = hold.absences

    def preempt(self) -> None:
        """Forget the K/V, keep the tokens: they are computed again, or found in the cache, later."""
        self.move(Phase.WAITING)
        self.hold = None
        self.computed = 0

    def advance(self, count: int, scored: tuple[TokenLogprob, ...] = ()) -> None:
        """`count` more tokens have been projected, and so many of the prompt's scored."""
        self.computed += count
        self.projected += count
        self.resolved = max(self.resolved, min(self.computed, self.request.prompt))
        self.scored += scored

    def append(self, token: int) -> FinishReason | None:
        """Add a sampled token. Return why the answer ends with it, or None while it goes on."""
        self.tokens += token.to_bytes(TOKEN_BYTES, "little")
        self.generated += 1
        if self.weighing is not None:
            self.weighing.say(token)
        if self.matcher is not None:
            self.matcher.advance(token)
        if token in self.request.stop_ids:
            return "stop"
        return "length" if self.generated >= self.request.max_tokens else None

    def process(self, *, marks: tuple[KeptMark, ...], now: float) -> Prefilled:
        """Take note that the prompt is processed. Return its facts, with what became of its marks."""
        assert self.admitted is not None and self.resolved == self.request.prompt and not self.unscored
        self.processed = now
        return Prefilled(
            prompt=self.request.prompt,
            read=self.read,
            write=max(0, self._kept(marks) - self.read),
            queue_s=self.admitted - self.submitted,
            prefill_s=now - self.admitted,
            marks=marks,
            missed=missed(self.request, self.absences, self.read, now=now),
            logprobs=() if self.request.prompt_logprobs is None else (None, *self.scored),
        )

    def _kept(self, marks: tuple[KeptMark, ...]) -> int:
        """Leading prompt tokens that are kept because the request asked for it: a mark that was declined is not."""
        keep, prompt = self.request.keep, self.request.prompt
        if not self.request.cached:
            return 0
        if keep.write_all and keep.held_ttl_s is not None:
            return prompt - prompt % self.request.namespace.block_tokens
        return max((mark.tokens for mark in marks if mark.kept == "promised"), default=0)

    def finished(self, reason: FinishReason, *, now: float) -> Finished:
        """Return the answer's facts."""
        started = now if self.processed is None else self.processed
        return Finished(
            reason=reason, generated=self.generated, projected=self.projected, decode_s=max(0.0, now - started)
        )
