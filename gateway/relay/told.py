"""An upstream's own error, in any of the shapes that servers write, into one. Pure.

Rule: a page that some proxy wrote says nothing to a client; its status does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.errors import UpstreamTold

MOST_WORDS: Final = 2_000
LEAST, MOST = 400, 599  # statuses that are errors
NAMED: Final[Mapping[str, int]] = {  # errors inside an answer that has begun have no status but a name
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def told_of(status: int, body: bytes) -> UpstreamTold:
    """Read an error in any of the shapes that servers write. What cannot be read is told by its status."""
    try:
        read: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        read = _plain(body)
    said = read.get("error", read) if isinstance(read, dict) else read
    if isinstance(said, str):
        said = {"message": said}
    if not isinstance(said, dict):
        said = {}
    kind = _text(said.get("type")) or ""
    status = _status(status, said.get("code"), kind)
    message = (
        _text(said.get("message")) or _detail(said.get("detail")) or f"The upstream answered with status {status}."
    )
    return UpstreamTold(
        status=status,
        message=message[:MOST_WORDS],
        kind="" if kind == "error" else kind,
        code=_text(said.get("code")),
        param=_text(said.get("param")),
    )


def _status(status: int, code: object, kind: str) -> int:
    """Return the status to tell: an error event inside a 200 may name one, else the upstream failed."""
    if LEAST <= status <= MOST:
        return status
    if isinstance(code, int) and LEAST <= code <= MOST:
        return code
    return NAMED.get(kind, 502)


def _detail(value: object) -> str | None:
    """Read what FastAPI writes: a text, or a list of fields and what is wrong with each."""
    if not isinstance(value, list):
        return _text(value)
    wrong = []
    for one in value:
        if not isinstance(one, dict) or not _text(one.get("msg")):
            continue
        place = one.get("loc")
        path = ".".join(str(part) for part in place if part != "body") if isinstance(place, list) else ""
        wrong.append(f"{path}: {one['msg']}" if path else one["msg"])
    return "; ".join(wrong) or None


def _plain(body: bytes) -> str | None:
    """Return a body that is words; a page or noise is none."""
    try:
        text = body.decode().strip()
    except UnicodeDecodeError:
        return None
    is_words = not text.startswith(("<", "{", "[")) and all(one.isprintable() or one in "\r\n\t" for one in text)
    return text or None if is_words else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
