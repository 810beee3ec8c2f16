"""Signs in texts and objects, and where they come out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ask import Ask, Turn
from gateway.errors import BadRequest
from gateway.signs import Signed, place_alone, places, signs_behind, unused_characters, with_keys
from tests.gateway.templates import SMOL

RARE = [chr(point) for point in range(0x20000, 0x2A6D7)]


def test_every_rare_character_used_up_is_refused() -> None:
    """A client that leaves no character to mark with is told so."""
    with pytest.raises(BadRequest, match="rare character") as refused:
        SMOL.renderer().made(Ask(id="a", model="m", turns=(Turn(role="user", text="".join(RARE)),)))
    assert refused.value.param == "messages"
    assert unused_characters(["".join(RARE[:-2])], 2) == tuple(RARE[-2:])


SIGN = RARE[0]


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": {}}, {"a": [{"b": "c"}]}, {"z": "}"}])
def test_a_signed_object_is_written_as_it_is_with_the_sign_behind(value: dict[str, Any], indent: int | None) -> None:
    """JSON text of a signed object is the object's own, then the sign; Python's spelling too."""
    signed = {"x": Signed(value, SIGN), "y": 1}
    plain = json.dumps(value, indent=indent)
    found = signs_behind(json.dumps(with_keys(signed), indent=indent, ensure_ascii=False), SIGN)
    before, after = found.split(SIGN)
    assert before + after == json.dumps({"x": value, "y": 1}, indent=indent)
    assert json.loads(before.partition(": ")[2]) == value == json.loads(plain)
    assert repr(signed) == f"{{'x': {value!r}{SIGN}, 'y': 1}}"


@given(texts=st.lists(st.text("ab \n"), min_size=1, max_size=4))
def test_signs_that_change_nothing_are_found_where_they_stand(texts: list[str]) -> None:
    """Each sign stands behind the text before it."""
    signs = "".join(RARE[: len(texts)])
    signed = "".join(piece + sign for piece, sign in zip(texts, signs, strict=True)) + "."
    found = [len("".join(texts[: count + 1])) for count in range(len(texts))]
    assert places(signed, "".join(texts) + ".", signs) == found
    assert places(signed, "".join(texts), signs) is None
    assert place_alone("".join(texts[:1]) + SIGN + "x", texts[0] + "x", SIGN) == len(texts[0])


@given(words=st.text("ab \n"), rest=st.text("ab \n"))
def test_a_sign_keeps_blanks_that_are_stripped_without_it(words: str, rest: str) -> None:
    """Where a template strips a text, a mark at its end stands behind what is left, not in what follows."""
    assert place_alone(f"<{words}{SIGN}>{rest}", f"<{words.rstrip()}>{rest}", SIGN) == 1 + len(words.rstrip())


def test_a_sign_that_is_not_written_has_no_place() -> None:
    """Nothing is made up."""
    assert place_alone("abc", "abc", SIGN) is None
    assert places("abc", "abc", SIGN) == [None]
