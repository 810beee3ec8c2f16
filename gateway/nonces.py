"""The listed rules that take telemetry out of system text: words that change with each request and mean nothing.

Pure. Each rule is visible, applies only where its row says, and every text that it changed names it.
Rule: text in which no rule finds anything comes back as the same object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is dropped, where, and why. `pattern` is matched only at the start of a system text."""

    name: str
    pattern: re.Pattern[str]
    where: str
    why: str


_FIELDS = r"(?:[ \t]*[\w-]+=[^;\s]*;)*"
_VARIES = r"(?:cch=[0-9a-fA-F]+|cc_version=[0-9]+\.[0-9]+\.[0-9]+\.[0-9a-fA-F]+);"

RULES: tuple[Rule, ...] = (
    Rule(
        name="claude-code-billing",
        pattern=re.compile(rf"(?:x-anthropic-billing-header:{_FIELDS}[ \t]*{_VARIES}{_FIELDS}[ \t]*(?:\r?\n)?)+"),
        where="the beginning of a system text",
        why="Claude Code puts a billing line first in `system` whose `cch` is another in each request and whose "
        "version ends in a digest of the first question, so that no prompt begins like the one before; it is "
        "addressed to Anthropic's servers, not to the model.",
    ),
)


def normalise(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a system text without telemetry, and the names of the rules that acted."""
    names = []
    for rule in RULES:
        found = rule.pattern.match(text)
        if found:
            text = text[found.end() :]
            names.append(rule.name)
    return text, tuple(names)


def normalise_with_breaks(text: str, breaks: Sequence[int]) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Return the same with the text's marks moved along; a mark inside what was dropped stands at the start."""
    kept, names = normalise(text)
    dropped = len(text) - len(kept)
    return kept, tuple(max(0, at - dropped) for at in breaks), names
