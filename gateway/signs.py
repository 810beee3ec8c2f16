"""Characters that no text of a request contains: they mark places in a text while a template renders it. Pure.

Rule: what is marked is the client's; the marks themselves never reach the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from gateway.errors import BadRequest

_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_PRIVATE = re.compile("[\U000f0000-\U000ffffd]")


def unused_characters(texts: Iterable[str], count: int) -> tuple[str, ...]:
    """Choose `count` characters that none of the `texts` contains. Raises BadRequest when a client left too few."""
    used = {found for text in texts if not text.isascii() for found in _PRIVATE.findall(text)}
    free = tuple(islice((chr(point) for point in _PRIVATE_USE if chr(point) not in used), count))
    if len(free) < count:
        raise BadRequest("The messages use every private-use character there is.", param="messages")
    return free


def sign_object(value: dict[str, object], sign: str) -> dict[str, object]:
    """Put `sign` after an object: as a last key, which `signs_behind` moves out once the object is JSON text."""
    return {**value, sign: 0}


def signs_behind(json_text: str, signs: str) -> str:
    """Move each sign that `sign_object` put into an object to behind it."""
    if not signs:
        return json_text
    return re.sub(rf'(?:,\s*)?"([{re.escape(signs)}])":\s*0(\s*\}})', r"\2\1", json_text)


def places(signed: str, clean: str, signs: Sequence[str]) -> list[int]:
    """Return where in `clean` each sign stands, in characters.

    A sign that the template did not write stands where the one before it does, and none stands beyond where the two
    renderings begin to differ: there the template treats the marked text otherwise.
    """
    last: dict[str, int] = {}
    bare: list[str] = []
    length, begin = 0, 0
    for match in re.finditer(f"[{re.escape(''.join(signs))}]", signed):
        piece = signed[begin : match.start()]
        bare.append(piece)
        length += len(piece)
        begin = match.end()
        last[match.group()] = length
    bare.append(signed[begin:])
    same = len(os.path.commonprefix([clean, "".join(bare)]))  # noqa: RUF071 - characters are meant
    found, before = [], 0
    for sign in signs:
        before = last.get(sign, before)
        found.append(min(before, same))
    return found
