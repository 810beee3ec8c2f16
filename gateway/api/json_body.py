"""A request body into typed values, with the path of what is wrong. Pure.

Rule: whatever a body holds, the outcome is a value or a `BadRequest`; NaN, Infinity and half a surrogate pair are not
JSON text, and nesting too deep to read is refused like any other mistake.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from gateway.errors import BadRequest

T = TypeVar("T")

_ENDLESS: Final = 2**32  # bounds from here on are those of a machine's numbers, and nobody's business
_PLACE: Final = re.compile(r" - at `(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `(?P<field>[^`]*)`")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Read `body`. Raises BadRequest; `param` is the path of the wrong field, None where the text is no JSON at all."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        path = _half_surrogate(body)
        if path is not None:
            message = f"Invalid '{path}': half of a surrogate pair is not a character."
            raise BadRequest(message, param=path, code="invalid_unicode") from error
        raise BadRequest(f"The body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from error


def _misfit(message: str, shape: Any) -> BadRequest:
    place = _PLACE.search(message)
    path = place["path"].removeprefix("$").removeprefix(".") if place else ""
    text = message[: place.start()] if place else message
    missing = _MISSING.search(text)
    if missing is not None:
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return BadRequest(f"Missing required field '{path}'.", param=path, code="missing_field")
    if not path:
        return BadRequest(f"The body must be a JSON object. {text}.", code="invalid_type")
    return BadRequest(f"Invalid '{path}': {text}{_range(shape, path)}.", param=path, code="invalid_value")


def _range(shape: Any, path: str) -> str:
    """Say from where to where a number at the top of a body may go, where it has bounds on both sides."""
    try:
        hint = get_type_hints(shape, include_extras=True)[path]
    except (KeyError, TypeError, NameError):  # deeper in the body, or of a body that is read piece by piece
        return ""
    for part in (hint, *get_args(hint)):
        for meta in getattr(part, "__metadata__", ()):
            least = meta.gt if meta.ge is None else meta.ge
            if least is not None and meta.le is not None and meta.le < _ENDLESS:
                return f" ({'from' if meta.gt is None else 'above'} {least:g} to {meta.le:g})"
    return ""


def _half_surrogate(body: bytes) -> str | None:
    """Path of the first string with half a surrogate pair. The strict parser stops there but cannot say where."""
    if rb"\u" not in body:
        return None
    try:
        return next(_halves(json.loads(body), ""), None)
    except (ValueError, RecursionError):
        return None


def _halves(value: Any, path: str) -> Any:
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _halves(key, path or "body")
            yield from _halves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _halves(item, f"{path}[{place}]")
