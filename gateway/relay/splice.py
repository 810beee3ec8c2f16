"""A client's JSON body with a field or two changed, everything else byte for byte as it came.

Rule: values are never read where they need not be, so a long prompt costs one pass over its bytes; where nothing
changes, the very bytes that came go on. A field that is new stands at the end; where one that was there changes, the
others keep their order and their values' bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.errors import BadRequest

Fields = dict[str, msgspec.Raw]

_FIELDS: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(Fields)


def fields_of(body: bytes) -> Fields:
    """Return a body's top-level fields, their values unread. Raises BadRequest for what is no JSON object."""
    try:
        return _FIELDS.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest("The body must be a JSON object.", code="invalid_body") from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from error


def spliced(body: bytes, fields: Fields, changes: Mapping[str, object]) -> bytes:
    """Return the body with some fields set, or taken out where the change is None. No change: the same bytes."""
    new: dict[str, object] = {}
    after: dict[str, object] = {}
    for name, value in changes.items():
        if name not in fields and value is not None:
            new[name] = value
        elif name in fields and not _is(fields, name, value):
            after[name] = value
    if after:
        kept = {name: after.get(name, raw) for name, raw in fields.items()}
        body = msgspec.json.encode({name: value for name, value in kept.items() if value is not None})
        fields = {name: raw for name, raw in fields.items() if kept[name] is not None}
    return _with(body, new, first=not fields) if new else body


def _with(body: bytes, new: Mapping[str, object], *, first: bool) -> bytes:
    """Return a body with fields after its last one."""
    end = body.rindex(b"}")
    return b"".join((body[:end], b"" if first else b",", msgspec.json.encode(new)[1:-1], body[end:]))


def _is(fields: Fields, name: str, value: object) -> bool:
    return value is not None and bytes(fields[name]) == msgspec.json.encode(value)
