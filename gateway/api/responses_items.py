"""Items of OpenAI's Responses API, and the turns and marks they stand for. Pure: no HTTP, no clock.

Rule: a conversation is its items in order, however they arrived, so items sent again and items remembered are the same
turns. What one answer is made of, a message and its calls, is one assistant turn. Every refusal names the item's path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec

from gateway.ask import ToolCall, Turn, arguments_of
from gateway.errors import BadRequest
from gateway.retention import AskedMark

MESSAGE_PARTS: Final = frozenset({"input_text", "output_text", "refusal"})
OUTPUT_PARTS: Final = frozenset({"input_text"})


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A mark at the end of a part: what is before it is to be kept for `ttl`."""

    mode: Literal["explicit"] = "explicit"
    ttl: str | None = None


class CacheControl(msgspec.Struct, frozen=True, kw_only=True):
    """The same mark as clients spell it that translate from Anthropic's API."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message, of a call's output or of a reasoning item."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Breakpoint | None = None
    cache_control: CacheControl | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a conversation; which fields it needs depends on its type. Without a type it is a message."""

    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    output: Any = None
    summary: list[Part] | None = None
    text: Any = None

    @property
    def kind(self) -> str:
        """Its type, said or not: an id alone is a reference."""
        if self.type is not None:
            return self.type
        return "item_reference" if self.role is None and self.id is not None else "message"


def mark_of(holder: Any, path: str) -> AskedMark | None:
    """Return the mark at the end of a part or tool. Written in both spellings it is still one mark."""
    if getattr(holder, "prompt_cache_breakpoint", None) is not None:
        return AskedMark(holder.prompt_cache_breakpoint.ttl, f"{path}.prompt_cache_breakpoint.ttl")
    if holder.cache_control is not None:
        return AskedMark(holder.cache_control.ttl, f"{path}.cache_control.ttl")
    return None


def conversation(items: Iterable[tuple[str, Item]]) -> tuple[tuple[Turn, ...], tuple[AskedMark, ...]]:
    """Turn items, each with its path, into turns and the marks in them, in order. Raises BadRequest."""
    building = _Conversation()
    for path, item in items:
        building.add(item, path)
    return tuple(building.turns), tuple(building.marks)


class _Conversation:
    """Turns so far. `_thinking` waits for the assistant's turn that follows it."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.marks: list[AskedMark] = []
        self._thinking = ""

    def add(self, item: Item, path: str) -> None:
        match item.kind:
            case "message":
                self._message(item, path)
            case "function_call":
                self._call(item, path)
            case "function_call_output":
                self._output(item, path)
            case "reasoning":
                parts = item.content if isinstance(item.content, list) and item.content else item.summary
                self._thinking += "".join(part.text or "" for part in parts or ())
            case "configuration_update" if item.text is None:
                pass  # it may only change the effort of reasoning, which no model here is told
            case "configuration_update":
                raise BadRequest(
                    "A changed text format is not supported in the input: set 'text.format'.",
                    param=f"{path}.text",
                    code="unsupported_value",
                )
            case kind:
                message = f"Input items of type {kind!r} are not supported."
                raise BadRequest(message, param=path, code="unsupported_value")

    def _message(self, item: Item, path: str) -> None:
        if item.role is None:
            raise _missing(f"{path}.role")
        text, breaks = self._text(item.content, f"{path}.content", MESSAGE_PARTS)
        if item.role != "assistant":
            self._thinking = ""
            role: Literal["system", "user"] = "user" if item.role == "user" else "system"
            self.turns.append(Turn(role=role, text=text, breaks=breaks, path=path))
        elif self._goes_on() and self.turns[-1].tool_calls:
            turn = self.turns[-1]
            moved = tuple(len(turn.text) + at for at in breaks)
            self.turns[-1] = replace(turn, text=turn.text + text, breaks=turn.breaks + moved)
        else:
            self.turns.append(Turn(role="assistant", text=text, breaks=breaks, thinking=self._thought(), path=path))

    def _call(self, item: Item, path: str) -> None:
        for field in ("call_id", "name"):
            if not getattr(item, field):
                raise _missing(f"{path}.{field}")
        if not isinstance(item.arguments, str | None):
            raise BadRequest("A call's arguments are JSON text in a string.", param=f"{path}.arguments")
        call = ToolCall(id=item.call_id or "", name=item.name or "", arguments=arguments_of(item.arguments or ""))
        if self._goes_on():
            self.turns[-1] = replace(self.turns[-1], tool_calls=(*self.turns[-1].tool_calls, call))
        else:
            self.turns.append(Turn(role="assistant", text="", tool_calls=(call,), thinking=self._thought(), path=path))

    def _output(self, item: Item, path: str) -> None:
        if not item.call_id:
            raise _missing(f"{path}.call_id")
        text, breaks = self._text(_content(item.output, f"{path}.output"), f"{path}.output", OUTPUT_PARTS)
        self._thinking = ""
        self.turns.append(
            Turn(role="tool", text=text, name=item.name, tool_call_id=item.call_id, breaks=breaks, path=path)
        )

    def _text(self, content: str | list[Part] | None, path: str, known: frozenset[str]) -> tuple[str, tuple[int, ...]]:
        """Join the parts, note their marks, and return where in the text each marked part ends."""
        if content is None or isinstance(content, str):
            return content or "", ()
        texts: list[str] = []
        breaks: list[int] = []
        at = 0
        for place, part in enumerate(content):
            here = f"{path}[{place}]"
            texts.append(_part_text(part, here, known))
            at += len(texts[-1])
            mark = mark_of(part, here)
            if mark is not None:
                self.marks.append(mark)
                breaks.append(at)
        return "".join(texts), tuple(breaks)

    def _goes_on(self) -> bool:
        """Whether an assistant's item belongs to the turn before it."""
        return bool(self.turns) and self.turns[-1].role == "assistant" and not self._thinking

    def _thought(self) -> str:
        thinking, self._thinking = self._thinking, ""
        return thinking


def references(items: Iterable[Item]) -> Iterator[str]:
    """Return the ids that items refer to."""
    return (item.id for item in items if item.kind == "item_reference" and item.id is not None)


def _content(output: Any, path: str) -> str | list[Part] | None:
    """Read a call's output, which is text or text parts."""
    try:
        return msgspec.convert(output, str | list[Part] | None)
    except msgspec.ValidationError as error:
        raise BadRequest(f"A call's output is a string or a list of parts: {error}.", param=path) from error


def _part_text(part: Part, path: str, known: frozenset[str]) -> str:
    if part.type not in known:
        message = f"Content parts of type {part.type!r} are not supported here: this model reads text only."
        raise BadRequest(message, param=path, code="unsupported_value")
    field = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, field)
    if text is None:
        raise _missing(f"{path}.{field}")
    return text


def _missing(path: str) -> BadRequest:
    return BadRequest(f"Missing required field '{path}'.", param=path, code="missing_field")
