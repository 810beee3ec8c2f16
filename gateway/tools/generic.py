"""Plain JSON: the answer is an object of `name` and `arguments` or `parameters`, or a list of these, perhaps fenced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.ask import Tool, ToolCall, ToolChoice
from gateway.tools import CallParser, confine, fresh_id
from gateway.tools.reader import Reader, Spelling
from gateway.tools.wording import call_object, tool_prompt

_SPELLING = Spelling(bare=True, fence=True)
_HOW = """If you choose to call functions, answer with nothing but a json object of this form, or a list of these:
{"name": <function-name>, "arguments": <args-json-object>}"""


class Generic:
    """The convention of models that have none."""

    name = "json"
    markers: tuple[str, ...] = ()

    def __init__(self, ids: Mapping[str, int] | None = None) -> None:
        """Take what every convention takes; there are no markers here."""
        del ids

    def parser(self, tools: Sequence[Tool], *, new_id: Callable[[], str] = fresh_id) -> CallParser:
        """Begin to read an answer."""
        return Reader(_SPELLING, tools, new_id)

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice) -> str:
        """Write an object, or also a list of several; free text does not begin as these do."""
        allowed = confine.wanted(tools, choice)
        if not allowed:
            return ""
        listed = f"{confine.literal('[')} {confine.several('call', ', ', choice)} {confine.literal(']')}"
        forms = f"call | {listed}" if choice.parallel else "call"
        calls = confine.objects(allowed, choice, "arguments")
        if choice.mode == "required":
            return f"start: {forms}\n{calls}"
        plain = confine.beginning(r"[ \t\r\n]*(```(json)?[ \t\r\n]*)?[{\[]")
        return f"start: PLAIN | {forms}\nPLAIN: {plain}\n{calls}"

    def prompt(self, tools: Sequence[str]) -> str:
        """Write the built-in tool prompt."""
        return tool_prompt(tools, _HOW)

    def spell(self, calls: Sequence[ToolCall]) -> str:
        """Write calls: one as an object, several as a list."""
        written = [call_object(call, "arguments") for call in calls]
        return written[0] if len(written) == 1 else f"[{', '.join(written)}]" if written else ""

    def call_id(self, call_id: str) -> str:
        """Return the id: no template looks at it."""
        return call_id
