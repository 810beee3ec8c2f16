"""What Anthropic's messages, system prompt and tools are made of, as wire structs. Pure.

Knows no conversation and no marks' rules. Rule: what this model cannot read (images, documents, server tools) is
refused by the path of its block, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from gateway.errors import BadRequest

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:-]{1,128}\Z")]

MAX_DEPTH: Final = 100  # of a schema or of a call's input

_BLOCK_TYPE: Final = re.compile(r"(?P<block>.*\bcontent\[\d+\]|system\[\d+\])\.type")
_UNKNOWN: Final = re.compile(r"Invalid value '(?P<kind>.*)'\.$", re.DOTALL)

CALL_PREFIX: Final = "toolu_"


class CacheControl(msgspec.Struct, frozen=True, kw_only=True):
    """A mark at the end of a block."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: CacheControl | None = None


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: ToolName
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResultBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_result"):
    """What a call gave back."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """What the assistant thought. It bears no mark of its own."""

    thinking: str
    cache_control: Any = None


class RedactedThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="redacted_thinking"):
    """Thinking that only the provider that wrote it can read: for the model here it holds no text."""

    cache_control: Any = None


Block = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. A string is the same as one text block."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Only custom ones, which the client itself runs, are served here."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    cache_control: CacheControl | None = None


def blocks_of(content: str | list[Block] | list[TextBlock] | None, path: str) -> Iterator[tuple[str, Block]]:
    """Yield the blocks of a content with their paths; a string is one text block at the content's own path."""
    if content is None:
        return
    if isinstance(content, str):
        yield path, TextBlock(text=content)
        return
    for place, block in enumerate(content):
        yield f"{path}[{place}]", block


def naming_the_block(error: BadRequest) -> BadRequest:
    """Return the refusal of a body; where a block's type is at fault, one that says so by the block's path."""
    place = _BLOCK_TYPE.fullmatch(error.param or "")
    unknown = _UNKNOWN.search(str(error))
    if place is None or unknown is None:
        return error
    message = f"Blocks of type '{unknown['kind']}' are not supported here: this model reads text only."
    return BadRequest(message, param=place["block"], code="unsupported_value")


def check_depth(value: object, path: str) -> None:
    """Refuse JSON nested deeper than anything that means it. Raises BadRequest."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for outer in level for item in _items(outer)]
        if not level:
            return
    raise BadRequest(f"More than {MAX_DEPTH} levels of nesting are not supported.", param=path)


def _items(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
