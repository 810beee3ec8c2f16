"""The built-in tool prompt, for templates that know no tools: Qwen's wording, the way to call as each convention's."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.ask import ToolCall
from gateway.canonical import text

_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

{how}"""


def tool_prompt(tools: Sequence[str], how: str) -> str:
    """Tell what tools there are, one JSON definition a line exactly as given, and how to call them."""
    return _PROMPT.replace("{how}", how).replace("{tools}", "\n".join(tools))


def call_object(call: ToolCall, key: str) -> str:
    """Write a call as an object of a name and, under `key`, arguments."""
    return f'{{"name": {text(call.name)}, "{key}": {call_arguments(call)}}}'


def call_arguments(call: ToolCall) -> str:
    """Write a call's arguments as they are ordered; a JSON string where the client's text is not JSON."""
    return text(call.arguments)
