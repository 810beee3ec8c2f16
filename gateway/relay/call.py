"""One request on its way to an upstream: what the client sent, and what of it must change. Pure.

Rule: the bytes that came are the bytes that go, but for the fields named here: usage is asked for where the client did
not ask, and a cache is salted with whose prompt it is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.errors import BadRequest
from gateway.relay.prefix import parts_of, root_of
from gateway.relay.splice import Fields, fields_of, spliced
from gateway.relay.upstream import Endpoint, Upstream
from gateway.routing.wanted import path_of

SALT_FIELD = "cache_salt"

_FLAG: Final = msgspec.json.Decoder(bool | None)
_WORDS: Final = msgspec.json.Decoder(str | None)
_OBJECT: Final = msgspec.json.Decoder(dict[str, object] | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that an upstream is to answer."""

    id: str
    endpoint: Endpoint
    body: bytes
    fields: Fields
    model: str
    streamed: bool
    asked_usage: bool  # whether the client wants usage in the stream
    tenant: str
    key: str | None
    headers: Mapping[str, str]
    session: str

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again after an upstream may have worked on it: it leaves nothing behind there."""
        return self.endpoint != "responses" or bytes(self.fields.get("store", b"")) == b"false"

    @property
    def counts_only(self) -> bool:
        """Whether it only asks how long its prompt is, of which nothing is computed."""
        return self.endpoint in {"input_tokens", "count_tokens"}

    @property
    def usage_hidden(self) -> bool:
        """Whether the gateway asks for usage that the client did not."""
        return self.streamed and self.endpoint in {"chat", "completions"} and not self.asked_usage

    def prefix(self, secret: bytes) -> tuple[bytes, list[int]]:
        """Return the chain over the prompt's bytes, and the bytes up to each piece's end."""
        return path_of(root_of(secret, self.tenant, self.model), parts_of(self.endpoint, self.fields))

    def body_for(self, upstream: Upstream, secret: bytes) -> bytes:
        """Return the body that this upstream gets."""
        changes: dict[str, object] = {}
        if self.usage_hidden:
            given = _object(self.fields, "stream_options")
            changes["stream_options"] = {**given, "include_usage": True}
        if upstream.salted:
            changes[SALT_FIELD] = salt(secret, self.tenant, bytes(self.fields.get(SALT_FIELD, b"")))
        elif SALT_FIELD in self.fields:
            changes[SALT_FIELD] = None
        return spliced(self.body, self.fields, changes) if changes else self.body


def call_of(
    endpoint: Endpoint, body: bytes, *, call_id: str, tenant: str, key: str | None, headers: Mapping[str, str]
) -> Call:
    """Read what must be known of a body. Raises BadRequest naming the field."""
    fields = fields_of(body)
    streamed = _plain(fields, "stream", _FLAG, "true or false") or False
    options = _object(fields, "stream_options")
    if options and not streamed and endpoint in {"chat", "completions"}:
        raise BadRequest("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    return Call(
        id=call_id,
        endpoint=endpoint,
        body=body,
        fields=fields,
        model=_plain(fields, "model", _WORDS, "a string") or "",
        streamed=streamed,
        asked_usage=_asked(options),
        tenant=tenant,
        key=key,
        headers=headers,
        session=headers.get("x-session-id", "") or _text(fields, "prompt_cache_key") or "",
    )


def salt(secret: bytes, tenant: str, given: bytes) -> str:
    """Return the salt of a tenant's cache. One that the client gave divides its own tenant's further, never another's.

    Nobody without the secret can tell a tenant from it or make another's.
    """
    framed = len(tenant.encode()).to_bytes(4, "little") + tenant.encode() + given
    return hmac.digest(secret, b"salt" + framed, hashlib.sha256).hex()[:32]


def _plain(fields: Fields, name: str, decoder: msgspec.json.Decoder[Any], fits: str) -> Any:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"Invalid '{name}': it must be {fits}.", param=name, code="invalid_type") from error


def _text(fields: Fields, name: str) -> str | None:
    raw = fields.get(name)
    return _plain(fields, name, _WORDS, "a string") if raw is not None and bytes(raw).startswith(b'"') else None


def _object(fields: Fields, name: str) -> dict[str, object]:
    return _plain(fields, name, _OBJECT, "an object") or {}


def _asked(options: Mapping[str, object]) -> bool:
    """Whether the client wants usage in its stream."""
    asked = options.get("include_usage")
    if asked is not None and not isinstance(asked, bool):
        name = "stream_options.include_usage"
        raise BadRequest(f"Invalid '{name}': it must be true or false.", param=name, code="invalid_type")
    return asked is True
