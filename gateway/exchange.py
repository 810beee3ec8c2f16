"""The life of one request: render, submit, stream, account. Knows no HTTP and no wire format.

Owns the count of requests in flight. Rule: an exchange that began ends in exactly one of finished, failed, refused and
cancelled, and however it ends the backend's ticket is left, so nothing is computed for a client that has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

from engine.errors import EngineUnavailable, Overloaded, PromptTooLong, RequestRefused
from engine.messages import Delta, Keep, ModelCard, Prefilled, Sampling, Submit
from gateway.backends import Backend
from gateway.detokenize import Detokenizer
from gateway.errors import BadRequest, UnknownModel
from gateway.prompt import Prompt, Renderer, Turn
from gateway.retention import Kept, Wish, misses, plan, report
from gateway.stops import StopScanner
from gateway.tally import Tally
from gateway.usage import Facts
from prefix_store.classes import RetentionClasses
from prefix_store.policy import PolicySet

Outcome = Literal["finished", "failed", "refused", "cancelled"]
AnswerEnd = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a client wants, whatever wire format it spoke. `max_tokens` None means as many as fit."""

    id: str
    model: str
    turns: tuple[Turn, ...]
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    tenant: str = "default"
    partition: str = ""
    wish: Wish = field(default_factory=Wish)


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is over."""

    reason: AnswerEnd
    facts: Facts


class Governs(Protocol):
    """Who says what is kept."""

    @property
    def known(self) -> PolicySet:
        """The policies in force."""

    @property
    def classes(self) -> RetentionClasses:
        """The named retention classes."""


class Witness(Protocol):
    """Who is told the facts of every exchange as they become known."""

    def prefilled(self, facts: Prefilled) -> None:
        """Hear that the prompt was processed."""

    def tokens(self, count: int, waited_s: float, *, first: bool) -> None:
        """Hear that `count` answer tokens came, `waited_s` after the request (if first) or after the last ones."""

    def ended(self, outcome: Outcome) -> None:
        """Hear that the exchange is over."""


@dataclass(slots=True)
class _Progress:
    """What is known of one answer so far."""

    began: float
    last: float
    first_token_s: float = 0.0
    generated: int = 0
    prefilled: Prefilled | None = None
    prefilled_at: datetime | None = None  # wall clock


class Exchanges:
    """Answers requests, one `answer` call each."""

    def __init__(
        self,
        backend: Backend,
        renderer: Renderer,
        witness: Witness,
        policies: Governs,
        tally: Tally,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Put together who computes, who renders, who is told and who decides what is kept."""
        self._policies = policies
        self._tally = tally
        self._wall = wall
        self._backend = backend
        self._renderer = renderer
        self._witness = witness
        self._clock = clock
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, ask: Ask) -> AsyncGenerator[Text | Done]:
        """Yield the answer's text and one `Done`. Close it (`aclosing`) to leave early: that is a cancellation."""
        outcome: Outcome = "failed"
        self._open += 1
        self._idle.clear()
        try:
            async with aclosing(self._answer(ask)) as events:
                async for event in events:
                    yield event
            outcome = "finished"
        except (BadRequest, RequestRefused, Overloaded):
            outcome = "refused"
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self._witness.ended(outcome)
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def drained(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def _answer(self, ask: Ask) -> AsyncGenerator[Text | Done]:
        began = self._clock()
        if ask.model != self._backend.model:
            raise UnknownModel(ask.model)
        if self._backend.card is None:
            raise EngineUnavailable(self._backend.detail)
        least, limit = self._renderer.least(ask.turns), self._backend.card.max_model_len
        if least > limit:
            raise PromptTooLong(
                f"This model's maximum context length is {limit} tokens. However, your messages have at least {least}.",
                field="messages",
            )
        prompt = await self._renderer.prompt(ask.turns)
        card = self._backend.card
        if card is None:
            raise EngineUnavailable(self._backend.detail)
        words = Detokenizer(self._renderer.spelling)
        scanner = StopScanner(ask.stops)
        progress = _Progress(began=began, last=began)
        kept = self._kept(ask, prompt, card)
        with self._backend.open(self._submit(ask, prompt, card, kept.keep)) as ticket:
            async for delta in ticket:
                self._take_note(progress, delta, ask.tenant)
                text = scanner.feed(words.feed(delta.tokens))
                if delta.finished is not None and not scanner.hit:
                    text += scanner.finish()
                if text:
                    yield Text(text)
                if scanner.hit or delta.finished is not None:
                    yield self._done(progress, delta, kept, stopped=scanner.hit)
                    return
        raise EngineUnavailable("The engine ended the answer without a last word.")

    def _kept(self, ask: Ask, prompt: Prompt, card: ModelCard) -> Kept:
        policy = self._policies.known.govern(model=ask.model, tenant=ask.tenant)
        return plan(ask.wish, prompt.marks, len(prompt), policy, self._policies.classes, card.block_tokens)

    def _submit(self, ask: Ask, prompt: Prompt, card: ModelCard, keep: Keep) -> Submit:
        room = min(card.max_model_len, card.blocks * card.block_tokens) - len(prompt)
        return Submit(
            id=ask.id,
            tokens=prompt.tokens,
            max_tokens=max(room, 1) if ask.max_tokens is None else ask.max_tokens,
            sampling=ask.sampling,
            stop_ids=card.eos_ids,
            rendering=self._renderer.identity,
            tenant=ask.tenant,
            partition=ask.partition,
            keep=keep,
        )

    def _take_note(self, progress: _Progress, delta: Delta, tenant: str) -> None:
        if delta.prefilled is not None:
            progress.prefilled, progress.prefilled_at = delta.prefilled, self._wall()
            self._witness.prefilled(delta.prefilled)
            self._tally.add(tenant, delta.prefilled)
        came = len(delta.tokens)
        if delta.finished is not None:
            came = max(came, delta.finished.generated - progress.generated)  # the unseen stop token counts
        if not came:
            return
        now = self._clock()
        first = progress.generated == 0
        self._witness.tokens(came, now - progress.last, first=first)
        if first:
            progress.first_token_s = now - progress.began
        progress.generated += came
        progress.last = now

    def _done(self, progress: _Progress, delta: Delta, kept: Kept, *, stopped: bool) -> Done:
        prefilled, at, finished = progress.prefilled, progress.prefilled_at, delta.finished
        if prefilled is None or at is None or (finished is not None and finished.reason == "cancelled"):
            raise EngineUnavailable("The engine gave this answer up.")
        decode_s = progress.last - progress.began - progress.first_token_s
        facts = Facts(
            prompt=prefilled.prompt,
            read=prefilled.read,
            write=prefilled.write,
            generated=progress.generated,
            projected=None if finished is None else finished.projected,
            queue_s=prefilled.queue_s,
            prefill_s=prefilled.prefill_s,
            decode_s=decode_s if finished is None else finished.decode_s,
            first_token_s=progress.first_token_s,
            retention=report(kept, prefilled.marks, at),
            misses=misses(prefilled.missed, at),
        )
        reason: AnswerEnd = "length" if finished is not None and finished.reason == "length" and not stopped else "stop"
        return Done(reason, facts)
