"""Hermes and Qwen: `<tool_call>`, a JSON object of `name` and `arguments` on a line of its own, `</tool_call>`.

Also read: several objects, or a list of them, inside one pair of tags; a pair that is never closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.ask import Tool, ToolCall, ToolChoice
from gateway.tools import CallParser, confine, fresh_id
from gateway.tools.reader import Reader, Spelling
from gateway.tools.wording import call_object, tool_prompt

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SPELLING = Spelling(opening=OPEN, closing=CLOSE)
_HOW = """For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


class Hermes:
    """The convention. `ids` are those of its markers that are special tokens, to the tokenizer in use."""

    name = "hermes"
    markers = (OPEN, CLOSE)

    def __init__(self, ids: Mapping[str, int] | None = None) -> None:
        """Take the token ids of markers."""
        self._ids = dict(ids or {})

    def parser(self, tools: Sequence[Tool], *, new_id: Callable[[], str] = fresh_id) -> CallParser:
        """Begin to read an answer."""
        return Reader(_SPELLING, tools, new_id)

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice) -> str:
        """Write one pair of tags for each call."""
        allowed = confine.wanted(tools, choice)
        if not allowed:
            return ""
        calls = confine.objects(allowed, choice, "arguments")
        body = f"{confine.literal(chr(10))} call {confine.literal(chr(10))} {confine.marker(CLOSE, self._ids)}"
        if choice.mode == "auto":
            return f"{confine.announced(OPEN, self._ids, body, choice)}\n{calls}"
        tagged = f"tagged: {confine.marker(OPEN, self._ids)} {body}"
        return f"start: {confine.several('tagged', chr(10), choice)}\n{tagged}\n{calls}"

    def prompt(self, tools: Sequence[str]) -> str:
        """Write the built-in tool prompt."""
        return tool_prompt(tools, _HOW)

    def spell(self, calls: Sequence[ToolCall]) -> str:
        """Write calls."""
        return "\n".join(f"{OPEN}\n{call_object(call, 'arguments')}\n{CLOSE}" for call in calls)

    def call_id(self, call_id: str) -> str:
        """Return the id: no template looks at it."""
        return call_id
