"""Where each tool and each turn of a request lies among its prompt's tokens. Pure.

Rule: spans cover the prompt without gaps, in rendered order; what a template writes before a text belongs to the span
of that text, what it writes after the last one opens the answer. A text that the template changed or left out has a
span that is empty, so a place may be told of its neighbour but is never lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.ask import Tool, Turn
from prefix_store.fingerprints import PartKind


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [begin, end) of a prompt: which tool or turn they are."""

    kind: PartKind
    index: int  # among the tools, or among the turns
    begin: int
    end: int


class Borders(Protocol):
    """Where the tokens of a text lie."""

    def borders(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return how many tokens end at or before each character place."""


def spans(text: str, encoded: Borders, turns: Sequence[Turn], tools: Sequence[Tool]) -> tuple[Span, ...]:
    """Find the spans of a rendered `text`. O(text), at the speed of searching."""
    ends = sorted([*_tool_ends(text, tools), *_turn_ends(text, turns)], key=lambda found: found[0])
    borders = encoded.borders([*(end for end, _, _ in ends), len(text)])
    found = []
    begin = 0
    for (_, kind, index), border in zip(ends, borders, strict=False):
        end = max(begin, border)
        found.append(Span(kind, index, begin, end))
        begin = end
    return (*found, Span("opening", 0, begin, borders[-1]))


def _tool_ends(text: str, tools: Sequence[Tool]) -> list[tuple[int, PartKind, int]]:
    """Return where each definition ends: at the next one's name, or where the last one's own words end."""
    ends: list[tuple[int, PartKind, int]] = []
    cursor = 0
    for index, tool in enumerate(tools):
        for needle in (json.dumps(tool.name), tool.name, *_last_words(tool)):
            at = text.find(needle, cursor)
            cursor = cursor if at < 0 else at + len(needle)
        ends.append((cursor, "tool", index))
    return ends


def _last_words(tool: Tool) -> list[str]:
    """Return a definition's strings that come late in it, for finding its end."""
    names = sorted(tool.parameters.get("properties", {})) if isinstance(tool.parameters, dict) else []
    return [json.dumps(tool.description)[1:-1], *(json.dumps(name) for name in names)]


def _turn_ends(text: str, turns: Sequence[Turn]) -> list[tuple[int, PartKind, int]]:
    ends: list[tuple[int, PartKind, int]] = []
    cursor = 0
    for index, turn in enumerate(turns):
        kind: PartKind = "result" if turn.role == "tool" else turn.role
        for needle in (
            turn.text.strip(),
            *(word for call in turn.tool_calls for word in _words(call.name, call.arguments)),
        ):
            at = text.find(needle, cursor)
            cursor = cursor if at < 0 else at + len(needle)
        ends.append((cursor, kind, index))
    return ends


def _call_words(turn: Turn) -> Iterator[str]:
    for call in turn.tool_calls:
        yield call.name
        yield call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
