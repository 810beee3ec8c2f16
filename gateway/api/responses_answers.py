"""OpenAI's Responses API, the way out: events of an answer become a response, whole or streamed. Pure: no HTTP.

Rule: one `Answer` takes every event, streamed or not, so the response that ends a stream is the whole answer. Streamed
events are numbered without gaps; the output grows item by item, and an item is done before the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.api.diagnostics import openai_diagnostics
from gateway.api.extension import extension_of
from gateway.api.responses_items import Item
from gateway.api.responses_request import ResponsesRequest
from gateway.api.responses_shapes import (
    Incomplete,
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    TokenLogprob,
    failure_of,
    logprobs_of,
    template,
    usage_of,
)
from gateway.errors import Problem
from gateway.events import Began, CallArguments, CallBegan, Done, Ended, Event, Logprob, Text

_json = msgspec.json.Encoder().encode

Part = dict[str, Any]  # one streamed event


@dataclass(slots=True, kw_only=True)
class _Open:
    """The item that grows now: a message, or the call of `name`."""

    id: str
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def item(self, status: ItemStatus) -> OutputItem:
        text = "".join(self.pieces)
        if self.call_id:
            return OutputCall(id=self.id, call_id=self.call_id, name=self.name, arguments=text, status=status)
        content = OutputText(text=text, logprobs=tuple(self.logprobs))
        return OutputMessage(id=self.id, status=status, content=(content,))


class Answer:
    """One response, as far as it has come."""

    def __init__(
        self,
        request: ResponsesRequest,
        response_id: str,
        *,
        wall: Callable[[], float],
    ) -> None:
        """Prepare an answer to `request`."""
        self._template = template(request, response_id, int(wall()))
        self._compared = request.cache.comparison_response_id is not None
        self._prewarms = bool(request.cache.prewarm)
        self._wall = wall
        self._output: list[OutputItem] = []
        self._open: _Open | None = None
        self._early: list[TokenLogprob] = []  # of tokens that came before any text did
        self._cut = False
        self._number = 0
        self.begun = False
        self.response = self._template

    def take(self, event: Event) -> list[Part]:
        """Take the next event and return what a stream says of it."""
        match event:
            case Began(facts=facts):
                if self._compared:
                    told = openai_diagnostics(facts.comparison)
                    self._template = msgspec.structs.replace(self._template, prompt_cache_diagnostics=told)
                return self._begin()
            case Text(text=text, logprobs=logprobs):
                return self._text(text, logprobs)
            case CallBegan(id=call_id, name=name):
                return self._call(call_id, name)
            case CallArguments(text=text):
                return self._arguments(text)
            case Ended(reason=reason):
                return self._end(cut=reason == "length" and not self._prewarms)
            case Done():
                return self._done(event)

    def fail(self, problem: Problem) -> list[Part]:
        """End the answer with an error, beginning it first where it had not begun."""
        parts = [] if self.begun else self._begin()
        parts += self._close("incomplete")
        error = failure_of(problem)
        self.response = msgspec.structs.replace(
            self._template, status="failed", error=error, output=tuple(self._output)
        )
        code = problem.code or error.code
        parts.append(self._part("error", code=code, message=problem.message, param=problem.param))
        return [*parts, self._part("response.failed", response=self.response)]

    def body(self) -> bytes:
        """Write the response as it stands."""
        return _json(self.response)

    def items(self) -> tuple[Item, ...]:
        """Return the output as the items that a client would send back."""
        return msgspec.convert(msgspec.to_builtins(self.response.output), tuple[Item, ...])

    def _begin(self) -> list[Part]:
        self.begun = True
        return [
            self._part("response.created", response=self._template),
            self._part("response.in_progress", response=self._template),
        ]

    def _text(self, text: str, logprobs: tuple[Logprob, ...]) -> list[Part]:
        told = list(logprobs_of(logprobs))
        if self._open is None or self._open.call_id:
            self._early += told
            if not text:
                return []
            told, self._early = self._early, []
            parts = self._open_message()
        else:
            parts = []
        assert self._open is not None
        self._open.pieces.append(text)
        self._open.logprobs += told
        return [*parts, self._about("response.output_text.delta", content_index=0, delta=text, logprobs=told)]

    def _open_message(self) -> list[Part]:
        parts = self._close("completed")
        self._open = _Open(id=f"msg_{self._template.id.removeprefix('resp_')}{len(self._output):02x}")
        shell = OutputMessage(id=self._open.id, status="in_progress", content=())
        parts.append(self._part("response.output_item.added", output_index=len(self._output), item=shell))
        return [*parts, self._about("response.content_part.added", content_index=0, part=OutputText(text=""))]

    def _call(self, call_id: str, name: str) -> list[Part]:
        parts = self._close("completed")
        self._early.clear()  # of the call's own spelling, which this API does not show
        self._open = _Open(id=f"fc_{call_id}", call_id=f"call_{call_id}", name=name)
        item = self._open.item("in_progress")
        return [*parts, self._part("response.output_item.added", output_index=len(self._output), item=item)]

    def _arguments(self, text: str) -> list[Part]:
        assert self._open is not None, "arguments follow the call that they belong to"
        self._open.pieces.append(text)
        return [self._about("response.function_call_arguments.delta", delta=text)]

    def _close(self, status: ItemStatus) -> list[Part]:
        """Finish the item that grows, if one does."""
        if self._open is None:
            return []
        item = self._open.item(status)
        if isinstance(item, OutputCall):
            parts = [
                self._about("response.function_call_arguments.done", name=item.name, arguments=item.arguments),
            ]
        else:
            (content,) = item.content
            parts = [
                self._about("response.output_text.done", content_index=0, text=content.text, logprobs=content.logprobs),
                self._about("response.content_part.done", content_index=0, part=content),
            ]
        parts.append(self._part("response.output_item.done", output_index=len(self._output), item=item))
        self._output.append(item)
        self._open = None
        return parts

    def _end(self, *, cut: bool) -> list[Part]:
        self._cut = cut
        silent = self._open is None and not self._output and not self._prewarms
        parts = self._open_message() if silent else []
        return parts + self._close("incomplete" if cut else "completed")

    def _done(self, done: Done) -> list[Part]:
        status = "incomplete" if self._cut else "completed"
        self.response = msgspec.structs.replace(
            self._template,
            status=status,
            completed_at=None if self._cut else int(self._wall()),
            incomplete_details=Incomplete() if self._cut else None,
            output=tuple(self._output),
            usage=usage_of(done.facts, done.facts.generated),
            keepwarm=extension_of(done.facts),
        )
        return [self._part(f"response.{status}", response=self.response)]

    def _about(self, kind: str, **fields: Any) -> Part:
        """Say something of the item that grows."""
        assert self._open is not None
        return self._part(kind, item_id=self._open.id, output_index=len(self._output), **fields)

    def _part(self, kind: str, **fields: Any) -> Part:
        part = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return part


class Stream:
    """Shapes one streamed answer as server-sent events."""

    def __init__(self, answer: Answer) -> None:
        """Shape what `answer` is given."""
        self._answer = answer

    def shape(self, event: Event) -> bytes:
        """Shape the next event; empty where a stream has nothing to say of it."""
        return _events(self._answer.take(event))

    def failure(self, problem: Problem) -> bytes:
        """Shape the end of an answer that failed."""
        return _events(self._answer.fail(problem))


def _events(parts: list[Part]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (part["type"].encode(), _json(part)) for part in parts)
