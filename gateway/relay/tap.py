"""What an answer that passes by says: usage, its first token, its end, an error. Pure.

Owns what has been learnt so far. Rule: it only reads. The one event that may be kept back is the usage that the gateway
itself asked for; whatever cannot be read passes as it came and teaches nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from gateway.errors import UpstreamTold
from gateway.relay.sse import SentEvent
from gateway.relay.told import told_of
from gateway.relay.upstream import Endpoint
from gateway.relay.usage import Reported, Usage

_DONE: Final = b"[DONE]"
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError)

NULL: Final = Raw(b"null")


class _Chunk(msgspec.Struct, frozen=True):
    """What all APIs' events and answers have of what matters here."""

    type: str | None = None
    object: str | None = None
    usage: Raw = NULL
    error: Raw = NULL
    choices: list[Raw] | None = None
    message: Raw = NULL
    response: Raw = NULL
    sequence_number: int | None = None


class _Inner(msgspec.Struct, frozen=True):
    usage: Raw = NULL


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    finish_reason: str | None = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_INNER: Final = msgspec.json.Decoder(_Inner)
_CHOICE: Final = msgspec.json.Decoder(_Choice)
_ENDS: Final = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
_SILENT: Final = frozenset({"message_start", "ping", "response.created", "response.in_progress"})


class Tap:
    """Reads one answer."""

    def __init__(self, endpoint: Endpoint, *, hide_usage: bool = False) -> None:
        """Read an answer of `endpoint`; with `hide_usage` the client did not ask for the usage that will come."""
        self._endpoint = endpoint
        self._hide = hide_usage
        self._usage = Usage(anthropic=endpoint in {"messages", "count_tokens"})
        self._begun: set[int] = set()  # choices of which something came
        self._over: set[int] = set()  # and those that said why they ended
        self.sequence = -1  # of the last event, in the one API that numbers them
        self.begun = False  # whether a token has come
        self.ended = False  # whether the answer said that it is over
        self.finished = False  # whether every choice said why it ended: servers that say no more have said all
        self.error: UpstreamTold | None = None
        self.told = False  # whether the client has heard of the error, in the upstream's own event

    @property
    def reported(self) -> Reported:
        """What the answer has said of its cost."""
        return self._usage.reported

    def heard(self, reported: Reported) -> None:
        """Take what was told of an answer's cost by other ways than the answer."""
        self._usage.reported = reported

    @property
    def complete(self) -> bool:
        """Whether the answer has come to an end of its own, good or bad."""
        return self.ended or self.finished or self.error is not None

    def whole(self, body: bytes) -> None:
        """Read an answer that is not streamed. One that is no JSON object is an error."""
        try:
            chunk = _CHUNK.decode(body)
        except UNREADABLE:
            self.error = UpstreamTold(
                status=502, message="The upstream's answer could not be read.", kind="", code="upstream_failed"
            )
            return
        if _failed(chunk):
            self.error = told_of(200, body)
            self.told = chunk.object == "response"  # a response that failed is an answer of its own
        self.begun = self.ended = True
        self._learn(chunk.usage)

    def event(self, event: SentEvent) -> bool:
        """Read one event. Return whether the client gets it."""
        if event.data == _DONE:
            self.ended = True
            return True
        if not event.data:
            return True
        try:
            chunk = _CHUNK.decode(event.data)
        except UNREADABLE:
            chunk = _Chunk()
        if event.name == "error" or _failed(chunk):
            self.error = told_of(200, event.data)
            return False  # it is told in the shape of the client's API, once
        if self._endpoint in {"chat", "completions"}:
            return self._openai(chunk)
        return self._typed(chunk)

    def _openai(self, chunk: _Chunk) -> bool:
        self._learn(chunk.usage)
        if chunk.choices:
            self._count_ends(chunk.choices)
            if not self.begun:
                self.begun = any(_says_something(bytes(choice)) for choice in chunk.choices)
            return True
        return not (self._hide and _there(chunk.usage))

    def _count_ends(self, choices: list[Raw]) -> None:
        for raw in choices:
            try:
                choice = _CHOICE.decode(raw)
            except UNREADABLE:
                continue
            self._begun.add(choice.index)
            if choice.finish_reason is not None:
                self._over.add(choice.index)
        self.finished = self._over == self._begun

    def _typed(self, chunk: _Chunk) -> bool:
        kind = chunk.type or ""
        self.sequence = self.sequence if chunk.sequence_number is None else chunk.sequence_number
        self._learn(chunk.usage)
        for nested in (chunk.message, chunk.response):
            if not _there(nested):
                continue
            try:
                inner = _INNER.decode(nested)
            except UNREADABLE:
                continue
            self._learn(inner.usage)
            if kind == "response.failed":
                self.error, self.told = told_of(200, bytes(nested)), True
        self.begun = self.begun or kind not in _SILENT
        self.ended = self.ended or kind in _ENDS
        return True

    def _learn(self, usage: Raw) -> None:
        if _there(usage):
            self._usage.hear(usage)


def _failed(chunk: _Chunk) -> bool:
    """Whether this is an error and no part of an answer."""
    return _there(chunk.error) or chunk.type == "error" or chunk.object == "error"


def _there(value: Raw) -> bool:
    """Whether a field was there and not null."""
    return bytes(value) != b"null"


def _says_something(choice: bytes) -> bool:
    """Whether a choice of a chunk carries more than a role."""
    try:
        read = msgspec.json.decode(choice)
    except UNREADABLE:
        return False
    if not isinstance(read, dict):
        return False
    delta = read.get("delta")
    said = delta if isinstance(delta, dict) else read
    return any(
        said.get(field) for field in ("content", "text", "tool_calls", "reasoning_content", "reasoning", "refusal")
    )
