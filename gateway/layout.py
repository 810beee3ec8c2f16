"""Where each tool and each turn of a request lies among its prompt's tokens. Pure.

Rule: spans cover the prompt without gaps, in rendered order; what a template writes before a text belongs to the span
of that text, what it writes after the last one opens the answer. A text that the template changed or left out has a
span that is empty, so a place may be told of its neighbour but is never lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.ask import Tool, Turn
from gateway.canonical import canonical, canonical_schema
from gateway.canonical import text as json_text
from prefix_store.fingerprints import PartKind


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [begin, end) of a prompt, which tool or turn they are, and where in the rendered text its own begins."""

    kind: PartKind
    index: int  # among the tools, or among the turns
    begin: int
    end: int
    text: int = 0  # characters


class Borders(Protocol):
    """Where the tokens of a text lie."""

    def borders(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return how many tokens end at or before each character place."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Where one tool or turn was found, in characters."""

    end: int
    begin: int
    kind: PartKind
    index: int


def spans(text: str, encoded: Borders, turns: Sequence[Turn], tools: Sequence[Tool]) -> tuple[Span, ...]:
    """Find the spans of a rendered `text`. O(text), at the speed of searching."""
    found = sorted([*_tools(text, tools), *_turns(text, turns)], key=lambda one: one.end)
    borders = encoded.borders([*(one.end for one in found), len(text)])
    parts = []
    begin = 0
    for one, border in zip(found, borders, strict=False):
        end = max(begin, border)
        parts.append(Span(one.kind, one.index, begin, end, one.begin))
        begin = end
    return (*parts, Span("opening", 0, begin, borders[-1], len(text)))


def _tools(text: str, tools: Sequence[Tool]) -> Iterator[_Found]:
    """Find each definition: it begins with its name and ends with the last of its words."""
    cursor = 0
    for index, tool in enumerate(tools):
        schema = json_text(canonical_schema(tool.parameters))
        names = [] if schema in text else sorted(tool.parameters.get("properties") or ())  # written in another way
        words = [json_text(tool.description)[1:-1], schema, *map(json_text, names)]
        begin, cursor = _walk(text, [json_text(tool.name), *words], cursor)
        yield _Found(cursor, begin, "tool", index)


def _turns(text: str, turns: Sequence[Turn]) -> Iterator[_Found]:
    cursor = 0
    for index, turn in enumerate(turns):
        begin, cursor = _walk(text, [turn.text.strip(), *_call_words(turn)], cursor)
        yield _Found(cursor, begin, "result" if turn.role == "tool" else turn.role, index)


def _walk(text: str, words: Iterable[str], cursor: int) -> tuple[int, int]:
    """Go over a text's words from `cursor` on; return where the first that is there begins, and the last ends."""
    begin = -1
    for word in filter(None, words):
        at = text.find(word, cursor)
        if at >= 0:
            begin = at if begin < 0 else begin
            cursor = at + len(word)
    return max(begin, 0) or cursor, cursor


def _call_words(turn: Turn) -> Iterator[str]:
    for call in turn.tool_calls:
        yield call.name
        yield call.arguments if isinstance(call.arguments, str) else json_text(canonical(call.arguments))
