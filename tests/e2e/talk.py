"""What the tests say to the server: long beginnings, tools in each API's spelling, and how to read what came back."""

from __future__ import annotations

from typing import Any

BLOCK = 16  # tokens that are kept together
DEPTHS = {"type": "integer", "minimum": 0, "maximum": 9}
LOOK = {
    "type": "object",
    "properties": {"side": {"enum": ["north", "south"]}, "depth": DEPTHS},
    "required": ["side", "depth"],
    "additionalProperties": False,
}
WAIT = {"type": "object", "properties": {"hours": DEPTHS}, "required": ["hours"], "additionalProperties": False}
FUNCTIONS: tuple[tuple[str, Any], ...] = (("look", LOOK), ("wait", WAIT))

CHAT_TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": form}} for name, form in FUNCTIONS]
RESPONSES_TOOLS: Any = [{"type": "function", "name": name, "parameters": form} for name, form in FUNCTIONS]
ANTHROPIC_TOOLS: Any = [{"name": name, "input_schema": form} for name, form in FUNCTIONS]


def handbook(name: str, times: int = 8) -> str:
    """Write a long beginning that no other name shares."""
    return f"Section {name}. The warehouse keeps the cold things cold and the warm things warm. " * times


def messages(text: str, question: str = "Why?") -> Any:
    """A long beginning and a short question."""
    return [{"role": "system", "content": text}, {"role": "user", "content": question}]


def cached(answer: Any) -> int:
    """Cached tokens of an answer's or a chunk's usage."""
    tokens: int = answer.usage.prompt_tokens_details.cached_tokens
    return tokens


def calls_of(message: Any) -> list[Any]:
    """The tool calls of a chat message."""
    return list(message.tool_calls or ())


def extension(answer: Any) -> Any:
    """The `keepwarm` object of an answer."""
    return answer.model_extra["keepwarm"]


def whole_blocks(tokens: int) -> int:
    """Tokens of a prompt that are kept: those of its whole blocks."""
    return tokens - tokens % BLOCK
