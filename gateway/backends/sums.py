"""What several engines counted, as one. Pure.

Rule: numbers are added wherever they stand, in structs, by name and by place; `seq`, which only says which question an
answer is to, is the first one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeVar

import msgspec

Counted = TypeVar("Counted", bound=msgspec.Struct)


def summed(parts: Sequence[Counted]) -> Counted:
    """Add structs of one kind, of which there is at least one."""
    return reduce(_added, parts)


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, msgspec.Struct):
        fields = {name: _added(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__}
        return type(one)(**fields | ({"seq": one.seq} if "seq" in fields else {}))  # type: ignore[attr-defined]
    if isinstance(one, dict):
        return {
            name: _added(one[name], other[name]) if name in one and name in other else one.get(name, other.get(name))
            for name in dict.fromkeys([*one, *other])
        }
    if isinstance(one, tuple):
        return tuple(_added(left, right) for left, right in zip(one, other, strict=True))
    return one + other
