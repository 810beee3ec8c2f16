"""A body into what routing wants to know: a chain over its prompt's bytes, in the order in which templates write it.

Rule: only what shapes the prompt is hashed, and marks (`cache_control`) are not: clients move them from turn to turn.
What cannot be read as parts is one part; the upstream will say what is wrong with it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.relay.splice import Fields
from gateway.relay.upstream import Endpoint

_LIST: Final = msgspec.json.Decoder(list[Raw])
_PARTS: Final[dict[Endpoint, tuple[str, ...]]] = {
    "chat": ("tools", "messages"),
    "completions": ("prompt",),
    "responses": ("tools", "instructions", "input"),
    "input_tokens": ("tools", "instructions", "input"),
    "messages": ("tools", "system", "messages"),
    "count_tokens": ("tools", "system", "messages"),
}
_MARK: Final = b'"cache_control"'


def root_of(secret: bytes, tenant: str, model: str) -> bytes:
    """Return what a chain starts from: nobody without the secret can make one, and no two tenants share one."""
    framed = b"".join(len(part).to_bytes(4, "little") + part for part in (tenant.encode(), model.encode()))
    return hmac.digest(secret, framed, hashlib.sha256)


def parts_of(endpoint: Endpoint, fields: Fields) -> Iterator[bytes]:
    """Yield the parts of a body's prompt: each tool, then each message, as they were written."""
    for name in _PARTS[endpoint]:
        value = fields.get(name)
        if value is None:
            continue
        raw, head = bytes(value), name.encode()
        try:
            items = [bytes(item) for item in _LIST.decode(raw)] if raw.startswith(b"[") else [raw]
        except msgspec.MsgspecError:
            items = [raw]
        for item in items or [b""]:
            yield head + _unmarked(item)
            head = b""


def _unmarked(raw: bytes) -> bytes:
    """Return a part without its marks."""
    if _MARK not in raw:
        return raw
    try:
        return msgspec.json.encode(_without_marks(msgspec.json.decode(raw)))
    except (msgspec.MsgspecError, RecursionError):
        return raw


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_marks(one) for name, one in value.items() if name != "cache_control"}
    if isinstance(value, list):
        return [_without_marks(one) for one in value]
    return value
