"""A client's JSON body with a field or two changed, everything else byte for byte as it came.

Rule: values are never read where they need not be, so a long prompt costs one pass over its bytes; where nothing
changes, the very bytes that came go on.
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
    if all(name not in fields if value is None else _is(fields, name, value) for name, value in changes.items()):
        return body
    after: dict[str, object] = dict(fields)
    for name, value in changes.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    return msgspec.json.encode(after)


def _is(fields: Fields, name: str, value: object) -> bool:
    return name in fields and bytes(fields[name]) == msgspec.json.encode(value)
