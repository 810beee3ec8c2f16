"""Mistral: `[TOOL_CALLS]` and a JSON list of calls; newer models write `[TOOL_CALLS]name[ARGS]{…}` for each.

Both are read, whichever the template spells; also an id behind `[CALL_ID]`, which is dropped.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping, Sequence

from gateway.ask import Tool, ToolCall, ToolChoice
from gateway.tools import CallParser, confine, fresh_id
from gateway.tools.reader import Reader, Spelling
from gateway.tools.wording import call_arguments, call_object, tool_prompt

OPEN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_SPELLING = Spelling(opening=OPEN, named=(CALL_ID, ARGS))
_HOW = """If you choose to call functions, answer with [TOOL_CALLS] and a json list of calls, and with nothing else:
[TOOL_CALLS][{"name": <function-name>, "arguments": <args-json-object>}]"""
_HOW_NAMED = """If you choose to call functions, answer with one of these for each call, and with nothing else:
[TOOL_CALLS]<function-name>[ARGS]<args-json-object>"""
_ID = re.compile(r"[0-9A-Za-z]{9}")
_ALPHABET = string.digits + string.ascii_letters


class Mistral:
    """The convention, in its newer spelling if `named`. `ids` are those of its markers that are special tokens."""

    name = "mistral"
    markers = (OPEN, CALL_ID, ARGS)

    def __init__(self, ids: Mapping[str, int] | None = None, *, named: bool = False) -> None:
        """Take the token ids of markers, and which spelling the model knows."""
        self._ids = dict(ids or {})
        self._named = named

    def parser(self, tools: Sequence[Tool], *, new_id: Callable[[], str] = fresh_id) -> CallParser:
        """Begin to read an answer."""
        return Reader(_SPELLING, tools, new_id)

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice) -> str:
        """Write one list of calls, or one announcement for each."""
        allowed = confine.wanted(tools, choice)
        if not allowed:
            return ""
        body = "named" if self._named else f"{confine.literal('[')} listed {confine.literal(']')}"
        calls = self._calls(allowed, choice)
        if choice.mode == "auto":
            return f"{confine.announced(OPEN, self._ids, body, choice)}\n{calls}"
        times = "+" if self._named and choice.parallel else ""
        return f"start: tagged{times}\ntagged: {confine.marker(OPEN, self._ids)} {body}\n{calls}"

    def _calls(self, tools: Sequence[Tool], choice: ToolChoice) -> str:
        if not self._named:
            listed = confine.several("call", ", ", choice)
            return f"listed: {listed}\n{confine.objects(tools, choice, 'arguments')}"
        rules = ["named: " + " | ".join(f"named_{index}" for index in range(len(tools)))]
        args = confine.marker(ARGS, self._ids)
        for index, tool in enumerate(tools):
            rules.append(f"named_{index}: {confine.literal(tool.name)} {args} {confine.arguments(tool, choice)}")
        return "\n".join(rules)

    def prompt(self, tools: Sequence[str]) -> str:
        """Write the built-in tool prompt."""
        return tool_prompt(tools, _HOW_NAMED if self._named else _HOW)

    def spell(self, calls: Sequence[ToolCall]) -> str:
        """Write calls."""
        if not calls:
            return ""
        if self._named:
            return "".join(f"{OPEN}{call.name}{ARGS}{call_arguments(call)}" for call in calls)
        return f"{OPEN}[{', '.join(call_object(call, 'arguments') for call in calls)}]"

    def call_id(self, call_id: str) -> str:
        """Return nine letters and digits, as Mistral's templates demand: the id itself, or a digest of it."""
        if _ID.fullmatch(call_id):
            return call_id
        number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest())
        digits = []
        for _ in range(9):
            number, digit = divmod(number, len(_ALPHABET))
            digits.append(_ALPHABET[digit])
        return "".join(digits)
