"""Which stretches of the past several sequences share, so that attention reads them once for all. Pure.

Sequences share a beginning exactly where they hold the same blocks; the same slots hold the same keys and values, so
queries of all of them can be one call (cascade attention: Ye et al., FlashInfer, 2024). Rule: a stretch is shared or
some sequence's own, never both, and together they are every sequence's past, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_TOKENS = 64  # a shorter stretch costs more to merge than it saves

Stretch = tuple[int, int]  # (first slot, tokens)


@dataclass(frozen=True, slots=True)
class Shared:
    """A stretch of slots that several sequences have next in their past; `members` are their places in the batch."""

    slot: int
    tokens: int
    members: tuple[int, ...]


def share(
    pasts: Sequence[Sequence[Stretch]], least: int = LEAST_TOKENS
) -> tuple[tuple[Shared, ...], tuple[tuple[Stretch, ...], ...]]:
    """Return the stretches that are shared, and for each sequence what is left to itself. O(stretches).

    Sharing goes on as long as two sequences go on together: a system prompt for all, then each conversation's own part
    for those that continue it.
    """
    left = [list(past) for past in pasts]
    shared: list[Shared] = []
    work = [[place for place, past in enumerate(left) if past]]
    while work:
        together: dict[int, list[int]] = {}
        for place in work.pop():
            if left[place]:
                together.setdefault(left[place][0][0], []).append(place)
        for slot, members in together.items():
            tokens = min(left[place][0][1] for place in members)
            if len(members) < 2 or tokens < least:  # noqa: PLR2004 - sharing takes two
                continue
            shared.append(Shared(slot, tokens, tuple(members)))
            for place in members:
                _, had = left[place].pop(0)
                if had > tokens:
                    left[place].insert(0, (slot + tokens, had - tokens))
            work.append(members)
    return tuple(shared), tuple(tuple(past) for past in left)
