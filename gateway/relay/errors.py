"""What goes wrong with an upstream, in words that every API can tell. Pure.

UpstreamError
├── UpstreamTold            it refused, in its own words: status, message, field and code stay what they were
├── UpstreamFailed          it failed: a status of 5xx, no connection, garbage, a stream that was cut
├── UpstreamSlow            it did not answer in time
├── NoUpstream              none that serves this is well now
└── NotSpoken               none that serves this model has this endpoint
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import GatewayError

MOST_WORDS = 2_000


class UpstreamError(GatewayError):
    """Root of what goes wrong behind the gateway."""


class UpstreamTold(UpstreamError):
    """An upstream's own error."""

    def __init__(self, *, status: int, message: str, kind: str, code: str | None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.code, self.param = status, kind, code, param
        self.retry_after_s: float | None = None


class UpstreamFailed(UpstreamError):
    """An upstream failed; the message says how, never what it sent."""


class UpstreamSlow(UpstreamError):
    """An upstream did not answer in time."""


class NoUpstream(UpstreamError):
    """Nobody can serve this now."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotSpoken(UpstreamError):
    """The model is served, but not by this endpoint."""


def told_of(status: int, body: bytes) -> UpstreamTold:
    """Read an error in any of the shapes that servers write. What cannot be read is told by its status."""
    try:
        read: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        read = None
    said = read.get("error", read) if isinstance(read, dict) else None
    if isinstance(said, str):
        said = {"message": said}
    if not isinstance(said, dict):
        said = {}
    message = _text(said.get("message")) or _text(said.get("detail")) or f"The upstream answered with status {status}."
    code = said.get("code")
    return UpstreamTold(
        status=_status(status, said),
        message=message[:MOST_WORDS],
        kind=_text(said.get("type")) or "",
        code=_text(code),
        param=_text(said.get("param")),
    )


def _status(status: int, said: dict[str, Any]) -> int:
    """Return the status to tell: an error event inside a 200 may name one, else the upstream failed."""
    if status >= 400:  # noqa: PLR2004 - the border between answers and errors
        return status
    code = said.get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 502  # noqa: PLR2004 - HTTP errors


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
