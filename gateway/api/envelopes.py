"""In whose words an error is told: those of the API that was called. Pure.

Rule: the address decides; at an address that both APIs have, or none, the client's `anthropic-version` header does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.api import anthropic_errors, openai_answers
from gateway.errors import Problem

VERSION_HEADER: Final = "anthropic-version"
_ANTHROPIC: Final = "/v1/messages"
_OPENAI: Final = ("/v1/chat/", "/v1/completions", "/v1/responses")


@dataclass(frozen=True, slots=True)
class Envelope:
    """How one API writes errors, as a body and as a stream's last event, given the problem and the request's id."""

    body: Callable[[Problem, str], bytes]
    event: Callable[[Problem, str], bytes]


OPENAI: Final = Envelope(openai_answers.error_body, openai_answers.error_event)
ANTHROPIC: Final = Envelope(anthropic_errors.error_body, anthropic_errors.error_event)


def speaks_anthropic(path: str, headers: Mapping[str, str]) -> bool:
    """Whether the caller speaks Anthropic's API."""
    if path == _ANTHROPIC or path.startswith(_ANTHROPIC + "/"):
        return True
    return VERSION_HEADER in headers and not path.startswith(_OPENAI)


def envelope_of(path: str, headers: Mapping[str, str]) -> Envelope:
    """Choose the envelope for a request."""
    return ANTHROPIC if speaks_anthropic(path, headers) else OPENAI
