"""OpenAI's chat completions, the way out: answers, chunks and errors become JSON. Pure: no HTTP, no clock.

Rule: usage is made of facts, cached and written tokens are parts of the prompt's, 0 when none; a stream speaks of usage
only if asked, in one chunk of its own; the `keepwarm` extension rides on whichever chunk is the last. A whole answer
and a streamed one are made of the same events, so they tell the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.extension import Keepwarm, extension_of
from gateway.api.prompt_logprobs import PromptLogprobs, prompt_logprobs_of
from gateway.ask import Ask
from gateway.errors import Problem
from gateway.events import AnswerEnd, Began, CallArguments, CallBegan, Done, Ended, Event, Logprob, Text
from gateway.usage import Facts, PromptFacts

FinishReason = Literal["stop", "length", "tool_calls"]
SPLIT_CLASSES = ("30m", "12h")  # the retention classes that OpenAI's usage has fields for


class WriteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Written tokens by how long they are kept."""

    ttl_30m_tokens: int
    ttl_12h_tokens: int


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache did for the prompt."""

    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: WriteDetails | UnsetType = UNSET


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's tokens were."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that could have come."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that came."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """How likely an answer's tokens were."""

    content: tuple[TokenLogprob, ...]
    refusal: None = None


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """What a call calls, or more of it."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call, or in a chunk more of it."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: Function


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a whole completion."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: tuple[Call, ...] | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a whole completion."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    keepwarm: Keepwarm
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class PartMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: tuple[Call, ...] | UnsetType = UNSET


class PartChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a chunk."""

    index: int = 0
    delta: PartMessage = PartMessage()
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[PartChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    keepwarm: Keepwarm | UnsetType = UNSET


to_json = msgspec.json.Encoder().encode

LAST_EVENT = b"data: [DONE]\n\n"


def event(value: object) -> bytes:
    """Shape one event of a stream."""
    return b"data: " + to_json(value) + b"\n\n"


def finish_reason(reason: AnswerEnd) -> FinishReason:
    """Say why an answer ended: OpenAI has one word for a stop token and a stop string."""
    return "stop" if reason == "stop_string" else reason


def write_details(facts: PromptFacts) -> WriteDetails | UnsetType:
    """Split the written tokens by class, where every class is one that the field knows."""
    if not facts.written or any(part.applied not in SPLIT_CLASSES for part in facts.written):
        return UNSET
    half_hour, half_day = (sum(part.tokens for part in facts.written if part.applied == name) for name in SPLIT_CLASSES)
    return WriteDetails(ttl_30m_tokens=half_hour, ttl_12h_tokens=half_day)


def usage_of(*parts: Facts) -> Usage:
    """Usage as OpenAI counts it: cached and written tokens are parts of the prompt's. Several prompts are summed."""
    prompt, generated = sum(facts.prompt for facts in parts), sum(facts.generated for facts in parts)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=generated,
        total_tokens=prompt + generated,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(facts.read for facts in parts),
            cache_write_tokens=sum(facts.write for facts in parts),
            cache_write_tokens_details=write_details(parts[0]) if len(parts) == 1 else UNSET,
        ),
    )


def logprobs_of(rows: Iterable[Logprob]) -> ChoiceLogprobs:
    """Shape log-probabilities."""
    return ChoiceLogprobs(
        content=tuple(
            TokenLogprob(
                token=row.token,
                logprob=row.logprob,
                bytes=tuple(row.spelling),
                top_logprobs=tuple(
                    TopLogprob(token=other.token, logprob=other.logprob, bytes=tuple(other.spelling))
                    for other in row.top
                ),
            )
            for row in rows
        )
    )


def completion(ask: Ask, created: int, events: Sequence[Event]) -> bytes:
    """Shape a whole answer."""
    done = events[-1]
    assert isinstance(done, Done), "an exchange that ends without an error ends with Done"
    return to_json(
        Completion(
            id=ask.id,
            created=created,
            model=ask.model,
            choices=tuple(_choice(ask, index, events) for index in range(ask.choices)),
            usage=usage_of(done.facts),
            keepwarm=extension_of(done.facts),
            prompt_logprobs=UNSET if ask.prompt_logprobs is None else prompt_logprobs_of(events, ask.prompt_logprobs),
        )
    )


def _choice(ask: Ask, index: int, events: Sequence[Event]) -> Choice:
    texts: list[str] = []
    rows: list[Logprob] = []
    calls: dict[int, tuple[CallBegan, list[str]]] = {}
    reason: FinishReason = "stop"
    for one in events:
        match one:
            case Text(choice=choice) if choice == index:
                texts.append(one.text)
                rows += one.logprobs
            case CallBegan(choice=choice) if choice == index:
                calls[one.index] = (one, [])
            case CallArguments(choice=choice) if choice == index:
                calls[one.index][1].append(one.text)
            case Ended(choice=choice) if choice == index:
                reason = finish_reason(one.reason)
    text = "".join(texts)
    called = tuple(
        Call(id=f"call_{call.id}", type="function", function=Function(name=call.name, arguments="".join(pieces)))
        for call, pieces in calls.values()
    )
    return Choice(
        index=index,
        message=AnswerMessage(content=text if text or not called else None, tool_calls=called or UNSET),
        logprobs=None if ask.sampling.logprobs is None else logprobs_of(rows),
        finish_reason=reason,
    )


class Stream:
    """Shapes one streamed answer. The extension rides on the last chunk, whichever that is."""

    def __init__(self, ask: Ask, created: int, *, include_usage: bool) -> None:
        """Prepare the parts that all chunks share."""
        self._ask = ask
        self._created = created
        self._include_usage = include_usage
        self._finish = PartChoice()  # the last choice to end; it carries the extension where no usage is asked for
        self._open = ask.choices

    def shape(self, one: Event) -> bytes:
        """Shape an event; some need no chunk of their own."""
        match one:
            case Began():
                opening = PartMessage(role="assistant", content="")
                return b"".join(
                    self._chunk(PartChoice(index=index, delta=opening)) for index in range(self._ask.choices)
                )
            case Text():
                logprobs = logprobs_of(one.logprobs) if one.logprobs else None
                return self._chunk(PartChoice(index=one.choice, delta=PartMessage(content=one.text), logprobs=logprobs))
            case CallBegan():
                function = Function(name=one.name)
                call = Call(index=one.index, id=f"call_{one.id}", type="function", function=function)
                return self._chunk(PartChoice(index=one.choice, delta=PartMessage(tool_calls=(call,))))
            case CallArguments():
                call = Call(index=one.index, function=Function(arguments=one.text))
                return self._chunk(PartChoice(index=one.choice, delta=PartMessage(tool_calls=(call,))))
            case Ended():
                return self._ended(one)
            case Done():
                return self._done(one)

    def _ended(self, one: Ended) -> bytes:
        finish = PartChoice(index=one.choice, finish_reason=finish_reason(one.reason))
        self._open -= 1
        if self._open or self._include_usage:
            return self._chunk(finish)
        self._finish = finish
        return b""

    def _done(self, one: Done) -> bytes:
        extension = extension_of(one.facts)
        if self._include_usage:
            return self._chunk(usage=usage_of(one.facts), keepwarm=extension) + LAST_EVENT
        return self._chunk(self._finish, keepwarm=extension) + LAST_EVENT

    def _chunk(self, *choices: PartChoice, usage: Usage | None = None, keepwarm: Keepwarm | UnsetType = UNSET) -> bytes:
        return event(
            CompletionChunk(
                id=self._ask.id,
                created=self._created,
                model=self._ask.model,
                choices=choices,
                usage=usage if self._include_usage else UNSET,
                keepwarm=keepwarm,
            )
        )


# ---- errors ----


def error_body(problem: Problem, _: str = "") -> bytes:
    """Shape an error in OpenAI's envelope."""
    return to_json(
        {
            "error": {
                "message": problem.message,
                "type": problem.kind,
                "param": problem.param,
                "code": problem.code,
            }
        }
    )


def error_event(problem: Problem, _: str = "") -> bytes:
    """Shape the same as an event, for a stream that has begun."""
    return b"data: " + error_body(problem) + b"\n\n"
