"""Llama 3.1 and later: the whole answer is a JSON object of `name` and `parameters`, perhaps behind `<|python_tag|>`.

Several calls are separated by `;` or line breaks. Objects with a `type`, or with
the call under `function`, are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.ask import Tool, ToolCall, ToolChoice
from gateway.tools import CallParser, confine, fresh_id
from gateway.tools.reader import Reader, Spelling
from gateway.tools.wording import call_object, tool_prompt

TAG = "<|python_tag|>"
_SPELLING = Spelling(opening=TAG, bare=True, lists=False, between=";")
_START = r"[ \t\r\n]*\{"  # of an answer that is a call
_HOW = """If you choose to call a function, answer with nothing but a json object of this form; \
separate several with "; ":
{"name": <function-name>, "parameters": <args-json-object>}"""


class Llama3:
    """The convention. `ids` holds the id of `<|python_tag|>` where the tokenizer in use has it."""

    name = "llama3"
    markers = (TAG,)

    def __init__(self, ids: Mapping[str, int] | None = None) -> None:
        """Take the token ids of markers."""
        self._ids = dict(ids or {})

    def parser(self, tools: Sequence[Tool], *, new_id: Callable[[], str] = fresh_id) -> CallParser:
        """Begin to read an answer."""
        return Reader(_SPELLING, tools, new_id)

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice) -> str:
        """Write calls without the tag where they must come; free text does not begin as a call does."""
        allowed = confine.wanted(tools, choice)
        if not allowed:
            return ""
        calls = f"calls: {confine.several('call', '; ', choice)}\n{confine.objects(allowed, choice, 'parameters')}"
        if choice.mode == "required":
            return f"start: calls\n{calls}"
        plain = " & ".join((confine.beginning(_START), confine.without(TAG)))
        if TAG in self._ids:
            return f"start: PLAIN | calls | PLAIN {confine.marker(TAG, self._ids)} calls\nPLAIN: {plain}\n{calls}"
        return f"start: PLAIN | calls\nPLAIN: {plain}\n{calls}"

    def prompt(self, tools: Sequence[str]) -> str:
        """Write the built-in tool prompt."""
        return tool_prompt(tools, _HOW)

    def spell(self, calls: Sequence[ToolCall]) -> str:
        """Write calls."""
        return "; ".join(call_object(call, "parameters") for call in calls)

    def call_id(self, call_id: str) -> str:
        """Return the id: no template looks at it."""
        return call_id
