"""What `previous_response_id`, an item reference and GET need of earlier responses, in this process's memory.

Bounded by count, bytes and age; the least recently used goes first. Rule: a response belongs to one tenant and to any
other does not exist; time is an argument. Knows no HTTP; what a response weighs is for the caller to say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.api.responses_items import Item
from gateway.errors import NotStored

MOST_RESPONSES: Final = 10_000
MOST_BYTES: Final = 256 << 20
LONGEST_S: Final = 30 * 86_400.0  # as long as OpenAI keeps them


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One response: its whole conversation without instructions, and the answer as GET returns it."""

    items: tuple[Item, ...]
    outputs: tuple[Item, ...] = ()  # the last of `items`: what an item reference may name
    answer: bytes
    size: int  # bytes, those of the conversation before it included


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What a request goes on from: the items before its own, and the items that its references name."""

    items: tuple[Item, ...] = ()
    referenced: Mapping[str, Item] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    stored: Stored
    at: float


class ResponseStore:
    """Responses by tenant and id. Each counts with all that it holds, so shared history is counted more than once."""

    def __init__(
        self, *, responses: int = MOST_RESPONSES, size: int = MOST_BYTES, longest_s: float = LONGEST_S
    ) -> None:
        """Set how many, how many bytes and for how long."""
        self._most, self._most_size, self._longest_s = responses, size, longest_s
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()  # least recently used first
        self._holders: dict[tuple[str, str], str] = {}  # (tenant, item id) → response id
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, tenant: str, response_id: str, stored: Stored, now: float) -> None:
        """Keep a response, and let go of others until the bounds hold. One that alone breaks them is not kept."""
        self.delete(tenant, response_id)
        if stored.size > self._most_size:
            return
        self._kept[tenant, response_id] = _Kept(stored, now)
        self.size += stored.size
        self._holders |= {(tenant, item.id): response_id for item in stored.outputs if item.id is not None}
        while len(self._kept) > self._most or self.size > self._most_size or self._oldest_is_over(now):
            self.delete(*next(iter(self._kept)))

    def get(self, tenant: str, response_id: str, now: float) -> Stored | None:
        """Find a response; that is a use of it."""
        kept = self._kept.get((tenant, response_id))
        if kept is None:
            return None
        if now - kept.at > self._longest_s:
            self.delete(tenant, response_id)
            return None
        self._kept.move_to_end((tenant, response_id))
        return kept.stored

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response; False where there is none."""
        kept = self._kept.pop((tenant, response_id), None)
        if kept is None:
            return False
        self.size -= kept.stored.size
        for item in kept.stored.outputs:
            self._holders.pop((tenant, item.id or ""), None)
        return True

    def item(self, tenant: str, item_id: str, now: float) -> Item | None:
        """Find an item of a kept answer."""
        holder = self._holders.get((tenant, item_id))
        stored = None if holder is None else self.get(tenant, holder, now)
        return None if stored is None else next(item for item in stored.outputs if item.id == item_id)

    def earlier(self, tenant: str, response_id: str | None, references: Sequence[str], now: float) -> Earlier:
        """Gather what a request goes on from. Raises NotStored for a response; a missing item is just not there."""
        stored = None if response_id is None else self.get(tenant, response_id, now)
        if stored is None and response_id is not None:
            raise previous_not_found(response_id)
        known = {} if stored is None else {item.id: item for item in stored.items if item.id is not None}
        found = {name: known.get(name) or self.item(tenant, name, now) for name in references}
        return Earlier(
            items=() if stored is None else stored.items,
            referenced={name: item for name, item in found.items() if item is not None},
            size=0 if stored is None else stored.size,
        )

    def _oldest_is_over(self, now: float) -> bool:
        return bool(self._kept) and now - next(iter(self._kept.values())).at > self._longest_s


def previous_not_found(response_id: str) -> NotStored:
    """Say that there is nothing to go on from."""
    return NotStored(
        f"Previous response with id '{response_id}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
