"""Who waits for a prefix that another sequence is computing right now. Pure: it looks, the scheduler acts.

Owns the lengths of beginnings that pairs of sequences share, while both are there. Rules: who waits holds no slot and
no blocks and is asked anew at each step, so it goes on from whatever is published the moment the leader is gone,
preempted or done; only a sequence whose blocks will be published leads, so one that asked for no caching or whose
tenant was purged never does; who waits lends its leader its priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items

from engine.block_pool import BlockId
from engine.request import TOKEN_BYTES
from engine.sequence import Phase, Sequence
from prefix_store.leases import Lease


class Coalescing:
    """Leaders and those who stand back for them."""

    def __init__(self, block_tokens: int, storable: Callable[[Lease[BlockId]], bool]) -> None:
        """`storable` says whether what is published under a lease will be in the tree."""
        self._block, self._storable = block_tokens, storable
        self._shared: dict[str, dict[str, int]] = {}  # by who waits, then by whom it was compared with
        self._heads: dict[str, bytes] = {}  # by who is here: its first block, without which nothing is shared
        self._since: dict[str, int] = {}  # by who waits: the tokens it could have read when it came
        self.saved_tokens = 0  # that were read and nobody had computed when who read them came

    def following(
        self, waiting: Iterable[Sequence], running: Items[Sequence], matched: Callable[[Sequence], int]
    ) -> dict[Sequence, Sequence]:
        """Return everyone who stands back, with its leader; `matched` looks how many tokens of a sequence are known."""
        leaders = [other for other in running if self._leads(other)]
        heads = {self._heads[leader.request.id] for leader in leaders}
        found: dict[Sequence, Sequence] = {}
        for sequence in waiting if leaders else ():
            if self._heads[sequence.request.id] not in heads:  # most often: nothing in common, and no need to look
                continue
            if (leader := self._leader(sequence, matched(sequence), leaders)) is not None:
                found[sequence] = leader
        return found

    def came(self, sequence: Sequence, matched: int) -> None:
        """Hear of a new sequence, of which `matched` tokens are known."""
        self._heads[sequence.request.id] = sequence.request.tokens[: self._block * TOKEN_BYTES]
        self._since[sequence.request.id] = matched
        self._shared.pop(sequence.request.id, None)

    def admitted(self, sequence: Sequence, read: int) -> None:
        """Hear that a sequence runs, with `read` tokens found: what others computed since it came was saved."""
        since = self._since.pop(sequence.request.id, None)
        if since is not None:
            self.saved_tokens += max(0, read - since)

    def forget(self, request_id: str) -> None:
        """Hear that a sequence is gone."""
        self._heads.pop(request_id, None)
        self._since.pop(request_id, None)
        self._shared.pop(request_id, None)

    def _leader(self, sequence: Sequence, matched: int, running: Iterable[Sequence]) -> Sequence | None:
        """Return the running sequence that is computing the most of what `sequence` needs beyond `matched` tokens.

        None: nobody computes as much as a block of it.
        """
        best, most = None, matched + self._block - 1
        if not sequence.request.cached:
            return None
        for other in running:
            if not self._leads(other) or other.request.namespace != sequence.request.namespace:
                continue
            shared = min(self._common(sequence, other), self._published(other))
            if shared > most and other.computed < shared:
                best, most = other, shared
        return best

    def _leads(self, other: Sequence) -> bool:
        if other.phase is not Phase.PREFILL or other.hold is None or not other.request.cached:
            return False
        return self._storable(other.hold.lease)

    def _published(self, other: Sequence) -> int:
        """Return how many leading tokens of a sequence will be in the tree."""
        plan = other.hold.plan if other.hold is not None else None
        if plan is None:
            return 0
        whole = other.length - other.length % self._block
        return whole if plan.held is not None else min(whole, max((mark.tokens for mark in plan.marks), default=0))

    def _common(self, one: Sequence, other: Sequence) -> int:
        """Return how many leading tokens two sequences share, in whole blocks. O(tokens) once a pair."""
        known = self._shared.setdefault(one.request.id, {})
        if other.request.id not in known:
            ends = min(len(one.readable), len(other.tokens))
            stride = self._block * TOKEN_BYTES
            known[other.request.id] = agreeing(one.readable[:ends], bytes(other.tokens[:ends])) // stride * self._block
        return known[other.request.id]


def agreeing(one: bytes, other: bytes) -> int:
    """Return how many leading bytes two strings of one length share. O(bytes), in large strides."""
    if one == other:
        return len(one)
    low, high = 0, len(one)
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
