"""Which blocks of an Anthropic request bear a mark, and the API's own rules for marks, in its own words. Pure.

Knows no turns and no token positions: a mark is found by the path of its block. Rules: marks are judged over the whole
request in the order tools, system, messages, whatever the order in the body; `null` is no mark; a mark that names no
TTL asks for 5m.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.api.anthropic_blocks import (
    Block,
    CacheControl,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.errors import BadRequest
from gateway.retention import AskedMark

MOST_MARKS: Final = 4
DEFAULT_TTL: Final = "5m"

Marks = Mapping[str, AskedMark]  # by the path of the block that the mark stands behind


def marks_of(places: Iterable[tuple[str, Block | ToolDefinition]], automatic: CacheControl | None) -> Marks:
    """Find the marks of a request's tools and blocks, given in the order tools, system, messages.

    `automatic` marks the last of them that may bear a mark. Raises BadRequest for marks that break a rule.
    """
    marks: dict[str, AskedMark] = {}
    last = None
    for path, block in places:
        mark = _mark_of(block, path)
        if mark is not None:
            marks[path] = mark
        if _may_bear(block):
            last = path
    if automatic is not None and last is not None:
        _mark_last(marks, last, _asked(automatic, "cache_control"))
    if len(marks) > MOST_MARKS:
        raise BadRequest(f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}.")
    _check_order(marks)
    return marks


def _asked(control: CacheControl, path: str) -> AskedMark:
    return AskedMark(control.ttl or DEFAULT_TTL, f"{path}.ttl")


def _mark_last(marks: dict[str, AskedMark], last: str, mark: AskedMark) -> None:
    """Set the automatic mark. One that the client set at the same place stands, if it says the same."""
    present = marks.setdefault(last, mark)
    if present.ttl != mark.ttl:
        raise BadRequest(
            f"The automatic cache_control asks for ttl='{mark.ttl}', but the last block that it applies to "
            f"already has ttl='{present.ttl}'.",
            param=mark.path,
        )


def _check_order(marks: Marks) -> None:
    short = False
    for mark in marks.values():
        if mark.ttl == "1h" and short:
            raise BadRequest(
                "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
                "Note that blocks are processed in the following order: `tools`, `system`, `messages`.",
                param=mark.path,
            )
        short = short or mark.ttl == DEFAULT_TTL


def _may_bear(block: Block | ToolDefinition) -> bool:
    match block:
        case TextBlock(text=text):
            return bool(text)
        case ToolUseBlock() | ToolResultBlock():
            return True
        case ToolDefinition(defer_loading=deferred):
            return not deferred
        case _:
            return False


def _mark_of(block: Block | ToolDefinition, path: str) -> AskedMark | None:
    inner = _inner_mark(block, path) if isinstance(block, ToolResultBlock) else None
    if block.cache_control is None:
        return inner
    if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
        kind = block.__struct_config__.tag
        raise BadRequest("Extra inputs are not permitted", param=f"{path}.{kind}.cache_control")
    if isinstance(block, ToolDefinition) and block.defer_loading:
        message = "cache_control cannot be set for tools with defer_loading=true"
        raise BadRequest(message, param=f"{path}.cache_control")
    if isinstance(block, TextBlock) and not block.text:
        raise BadRequest("cache_control cannot be set for empty text blocks", param=path)
    mark = _asked(block.cache_control, f"{path}.cache_control")
    if inner is not None and inner.ttl != mark.ttl:
        message = f"ttl='{inner.ttl}' differs from the ttl='{mark.ttl}' of the tool_result block around it."
        raise BadRequest(message, param=inner.path)
    return mark


def _inner_mark(block: ToolResultBlock, path: str) -> AskedMark | None:
    """Return the mark that a result's last inner block bears: it counts as the result's own."""
    if not isinstance(block.content, list):
        return None
    mark = None
    for place, inner in enumerate(block.content):
        at = f"{path}.content[{place}]"
        mark = _mark_of(inner, at)
        if mark is not None and place < len(block.content) - 1:
            message = "Inside a tool_result, only the last block of content may have cache_control."
            raise BadRequest(message, param=f"{at}.cache_control")
    return mark
