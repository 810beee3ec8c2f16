"""Characters that no text of a request contains: they mark places in a text while a template renders it. Pure.

Rule: what is marked is the client's; the marks themselves never reach the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from gateway.errors import BadRequest

_RARE = range(0x20000, 0x2A6D7)  # CJK extension B: no blanks, no case, and Python's repr() writes them as they are
_RARE_ONES = re.compile("[\U00020000-\U0002a6d6]")


class Signed(dict[str, Any]):
    """An object with a sign behind it, which only a template that writes the object whole writes."""

    def __init__(self, value: Mapping[str, Any], sign: str) -> None:
        """Copy `value`."""
        super().__init__(value)
        self._sign = sign

    def __repr__(self) -> str:
        return super().__repr__() + self._sign

    def with_key(self) -> dict[str, Any]:
        """Return the object with the sign as its last key, which `signs_behind` moves out of its JSON text."""
        return {**self, self._sign: 0}


def unused_characters(texts: Iterable[str], count: int) -> tuple[str, ...]:
    """Choose `count` characters that none of the `texts` contains. Raises BadRequest when a client left too few."""
    used = {found for text in texts if not text.isascii() for found in _RARE_ONES.findall(text)}
    free = tuple(islice((chr(point) for point in _RARE if chr(point) not in used), count))
    if len(free) < count:
        raise BadRequest("The messages use every rare character there is, so none is left to us.", param="messages")
    return free


def with_keys(value: Any) -> Any:
    """Return a JSON value in which each signed object holds its sign as a key."""
    if isinstance(value, dict):
        whole = value.with_key() if isinstance(value, Signed) else value
        return {key: with_keys(item) for key, item in whole.items()}
    return [with_keys(item) for item in value] if isinstance(value, list | tuple) else value


def signs_behind(json_text: str, signs: str) -> str:
    """Move each sign that `with_keys` put into an object to behind it."""
    key = rf'"([{re.escape(signs)}])":\s*0'
    alone = re.sub(rf"\{{\s*{key}\s*\}}", r"{}\1", json_text)
    return re.sub(rf"(?:,\s*)?{key}(\s*\}})", r"\2\1", alone)


def places(signed: str, clean: str, signs: str) -> list[int | None] | None:
    """Return where in `clean` each sign stands, None for one that was not written.

    None for all of them where the renderings differ in more than the signs: the template treats marked text otherwise.
    """
    pieces = re.split(f"([{re.escape(signs)}])", signed)
    if "".join(pieces[::2]) != clean:
        return None
    last: dict[str, int] = {}
    length = 0
    for piece, sign in zip(pieces[::2], pieces[1::2], strict=False):
        length += len(piece)
        last[sign] = length
    return [last.get(sign) for sign in signs]


def place_alone(signed: str, clean: str, sign: str) -> int | None:
    """Return where in `clean` the only sign stands, None if it was not written.

    Not beyond where the renderings begin to differ, and not within blanks that come behind the sign: a template may
    strip them from the end of a text, which the sign keeps it from.
    """
    before, found, after = signed.rpartition(sign)
    if not found:
        return None
    before = before.replace(sign, "")
    agreed = agreement(clean, before)
    begin = len(clean) - len(after)
    return begin if clean.endswith(after) and clean[begin:agreed].isspace() else agreed


def agreement(one: str, other: str) -> int:
    """Return how many leading characters are the same."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071 - characters are meant
