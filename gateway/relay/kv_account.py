"""How many blocks a replica's cache holds, counted from what it says, and what it can hold at most. Pure.

Owns one replica's set of blocks, which is bounded. Rule: a cache is known to be full when it gives up a block that was
seen to come; one that was listened to from the middle must first have given up as much as it was seen to hold.
"""

from __future__ import annotations

from typing import Final

from gateway.relay.kv_wire import HERE, BlockHash, Cleared, Event, Removed, Stored

MOST_BLOCKS: Final = 1 << 18  # that are counted; of a cache that holds more no bound is learnt


class Account:
    """One replica's blocks."""

    def __init__(self, *, most_blocks: int = MOST_BLOCKS) -> None:
        """Start with nothing known: until `begun` it is not told apart from one that was listened to late."""
        self._most = most_blocks
        self._clear(whole=False)

    def _clear(self, *, whole: bool) -> None:
        self._groups: dict[int, set[BlockHash]] = {}
        self._sizes: dict[int, int] = {}
        self._blocks = 0
        self._whole = whole
        self._overflowed = False
        self._peak = 0  # blocks
        self._peak_tokens = 0
        self._turned = 0  # blocks that were seen to come and to go

    def begun(self) -> None:
        """Hear that the replica holds nothing now: from here on every block is seen."""
        self._clear(whole=True)

    def missed(self) -> None:
        """Hear that something was not heard."""
        self._whole = False
        self._turned = 0

    @property
    def blocks(self) -> int:
        """Blocks that are known to be there."""
        return self._blocks

    @property
    def tokens(self) -> int:
        """Tokens in them: of layers that keep unlike amounts, those that keep most."""
        return max((len(held) * self._sizes.get(group, 0) for group, held in self._groups.items()), default=0)

    @property
    def capacity(self) -> int | None:
        """The tokens that it can hold; None while it has not been seen full."""
        if self._overflowed or not self._turned or not (self._whole or self._turned >= self._peak):
            return None
        return self._peak_tokens

    def take(self, event: Event) -> None:
        """Hear one event."""
        match event:
            case Stored(medium=medium, block_hashes=hashes) if medium in HERE:
                self._store(event.group_idx or 0, event.block_size, hashes)
            case Removed(medium=medium, block_hashes=hashes) if medium in HERE:
                held = self._groups.get(event.group_idx or 0, set())
                known = held.intersection(hashes)
                held -= known
                self._blocks -= len(known)
                self._turned += len(known)
            case Cleared():
                self.begun()
            case _:
                pass

    def _store(self, group: int, size: int, hashes: list[BlockHash]) -> None:
        held = self._groups.setdefault(group, set())
        self._sizes[group] = size
        for one in hashes:
            if self._blocks >= self._most:
                self._overflowed = True
                return
            if one not in held:
                held.add(one)
                self._blocks += 1
        self._peak = max(self._peak, self._blocks)
        self._peak_tokens = max(self._peak_tokens, self.tokens)
