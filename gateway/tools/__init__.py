"""How models write tool calls: one `ToolFormat` per convention, behind one protocol.

Pure: no HTTP, no engine. A format says how its calls are spelled, reads them out of a stream, and writes the grammar
that forces them. Rule: what a parser cannot read as a call stays text; nothing the model wrote is lost.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.ask import Tool, ToolCall, ToolChoice
from gateway.events import CallArguments, CallBegan, Text

_BASE62 = string.digits + string.ascii_letters
_ID_LENGTH = 24


def fresh_id() -> str:
    """Return an id that no other call has."""
    return "".join(secrets.choice(_BASE62) for _ in range(_ID_LENGTH))


class CallParser(Protocol):
    """Reads one answer as it comes, in pieces cut anywhere."""

    def feed(self, text: str) -> list[Text | CallBegan | CallArguments]:
        """Take the next piece and return what is certain now."""

    def finish(self) -> list[Text | CallBegan | CallArguments]:
        """Return what was held back: the answer is over."""


class ToolFormat(Protocol):
    """One convention."""

    @property
    def name(self) -> str:
        """Its name in settings and documents."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Special tokens that are part of its spelling, so that the answer's text must show them."""

    def parser(self, tools: Sequence[Tool], *, new_id: Callable[[], str] = fresh_id) -> CallParser:
        """Begin to read an answer in which `tools` may be called; each call found gets an id from `new_id`."""

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice) -> str:
        """Write the llguidance grammar (Lark) of an answer that obeys `choice`; empty where nothing is confined."""

    def prompt(self, tools: Sequence[str]) -> str:
        """Write the built-in tool prompt around definitions that are JSON already, for templates that know none."""

    def spell(self, calls: Sequence[ToolCall]) -> str:
        """Write calls as this convention spells them, for templates that know none."""

    def call_id(self, call_id: str) -> str:
        """Return an id that the model's template accepts in the place of a client's; the same for equal ids."""
