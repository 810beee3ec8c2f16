"""Errors in Anthropic's envelope. Pure.

Rule: the path of the field stands first, with dots (`messages.0.content.1: …`), then what is wrong with it; the type is
the API's word for the status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.errors import Problem

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_INDEX: Final = re.compile(r"\[(\d+)\]")
_json = msgspec.json.Encoder().encode


def dotted(path: str) -> str:
    """Write `messages[0].content[1]` as this API does: `messages.0.content.1`."""
    return _INDEX.sub(r".\1", path)


def type_of(problem: Problem) -> str:
    """Name a problem as this API does. Too long a wait in the queue is an overload, which clients retry later."""
    if problem.code == "queue_timeout":
        return "overloaded_error"
    server = problem.status >= 500  # noqa: PLR2004 - the border between theirs and ours
    return TYPES.get(problem.status, "api_error" if server else "invalid_request_error")


def error_body(problem: Problem, request_id: str) -> bytes:
    """Shape an error."""
    error = {"type": type_of(problem), "message": _message(problem)}
    return _json({"type": "error", "error": error, "request_id": request_id})


def error_event(problem: Problem, request_id: str) -> bytes:
    """Shape the same as an event, for a stream that has begun."""
    return b"event: error\ndata: " + error_body(problem, request_id) + b"\n\n"


def _message(problem: Problem) -> str:
    """Put the path first, once. Clients know a prompt that is too long by the words that the API uses."""
    path, text = problem.param, problem.message
    if problem.code == "context_length_exceeded":
        return f"prompt is too long: {text}"
    if not path:
        return text
    if text == f"Missing required field '{path}'.":
        text = "Field required"
    return f"{dotted(path)}: {text.removeprefix(f'Invalid {path!r}: ')}"
