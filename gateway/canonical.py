"""One spelling for equal JSON: key order and the way a number is written never change a prompt. List order does.

Pure. Values in, equal values out; nothing is checked but depth. Knows no API: the caller says which value is a schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import BadRequest

MAX_DEPTH = 64
KEYWORDS = (
    "$schema",
    "$id",
    "$ref",
    "type",
    "title",
    "description",
    "format",
    "const",
    "enum",
    "default",
    "items",
    "properties",
    "required",
    "additionalProperties",
)
_RANK = {keyword: rank for rank, keyword in enumerate(KEYWORDS)}
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})  # name → schema
_DATA = frozenset({"const", "default", "enum", "examples", "example", "required", "dependentRequired"})
_WHOLE_BELOW = 1e21  # where other writers of JSON, too, stop to spell a whole number with all its digits


def canonical(value: Any, *, path: str = "") -> Any:
    """Return parsed JSON with its objects' keys sorted and its whole numbers as ints. `path` is named in refusals."""
    return _canonical(value, path, 0)


def canonical_schema(schema: Any, *, path: str = "") -> Any:
    """Return a JSON schema likewise, its keywords in the order in which one reads them, then all others sorted."""
    return _schema(schema, path, 0)


def text(value: Any) -> str:
    """Write JSON as chat templates do."""
    return json.dumps(value, ensure_ascii=False)


def _canonical(value: Any, path: str, depth: int) -> Any:
    _check(depth, path)
    if isinstance(value, Mapping):
        return {key: _canonical(value[key], path, depth + 1) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_canonical(item, path, depth + 1) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE_BELOW:
        return int(value)
    return value


def _schema(value: Any, path: str, depth: int) -> Any:
    """Order a schema, or a list of schemas."""
    _check(depth, path)
    if isinstance(value, Mapping):
        ordered = sorted(value, key=lambda key: (_RANK.get(key, len(_RANK)), key))
        return {key: _keyword(key, value[key], path, depth + 1) for key in ordered}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_schema(item, path, depth + 1) for item in value]
    return _canonical(value, path, depth)


def _keyword(key: str, value: Any, path: str, depth: int) -> Any:
    _check(depth, path)
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _schema(value[name], path, depth + 1) for name in sorted(value)}
    return _canonical(value, path, depth) if key in _DATA else _schema(value, path, depth)


def _check(depth: int, path: str) -> None:
    if depth > MAX_DEPTH:
        message = f"JSON that is nested more than {MAX_DEPTH} deep is not supported."
        raise BadRequest(message, param=path or None, code="too_deep")
