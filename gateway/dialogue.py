"""A conversation as chat templates read it: plain dictionaries, with words for what a template has none for.

Owns the decision what a template knows. Rules: content is always a string; equal turns give equal dictionaries; every
part of a turn that claims to shape the prompt is shown, in the template's way where it has one, else in the built-in
way. A mark is a sign in the text: it goes wherever the template carries the text. What the client wrote is shielded,
the built-in words are not: they are ours, as the template's are the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from gateway.ask import Tool, ToolCall, Turn
from gateway.canonical import canonical, canonical_schema
from gateway.canonical import text as json_text
from gateway.errors import BadRequest
from gateway.signs import Signed, agreement
from gateway.template import ChatTemplate
from gateway.tools import ToolFormat

Signs = Iterator[str]
Shield = Callable[[Any], Any]
_SPEAKERS = ("system", "user", "assistant")
_PROBE = "keepwarm-probe"
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class Dialogue:
    """Turns and tools into a template's messages and tools."""

    def __init__(self, template: ChatTemplate, form: ToolFormat, *, canonical: bool) -> None:
        """Look at what the template knows. `canonical`: key order and number spelling in tools do not count."""
        source = template.source
        self._form = form
        self._canonical = canonical
        self._tools = "tools" in template.arguments
        self._calls = "tool_calls" in source
        self._results = self._tools or any(role in source for role in ("'tool'", '"tool"'))
        self._thinking = "reasoning_content" in source
        self._named = {role for role in _SPEAKERS if _shows_name(template, role)}
        if self._results:
            self._named.add("tool")
        self._one_call = self._calls and not _writes_calls(template, form, 2) and _writes_calls(template, form, 1)

    def messages(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool],
        *,
        signs: Signs | None = None,
        shield: Shield = lambda value: value,
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return messages and tools. With `signs`, one (it may be empty) stands at each mark, in rendering order.

        `shield` goes over every value that the client wrote.
        """
        definitions = [shield(self._definition(tool, f"tools[{place}]")) for place, tool in enumerate(tools)]
        marks = [next(signs) if signs and tool.marked else "" for tool in tools]
        messages = [self._message(turn, signs, shield) for turn in turns]
        if self._one_call:
            messages = list(_one_by_one(messages))
        if not self._results:
            messages = _results_as_user_text(messages)
        if self._tools:
            return messages, [_signed(one, mark) if mark else one for one, mark in zip(definitions, marks, strict=True)]
        if definitions:
            texts = [json_text(one) + mark for one, mark in zip(definitions, marks, strict=True)]
            messages = _with_preface(messages, self._form.prompt(texts))
        return messages, []

    def _definition(self, tool: Tool, path: str) -> dict[str, Any]:
        parameters = tool.parameters or _NO_ARGUMENTS
        ordered = canonical_schema(parameters, path=path)  # refuses what is nested too deep, whether used or not
        function: dict[str, Any] = {"name": tool.name}
        if tool.description:
            function["description"] = tool.description
        function["parameters"] = ordered if self._canonical else dict(parameters)
        return {"type": "function", "function": function}

    def _message(self, turn: Turn, signs: Signs | None, shield: Shield) -> dict[str, Any]:
        content = shield(turn.text if signs is None else _marked(turn, signs))
        message: dict[str, Any] = {"role": turn.role, "content": content}
        if turn.name is not None and turn.role in self._named:
            message["name"] = shield(turn.name)
        elif turn.name is not None:
            message["content"] = f"{shield(turn.name)}: {message['content']}"
        if turn.tool_call_id is not None:
            message["tool_call_id"] = shield(self._form.call_id(turn.tool_call_id))
        if turn.thinking and self._thinking:
            message["reasoning_content"] = shield(turn.thinking)
        elif turn.thinking:
            message["content"] = f"<think>\n{shield(turn.thinking)}\n</think>\n\n{message['content']}"
        if turn.tool_calls:
            marks = [next(signs) if signs and call.marked else "" for call in turn.tool_calls]
            self._add_calls(message, [self._settled(call, shield) for call in turn.tool_calls], marks)
        return message

    def _settled(self, call: ToolCall, shield: Shield) -> ToolCall:
        arguments = call.arguments
        if not isinstance(arguments, str):
            ordered = canonical(arguments, path="messages")  # refuses what is nested too deep, whether used or not
            arguments = ordered if self._canonical else arguments
        call_id = self._form.call_id(call.id)
        return ToolCall(id=shield(call_id), name=shield(call.name), arguments=shield(arguments))

    def _add_calls(self, message: dict[str, Any], calls: Sequence[ToolCall], marks: Sequence[str]) -> None:
        if not self._calls:
            spelled = _spelled(calls, marks, self._form.spell)
            message["content"] = f"{message['content']}\n{spelled}" if message["content"] else spelled
            return
        message["tool_calls"] = []
        for call, mark in zip(calls, marks, strict=True):
            function = {"name": call.name, "arguments": _signed_last(call.arguments, mark) if mark else call.arguments}
            whole = {"id": call.id, "type": "function", "function": function}
            message["tool_calls"].append(_signed(whole, mark) if mark else whole)


def _marked(turn: Turn, signs: Signs) -> str:
    """Return the turn's text with a sign at each of its marks."""
    if not turn.breaks:
        return turn.text
    cuts = [0, *turn.breaks, len(turn.text)]
    pieces = [turn.text[start:end] for start, end in pairwise(cuts)]
    return pieces[0] + "".join(next(signs) + piece for piece in pieces[1:])


def _signed(whole: dict[str, Any], sign: str) -> dict[str, Any]:
    """Put the sign behind a definition or a call, behind its function and behind that one's last part.

    Templates write any one of these: the last sign that is written counts.
    """
    function = dict(whole["function"])
    if isinstance(function.get("parameters"), dict):
        function["parameters"] = Signed(function["parameters"], sign)
    return Signed({**whole, "function": Signed(function, sign)}, sign)


def _signed_last(arguments: dict[str, Any] | str, sign: str) -> dict[str, Any] | str:
    """Put the sign behind a call's arguments and within, behind the text that comes last: some write only values."""
    if isinstance(arguments, str):
        return arguments + sign
    signed = dict(arguments)
    last = next(reversed(signed), None)
    if last is not None and isinstance(signed[last], str):
        signed[last] += sign
    return Signed(signed, sign)


def _writes_calls(template: ChatTemplate, form: ToolFormat, count: int) -> bool:
    """Whether a template writes a turn with so many calls, found out by letting it."""
    ids = [form.call_id(f"{_PROBE}-{number}") for number in range(count)]
    function = {"name": "f", "arguments": {}}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    results = [{"role": "tool", "content": "b", "tool_call_id": call_id} for call_id in ids]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    return _render_of(template, [{"role": "user", "content": "a"}, called, *results]) is not None


def _shows_name(template: ChatTemplate, role: str) -> bool:
    """Whether a template writes the name of who speaks, found out by letting it write one."""
    turns = [{"role": said, "content": said} for said in ("user", "assistant", "user")]
    place = {"system": 0, "user": 0, "assistant": 1}[role]
    turns = [{"role": "system", "content": "d"}, *turns] if role == "system" else turns
    turns[place] = {**turns[place], "name": _PROBE}
    return _PROBE in (_render_of(template, turns) or "")


def _render_of(template: ChatTemplate, messages: Sequence[dict[str, Any]]) -> str | None:
    try:
        return template.render(messages)
    except BadRequest:
        return None


def _spelled(calls: Sequence[ToolCall], marks: Sequence[str], spell: Callable[[Sequence[ToolCall]], str]) -> str:
    """Write calls in the format's way, each mark behind its call."""
    text = spell(calls)
    for place, mark in reversed(list(enumerate(marks))):
        if mark:
            at = agreement(text, spell(calls[: place + 1]))
            text = text[:at] + mark + text[at:]
    return text


def _one_by_one(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Write a turn of several calls as turns of one call, each with its result behind it."""
    left = list(messages)
    while left:
        message = left.pop(0)
        calls = message.get("tool_calls", ())
        if len(calls) < 2:  # noqa: PLR2004 - several
            yield message
            continue
        results = list(takewhile(lambda one: one["role"] == "tool", left))
        del left[: len(results)]
        for call in calls:
            yield {**message, "tool_calls": [call]}
            message = {"role": "assistant", "content": ""}
            own = [result for result in results if result.get("tool_call_id") == call["id"]]
            yield from own
            results = [result for result in results if result not in own]
        yield from results


def _results_as_user_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write tool results as the user's words; what follows one another from that side is one message."""
    spoken: list[dict[str, Any]] = []
    joins = False  # whether the last message holds results, so that more may join it
    for message in messages:
        is_result = message["role"] == "tool"
        if not is_result and not (joins and message["role"] == "user"):
            spoken.append(message)
            joins = False
            continue
        content = f"<tool_response>\n{message['content']}\n</tool_response>" if is_result else message["content"]
        if joins:
            spoken[-1] = {**spoken[-1], "content": f"{spoken[-1]['content']}\n{content}"}
        else:
            spoken.append({"role": "user", "content": content})
        joins = True
    return spoken


def _with_preface(messages: Sequence[dict[str, Any]], preface: str) -> list[dict[str, Any]]:
    """Put the tools before the system text, so that a changed system text leaves them cached."""
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{preface}\n\n{messages[0]['content']}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": preface}, *messages]
