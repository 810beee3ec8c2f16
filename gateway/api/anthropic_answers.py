"""Anthropic's messages, the way out: answers, events and errors become JSON. Pure: no HTTP, no clock.

Rules: `input_tokens` are those that were neither read nor written, so the three counts are disjoint and sum to the
prompt, streamed or not; writes are split by the TTL that the client asked for; the last event's usage repeats the
first's, so that a client may overwrite but must not add.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.anthropic_blocks import CALL_PREFIX
from gateway.api.anthropic_messages import MessagesRequest
from gateway.api.diagnostics import CacheMissReason, anthropic_reason
from gateway.api.extension import Keepwarm, extension_of
from gateway.ask import Ask
from gateway.events import AnswerEnd, Began, CallArguments, CallBegan, Done, Ended, Event, Text
from gateway.usage import PromptFacts

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

NO_JSON: Final = "INVALID_JSON"  # the key under which the API shows a call's input that is not a JSON object

_STOP_REASONS: Final[dict[AnswerEnd, StopReason]] = {
    "stop": "end_turn",
    "stop_string": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class CacheCreation(msgspec.Struct, frozen=True, kw_only=True):
    """Written tokens by the TTL asked for."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Anthropic's usage object."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    service_tier: Literal["standard"] = "standard"


class DeltaUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The same at a stream's end: totals, not differences."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnswerText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A block of text."""

    text: str


class AnswerCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call. `input` is the JSON object that the model wrote, spelled as it wrote it."""

    id: str
    name: str
    input: msgspec.Raw


AnswerBlock = AnswerText | AnswerCall


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `diagnostics`."""

    cache_miss_reason: CacheMissReason


Diagnosed = Diagnosis | None | UnsetType  # unset: not asked for; None: nothing to compare with


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, and the shell of one that begins to stream."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: Sequence[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    diagnostics: Diagnosed = UNSET
    keepwarm: Keepwarm | UnsetType = UNSET


_json = msgspec.json.Encoder().encode

_NO_INPUT: Final = msgspec.Raw(b"{}")


def usage_of(facts: PromptFacts, output: int) -> Usage:
    """Usage as Anthropic counts it; what was written without a TTL of its own counts as the default's, 5m."""
    hour = sum(part.tokens for part in facts.written if part.asked == "1h")
    return Usage(
        input_tokens=facts.uncached,
        cache_creation_input_tokens=facts.write,
        cache_read_input_tokens=facts.read,
        cache_creation=CacheCreation(
            ephemeral_5m_input_tokens=facts.write - hour,
            ephemeral_1h_input_tokens=hour,
        ),
        output_tokens=output,
    )


def diagnosed(request: MessagesRequest, facts: PromptFacts) -> Diagnosed:
    """Answer `diagnostics`: null where there is nothing to compare with, or nothing changed."""
    if request.diagnostics is None:
        return UNSET
    if request.diagnostics.previous_message_id is None:
        return None
    reason = anthropic_reason(facts.comparison)
    return None if reason is None else Diagnosis(cache_miss_reason=reason)


def message(ask: Ask, events: Iterable[Event], request: MessagesRequest) -> bytes:
    """Shape a whole answer from all of its events."""
    blocks: list[tuple[CallBegan | None, list[str]]] = []
    ended, done = Ended("stop"), None
    for event in events:
        match event:
            case Text(text=text) if text:
                if not blocks or blocks[-1][0] is not None:
                    blocks.append((None, []))
                blocks[-1][1].append(text)
            case CallBegan():
                blocks.append((event, []))
            case CallArguments(text=text):
                blocks[-1][1].append(text)
            case Ended():
                ended = event
            case Done():
                done = event
    assert done is not None, "an exchange that ends without an error ends with Done"
    return _json(
        AnswerMessage(
            id=ask.id,
            model=ask.model,
            content=tuple(_block(call, "".join(pieces)) for call, pieces in blocks),
            stop_reason=_stop_reason(ask, ended),
            stop_sequence=ended.stop,
            usage=usage_of(done.facts, done.facts.generated),
            diagnostics=diagnosed(request, done.facts),
            keepwarm=extension_of(done.facts),
        )
    )


def _block(call: CallBegan | None, text: str) -> AnswerBlock:
    if call is None:
        return AnswerText(text=text)
    return AnswerCall(id=CALL_PREFIX + call.id, name=call.name, input=_input(text))


def _input(text: str) -> msgspec.Raw:
    """Return the input as written; what is no JSON object, such as one that was cut off, under a key of its own."""
    try:
        whole = isinstance(msgspec.json.decode(text or "{}"), dict)
    except (msgspec.DecodeError, RecursionError):
        whole = False
    return msgspec.Raw((text or "{}").encode() if whole else _json({NO_JSON: text}))


def _stop_reason(ask: Ask, ended: Ended) -> StopReason:
    return "max_tokens" if ask.max_tokens == 0 else _STOP_REASONS[ended.reason]


class Stream:
    """Shapes one streamed answer, event by event."""

    def __init__(self, ask: Ask, request: MessagesRequest) -> None:
        """Prepare for the answer to `ask`, which was made of `request`."""
        self._ask = ask
        self._request = request
        self._blocks = 0  # begun so far
        self._open: Literal["text", "tool_use"] | None = None
        self._ended = Ended("stop")

    def shape(self, event: Event) -> bytes:
        """Shape the next event; nothing where the API has no event for it."""
        match event:
            case Began(facts=facts):
                return self._opening(facts)
            case Text(text=text):
                return self._text(text) if text else b""
            case CallBegan():
                block = AnswerCall(id=CALL_PREFIX + event.id, name=event.name, input=_NO_INPUT)
                return self._begin("tool_use", block)
            case CallArguments(text=text):
                return self._delta({"type": "input_json_delta", "partial_json": text}) if text else b""
            case Ended():
                self._ended = event
                return self._close()
            case Done():
                return self._closing(event)

    def _opening(self, facts: PromptFacts) -> bytes:
        shell = AnswerMessage(
            id=self._ask.id,
            model=self._ask.model,
            content=(),
            stop_reason=None,
            stop_sequence=None,
            usage=usage_of(facts, 0),
            diagnostics=diagnosed(self._request, facts),
        )
        return _event("message_start", {"message": shell})

    def _text(self, text: str) -> bytes:
        begin = b"" if self._open == "text" else self._begin("text", AnswerText(text=""))
        return begin + self._delta({"type": "text_delta", "text": text})

    def _begin(self, kind: Literal["text", "tool_use"], block: AnswerBlock) -> bytes:
        closing = self._close()
        self._open = kind
        self._blocks += 1
        return closing + _event("content_block_start", {"index": self._blocks - 1, "content_block": block})

    def _delta(self, delta: dict[str, str]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", {"index": self._blocks - 1})

    def _closing(self, done: Done) -> bytes:
        facts = done.facts
        usage = DeltaUsage(
            input_tokens=facts.uncached,
            cache_creation_input_tokens=facts.write,
            cache_read_input_tokens=facts.read,
            output_tokens=facts.generated,
        )
        delta = {"stop_reason": _stop_reason(self._ask, self._ended), "stop_sequence": self._ended.stop}
        fields = {"delta": delta, "usage": usage, "keepwarm": extension_of(facts)}
        return self._close() + _event("message_delta", fields) + _event("message_stop", {})


def _event(kind: str, fields: dict[str, object]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _json({"type": kind, **fields}) + b"\n\n"


def counted(tokens: int) -> bytes:
    """Shape the answer to a count."""
    return _json({"input_tokens": tokens})
