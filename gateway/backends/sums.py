"""What several engines counted, as one. Pure.

Rule: numbers are added wherever they stand, in structs, by name and by place; `seq`, which only says which question an
answer is to, is the first one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final, TypeVar

import msgspec

from engine.operator_messages import EngineStats

Counted = TypeVar("Counted", bound=msgspec.Struct)

MOMENTARY: Final = (  # of a snapshot, what is so at the moment only
    *("waiting", "running", "blocks_free", "blocks_cached", "blocks_held", "nodes", "blocks_promised", "tombstones"),
    *("tenant_blocks", "entries_by", "tokens_by"),
)


def ended(stats: EngineStats) -> EngineStats:
    """Return what an engine has counted, without what it held: what remains of it when it is gone."""
    nothing = EngineStats()
    return msgspec.structs.replace(stats, **{name: getattr(nothing, name) for name in MOMENTARY})


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
