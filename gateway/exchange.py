"""The life of one request: render, submit, stream, account. Knows no HTTP and no wire format.

Owns the count of requests in flight. Rule: an exchange that began ends in exactly one of finished, failed, refused and
cancelled, and however it ends the backend's ticket is left, so nothing is computed for a client that has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from datetime import UTC, datetime
from typing import Protocol

from msgspec.structs import replace

from engine.errors import EngineUnavailable, Overloaded, PromptTooLong, RequestRefused
from engine.messages import Delta, Keep, ModelCard, Submit
from gateway.account import Account
from gateway.answer import ChoiceReader, Transcript, spelled_prompt
from gateway.ask import Ask
from gateway.backends import Backend
from gateway.confine import confine
from gateway.diagnosis import Case, Diagnosis
from gateway.errors import CLIENT_LEFT, BadRequest, UnknownModel, problem_of
from gateway.events import Began, Done, Event
from gateway.fan import Fan
from gateway.overhead import Stopwatch, timed
from gateway.prompt import Prompt, Renderer
from gateway.record import Draft, Outcome, Witness
from gateway.retention import Kept, plan
from prefix_store.classes import RetentionClasses
from prefix_store.policy import PolicySet


class Governs(Protocol):
    """Who says what is kept."""

    @property
    def known(self) -> PolicySet:
        """The policies in force."""

    @property
    def classes(self) -> RetentionClasses:
        """The named retention classes."""


class Pulse(Stopwatch, Protocol):
    """Who is told of answer tokens as they come, and of the gateway's own time."""

    def tokens(self, ask: Ask, count: int, waited_s: float, *, first: bool, read: int) -> None:
        """Hear that `count` tokens came, `waited_s` after the request (if first) or after the last ones.

        `read` is how much of the prompt came from the cache, in tokens.
        """


class Exchanges:
    """Answers requests, one `answer` call each."""

    def __init__(
        self,
        backend: Backend,
        renderer: Renderer,
        pulse: Pulse,
        policies: Governs,
        diagnosis: Diagnosis,
        witnesses: Sequence[Witness],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Put together who computes, who renders, who is told and who decides what is kept."""
        self._policies = policies
        self._witnesses = tuple(witnesses)
        self._diagnosis = diagnosis
        self._wall = wall
        self._backend = backend
        self._renderer = renderer
        self._pulse = pulse
        self._clock = clock
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, ask: Ask) -> AsyncGenerator[Event]:
        """Yield the answer's events. Close it (`aclosing`) to leave early: that is a cancellation."""
        served = ask.model == self._backend.model
        at, began = self._wall().timestamp(), self._clock()
        draft = Draft(ask, served=served, upstream=self._backend.name, at=at, began=began)
        outcome: Outcome = "failed"
        status = 500
        told = False
        self._open += 1
        self._idle.clear()
        try:
            with _named_by(ask):
                async with aclosing(self._answer(ask, draft, began)) as events:
                    async for event in events:
                        if isinstance(event, Done):  # the witnesses know before the client does
                            told = True
                            self._tell(ask, draft, "finished", 200)
                        yield event
        except (BadRequest, RequestRefused, Overloaded) as error:
            outcome, status = "refused", problem_of(error).status
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome, status = "cancelled", CLIENT_LEFT
            raise
        except Exception as error:
            status = problem_of(error).status
            raise
        finally:
            if not told:
                self._tell(ask, draft, outcome, status)
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def drained(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def count(self, ask: Ask) -> int:
        """Count the prompt's tokens, by the very path that makes it for an answer."""
        self._card(ask)
        with _named_by(ask):
            return len(await self._renderer.prompt(ask))

    def _tell(self, ask: Ask, draft: Draft, outcome: Outcome, status: int) -> None:
        with timed(self._pulse, "account"):
            record = draft.record(outcome, status, self._clock())
            if ask.route is not None:
                record = ask.route.told(record)
            for witness in self._witnesses:
                witness.ended(record, draft.tokens)

    async def _answer(self, ask: Ask, draft: Draft, began: float) -> AsyncGenerator[Event]:
        least, limit = self._renderer.least(ask), self._card(ask).max_model_len
        if least > limit:
            raise PromptTooLong(
                f"This model's maximum context length is {limit} tokens. However, your messages have at least {least}.",
                field="messages",
            )
        with timed(self._pulse, "render"):
            prompt = await self._renderer.prompt(ask)
            draft.tokens = prompt.tokens
            grammar = await confine(ask, self._renderer.format)
        card = self._card(ask)  # once more: the engine may have gone meanwhile
        kept = self._kept(ask, prompt, card)
        account = Account(kept, normalised=prompt.normalised, choices=ask.choices, began=began)
        draft.account = account
        readers = [self._reader(ask, choice) for choice in range(ask.choices)]
        case = self._diagnosis.begin(ask, prompt, card, self._wall())
        transcript = Transcript(ask.call_prefix)
        early: list[Event] = []  # of other choices, before the prompt's facts stand
        with closing(case), Fan(self._backend, self._submits(ask, prompt, card, kept.keep, grammar)) as fan:
            async with aclosing(fan.deltas()) as deltas:
                async for choice, delta in deltas:
                    told = await self._told(ask, prompt, account, case, choice, delta)
                    parts = readers[choice].feed(delta)
                    early += parts
                    if not choice:
                        transcript.take(delta.tokens, parts)
                    if readers[choice].over:
                        fan.leave(choice)
                    if account.begun:
                        for event in [*told, *early]:
                            yield event
                        early.clear()
                    if all(reader.over for reader in readers):
                        break
            case.answered(transcript.turn, transcript.tokens)
        yield Done(account.facts())

    async def _told(
        self, ask: Ask, prompt: Prompt, account: Account, case: Case, choice: int, delta: Delta
    ) -> list[Event]:
        """Take note of a delta and tell who wants to know. Return `Began` where the prompt's facts stand now."""
        told: list[Event] = []
        if delta.prefilled is not None and not choice:
            logprobs = spelled_prompt(delta.prefilled.logprobs, prompt.tokens, self._renderer.spelling)
            now = self._wall()
            explained = await case.explain(delta.prefilled, now)
            self._pulse.spent("hash", case.hashed_s)
            facts = account.prompt(delta.prefilled, now, explained)
            told.append(Began(facts, logprobs))
        came = account.take(choice, delta, self._clock())
        if came is not None:
            read = 0 if account.prompt_facts is None else account.prompt_facts.read
            if came.first and ask.route is not None:
                ask.route.begun()
            self._pulse.tokens(ask, came.count, came.waited_s, first=came.first, read=read)
        return told

    def _card(self, ask: Ask) -> ModelCard:
        if ask.model != self._backend.model:
            raise UnknownModel(ask.model)
        if self._backend.card is None:
            raise EngineUnavailable(self._backend.detail)
        return self._backend.card

    def _reader(self, ask: Ask, choice: int) -> ChoiceReader:
        spelling = self._renderer.spelling
        if not ask.tools or ask.tool_choice.mode == "none":
            return ChoiceReader(choice, spelling, stops=ask.stops, least=ask.sampling.min_tokens)
        form = self._renderer.format
        parser, shown = form.parser(ask.tools), spelling.shown(form.markers)
        return ChoiceReader(
            choice, spelling, stops=ask.stops, least=ask.sampling.min_tokens, parser=parser, shown=shown
        )

    def _kept(self, ask: Ask, prompt: Prompt, card: ModelCard) -> Kept:
        policy = self._policies.known.govern(model=ask.model, tenant=ask.tenant)
        return plan(ask.wish, prompt.marks, len(prompt), policy, self._policies.classes, card.block_tokens)

    def _submits(self, ask: Ask, prompt: Prompt, card: ModelCard, keep: Keep, grammar: str) -> list[Submit]:
        room = max(min(card.max_model_len, card.blocks * card.block_tokens) - len(prompt), 1)
        first = Submit(
            id=ask.id,
            tokens=prompt.tokens,
            max_tokens=room if ask.max_tokens is None else ask.max_tokens,
            sampling=ask.sampling,
            stop_ids=(*(() if ask.ignore_eos else card.eos_ids), *ask.stop_ids),
            rendering=self._renderer.identity,
            tenant=ask.tenant,
            partition=ask.partition,
            keep=keep,
            grammar=grammar,
            prompt_logprobs=ask.prompt_logprobs,
        )
        return [first, *(_another(first, choice) for choice in range(1, ask.choices))]


def _another(first: Submit, choice: int) -> Submit:
    """Return the request for one more choice: the same prompt, another draw."""
    seed = first.sampling.seed
    sampling = replace(first.sampling, seed=None if seed is None else seed + choice)
    return replace(first, id=f"{first.id}-{choice}", sampling=sampling, prompt_logprobs=None)


@contextmanager
def _named_by(ask: Ask) -> Iterator[None]:
    """Name the fields that are wrong as the caller's API names them."""
    names = {"messages": ask.prompt_field, "response_format": ask.output.path if ask.output else "response_format"}
    try:
        yield
    except RequestRefused as refusal:
        refusal.field = names.get(refusal.field, refusal.field)
        raise
    except BadRequest as refusal:
        refusal.param = names.get(refusal.param or "", refusal.param)
        raise
