"""OpenAI's chat completions, the way out: answers, chunks and errors become JSON. Pure: no HTTP, no clock.

Rule: usage is made of facts and cached tokens are a part of the prompt's, 0 when none; a stream speaks of usage only
if asked, in one chunk of its own; the `keepwarm` extension rides on whichever chunk is the last.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.extension import Keepwarm, extension_of
from gateway.errors import Problem
from gateway.exchange import AnswerEnd, Ask, Done
from gateway.usage import Facts


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache did for the prompt."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a whole completion."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a whole completion."""

    index: int = 0
    message: AnswerMessage
    logprobs: None = None
    finish_reason: AnswerEnd


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    keepwarm: Keepwarm


class PartMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class PartChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice of a chunk."""

    index: int = 0
    delta: PartMessage
    logprobs: None = None
    finish_reason: AnswerEnd | None = None


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[PartChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    keepwarm: Keepwarm | UnsetType = UNSET


_json = msgspec.json.Encoder().encode

LAST_EVENT = b"data: [DONE]\n\n"


def _event(value: object) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def usage_of(facts: Facts) -> Usage:
    """Usage as OpenAI counts it: cached tokens are a part of the prompt's."""
    return Usage(
        prompt_tokens=facts.prompt,
        completion_tokens=facts.generated,
        total_tokens=facts.prompt + facts.generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=facts.read),
    )


def completion(ask: Ask, created: int, text: str, done: Done) -> bytes:
    """Shape a whole answer."""
    return _json(
        Completion(
            id=ask.id,
            created=created,
            model=ask.model,
            choices=(Choice(message=AnswerMessage(content=text), finish_reason=done.reason),),
            usage=usage_of(done.facts),
            keepwarm=extension_of(done.facts),
        )
    )


class Stream:
    """Shapes one streamed answer. The extension rides on the last chunk, whichever that is."""

    def __init__(self, ask: Ask, created: int, *, include_usage: bool) -> None:
        """Prepare the parts that all chunks share."""
        self._ask = ask
        self._created = created
        self._include_usage = include_usage

    def opening(self) -> bytes:
        """Shape the first chunk: who speaks."""
        return self._chunk(PartChoice(delta=PartMessage(role="assistant", content="")))

    def text(self, text: str) -> bytes:
        """Shape more of the answer."""
        return self._chunk(PartChoice(delta=PartMessage(content=text)))

    def closing(self, done: Done) -> bytes:
        """Shape everything after the last text: finish reason, usage if asked for, end of stream."""
        finish = PartChoice(delta=PartMessage(), finish_reason=done.reason)
        extension = extension_of(done.facts)
        if not self._include_usage:
            return self._chunk(finish, keepwarm=extension) + LAST_EVENT
        return self._chunk(finish) + self._chunk(usage=usage_of(done.facts), keepwarm=extension) + LAST_EVENT

    def _chunk(self, *choices: PartChoice, usage: Usage | None = None, keepwarm: Keepwarm | UnsetType = UNSET) -> bytes:
        return _event(
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


def error_body(problem: Problem) -> bytes:
    """Shape an error in OpenAI's envelope."""
    return _json(
        {
            "error": {
                "message": problem.message,
                "type": problem.kind,
                "param": problem.param,
                "code": problem.code,
            }
        }
    )


def error_event(problem: Problem) -> bytes:
    """Shape the same as an event, for a stream that has begun."""
    return b"data: " + error_body(problem) + b"\n\n"
