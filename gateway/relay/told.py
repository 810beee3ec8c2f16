"""An upstream's own error, in any of the shapes that servers write, into one. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import UpstreamTold

MOST_WORDS = 2_000


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
