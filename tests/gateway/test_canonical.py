"""One spelling for equal JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canonical import MAX_DEPTH, canonical, canonical_schema, text
from gateway.errors import BadRequest

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any) -> Any:
    """The same value with its keys the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("form", [canonical, canonical_schema])
@given(value=values)
def test_equal_values_are_spelled_equal(form: Any, value: Any) -> None:
    """Key order never shows, the value stays equal, and what is canonical stays as it is."""
    once = form(value)
    assert once == value
    assert text(form(shuffled(value))) == text(once) == text(form(once))


def test_numbers_have_one_spelling() -> None:
    """A whole number is an int however it was written; truth values and fractions stay."""
    value = json.loads('[1.0, 1e2, -0.0, 0.5, true, 1e20, 1e400, "1.0"]')[:6]
    assert text(canonical(value)) == "[1, 100, 0, 0.5, true, 100000000000000000000]"
    assert text(canonical(1e21)) == "1e+21"


def test_lists_keep_their_order() -> None:
    """The order of a list is the client's, in enums and required as well."""
    schema = {"required": ["b", "a"], "enum": [2.0, 1], "anyOf": [{"type": "null"}, {"type": "array"}]}
    assert canonical_schema(schema) == schema
    assert canonical(["b", "a", {"z": 1, "a": 2}]) == ["b", "a", {"a": 2, "z": 1}]


def test_a_schema_reads_from_type_to_required() -> None:
    """Keywords come in a fixed order, all others sorted behind them, names of properties and definitions sorted."""
    schema = {
        "minProperties": 1.0,
        "required": ["type"],
        "$defs": {"z": {"enum": ["b"], "type": "string"}, "a": {}},
        "properties": {
            "type": {"maximum": 3, "description": "d", "type": "integer"},
            "description": {"items": {"title": "t", "type": "string"}, "type": "array"},
        },
        "anyOf": [{"description": "d", "type": "object"}],
        "type": "object",
    }
    assert text(canonical_schema(schema)) == (
        '{"type": "object", "properties": {'
        '"description": {"type": "array", "items": {"type": "string", "title": "t"}}, '
        '"type": {"type": "integer", "description": "d", "maximum": 3}}, "required": ["type"], '
        '"$defs": {"a": {}, "z": {"type": "string", "enum": ["b"]}}, '
        '"anyOf": [{"type": "object", "description": "d"}], "minProperties": 1}'
    )


def test_what_a_schema_holds_as_data_is_no_schema() -> None:
    """Objects under default, const, enum and examples have sorted keys, whatever these are called."""
    data = {"type": 1, "a": {"properties": 1, "enum": 2}}
    written = text(canonical_schema({"default": data, "examples": [data]}))
    assert written == f'{{"default": {text(canonical(data))}, "examples": [{text(canonical(data))}]}}'
    assert text(canonical(data)) == '{"a": {"enum": 2, "properties": 1}, "type": 1}'


def test_text_is_what_templates_write() -> None:
    """Letters stay letters, and blanks follow separators."""
    assert text({"a": ["é", None]}) == '{"a": ["é", null]}'


@pytest.mark.parametrize("form", [canonical, canonical_schema])
@pytest.mark.parametrize(("opening", "closing"), [('{"a":', "}"), ("[", "]"), ('{"items":', "}"), ('{"default":', "}")])
def test_depth_has_a_limit(form: Any, opening: str, closing: str) -> None:
    """As deep as the limit is taken; one deeper is refused in the name of its field."""
    deepest = json.loads(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH)
    assert form(deepest) == deepest
    with pytest.raises(BadRequest, match="nested") as refused:
        form([deepest], path="tools[0].parameters")
    assert (refused.value.param, refused.value.code) == ("tools[0].parameters", "too_deep")
