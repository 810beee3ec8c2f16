"""The gateway's own traffic as the adviser reads it: keyed hashes of whole blocks, sampled, of the last two days.

Owns the sample and the lines on their way to `--traffic-log`. Rules: a witness neither waits nor raises; tokens are
hashed on the spot under a key made of the secret and the tenant, and never kept; memory is bounded by `most` blocks:
above it half of the sample goes, chosen by hash, and as much of what comes; counts of requests and tokens stay whole.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from gateway.advice.alerts import Seen, Watch
from gateway.advice.trace import Group, LogLine
from gateway.flushing import flushing
from gateway.record import Record
from gateway.usage import PromptFacts
from prefix_store.chain import HASH_BYTES, BlockHash, chain, link
from prefix_store.fingerprints import Keyed
from prefix_store.reuse import WHOLE, Use, sift

MOST = 1 << 17  # sampled blocks
SLOT_S = 600  # what comes goes into slots, which are forgotten whole
KEEP_S = 2 * 86_400
MOST_GROUPS = 64  # tenants and models beyond are not told apart
OTHERS = Group("others", "others")
FLUSH_S = 2.0
WAITING_BYTES = 16 << 20  # on their way to the file; above it lines are dropped
PRIVATE = 0o600

log = structlog.get_logger("gateway.traffic")


@dataclass(slots=True)
class Slot:
    """Some minutes of traffic: uses with sampled blocks, and the counts of all others."""

    start: float
    uses: list[Use] = field(default_factory=list)
    rest: dict[Group, list[int]] = field(default_factory=dict)  # requests, tokens, tokens in whole blocks


class Traffic:
    """Notes every exchange that made a prompt."""

    def __init__(
        self,
        *,
        secret: bytes,
        block_tokens: Callable[[], int],
        ttl: Callable[[Group], tuple[str | None, float]],
        most: int = MOST,
        file: Path | None = None,
    ) -> None:
        """Sample at most `most` blocks. `ttl` gives class and seconds that a group's prompts are kept now."""
        self._secret, self._block_tokens, self._ttl, self._most = secret, block_tokens, ttl, most
        self._file = file
        self._slots: deque[Slot] = deque()
        self._groups: set[Group] = set()
        self._roots: dict[Group, BlockHash] = {}
        self._blocks = 0
        self._latest = 0.0
        self._lines: list[bytes] = []
        self._waiting = 0
        self.limit = WHOLE
        self.dropped = 0  # lines that never reached the file
        self.watch = Watch()

    def ended(self, record: Record, tokens: bytes) -> None:
        """Note one exchange."""
        facts = record.prompt
        if facts is None or not tokens:
            return
        group = self._group(Group(record.tenant, record.model))
        block_tokens = self._block_tokens()
        klass, ttl_s = self._ttl(Group(record.tenant, record.model))
        packed = chain(self._root(Group(record.tenant, record.model)), tokens, block_tokens)
        count, held = len(tokens) // 4, len(packed) // HASH_BYTES
        self._latest = at = max(self._latest, record.at)
        use = Use(
            at=round(at * 1000),
            group=group,
            ttl=ttl_s * 1000,
            tokens=count,
            covered=held * block_tokens,
            blocks=sift(packed, self.limit),
            block_tokens=block_tokens,
        )
        self._keep(at, use)
        self.watch.note(_seen(record, facts, group, packed, block_tokens))
        if self._file is not None:
            self._write(
                LogLine(
                    at=record.at,
                    tenant=record.tenant,
                    model=record.model,
                    klass=klass,
                    tokens=count,
                    block_tokens=block_tokens,
                    blocks=sift(packed, WHOLE).tolist(),
                )
            )

    def slots(self) -> tuple[Slot, ...]:
        """Return what is remembered, oldest first."""
        return tuple(self._slots)

    @property
    def blocks(self) -> int:
        """How many sampled blocks are remembered."""
        return self._blocks

    def _keep(self, at: float, use: Use) -> None:
        start = at // SLOT_S * SLOT_S
        if not self._slots or self._slots[-1].start < start:
            self._slots.append(Slot(start))
            while self._slots[0].start < start - KEEP_S:
                self._blocks -= sum(len(one.blocks) for one in self._slots.popleft().uses)
        slot = self._slots[-1]
        if use.blocks:
            slot.uses.append(use)
            self._blocks += len(use.blocks)
        else:
            _rest(slot, use)
        while self._blocks > self._most:
            self._thin()

    def _thin(self) -> None:
        self.limit >>= 1
        self._blocks = 0
        for slot in self._slots:
            uses, slot.uses = slot.uses, []
            for use in uses:
                fewer = _thinner(use, self.limit)
                if fewer.blocks:
                    slot.uses.append(fewer)
                    self._blocks += len(fewer.blocks)
                else:
                    _rest(slot, fewer)

    def _group(self, group: Group) -> Group:
        if group in self._groups:
            return group
        if len(self._groups) >= MOST_GROUPS:
            return OTHERS
        self._groups.add(group)
        return group

    def _root(self, group: Group) -> BlockHash:
        root = self._roots.get(group)
        if root is None:
            digest = Keyed(self._secret, group.tenant).digest(b"traffic\0" + group.model.encode("utf-8", "replace"))
            root = BlockHash(digest.ljust(HASH_BYTES, b"\0")[:HASH_BYTES])
            if group in self._groups:
                self._roots[group] = root
        return root

    # ---- the file ----

    def _write(self, line: LogLine) -> None:
        encoded = msgspec.json.encode(line) + b"\n"
        if self._waiting + len(encoded) > WAITING_BYTES:
            self.dropped += 1
            return
        self._waiting += len(encoded)
        self._lines.append(encoded)

    async def flush(self) -> None:
        """Append the waiting lines to the file. Those that cannot be written are dropped, and the log says so."""
        if self._file is None or not self._lines:
            return
        lines, self._lines, self._waiting = self._lines, [], 0
        try:
            await asyncio.to_thread(_append, self._file, b"".join(lines))
        except OSError as error:
            self.dropped += len(lines)
            log.warning("traffic_not_logged", file=str(self._file), reason=str(error), lines=len(lines))

    def flushing(self) -> AbstractAsyncContextManager[None]:
        """Write now and then while the block runs, and once more at its end."""
        return flushing(self.flush, FLUSH_S)


def _rest(slot: Slot, use: Use) -> None:
    assert isinstance(use.group, Group), "made here"
    counts = slot.rest.setdefault(use.group, [0, 0, 0])
    for place, count in enumerate((1, use.tokens, use.covered)):
        counts[place] += count


def _thinner(use: Use, limit: int) -> Use:
    return replace(use, blocks=array("Q", [block for block in use.blocks if block < limit]))


def _seen(record: Record, facts: PromptFacts, group: Group, packed: bytes, block_tokens: int) -> Seen:
    """Tell what alerts are made of; a prompt's beginnings are looked at in lengths that double."""
    return Seen(
        at=record.at,
        group=group,
        prompt=0 if record.prewarm else facts.prompt,
        read=0 if record.prewarm else facts.read,
        broken=sum(miss.tokens for miss in facts.misses if miss.fate == "broken_promise"),
        evicted=sum(miss.tokens for miss in facts.misses if miss.fate == "evicted"),
        beginnings=tuple(_beginnings(packed, block_tokens)),
    )


def _beginnings(packed: bytes, block_tokens: int) -> Iterator[tuple[int, int]]:
    blocks = 1
    while blocks * HASH_BYTES <= len(packed):
        yield int.from_bytes(link(packed, blocks - 1)[:8], "little"), blocks * block_tokens
        blocks *= 2


def _append(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
    with open(descriptor, "ab") as out:  # noqa: PTH123 - a path cannot be opened as its owner's alone
        out.write(data)
