"""Every exchange and every eviction into the ledger: counted at once, handed over every few seconds.

Owns: the counts since the last flush, and how far the engine's own counters had come. Knows no storage.
Rules: counting never waits; a record counts in the minute in which its request arrived, however late it ends; what the
store refuses stays for the next time; a counter of the engine that falls means a new engine.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from engine.errors import EngineUnavailable
from engine.operator_messages import EngineStats
from gateway.flushing import flushing
from gateway.record import UNNAMED, Record, Routed
from gateway.usage import PromptFacts
from prefix_store.chain import TOKEN_BYTES
from prefix_store.ledger import HOUR, MINUTE, LedgerStore, Place, Row, floor, merge, slot
from prefix_store.store import StoreUnavailable

FLUSH_S = 5.0
PORTION = 8  # rows handed over in one call
MOST_ROWS = 20_000  # not yet handed over; above, minutes are folded into their hours, and then the oldest go
PATIENCE_S = 2.0  # for the engine's snapshot
NOBODY = Place(tenant="", key="", model="", api="", upstream="")


class Engine(Protocol):
    """Who is asked what went from the cache."""

    @property
    def name(self) -> str:
        """What the place is called."""

    @property
    def model(self) -> str:
        """The model that is served."""

    @property
    def life(self) -> int:
        """Which life its counters are of: they begin anew in each."""

    async def stats(self) -> EngineStats:
        """Return a snapshot. Raises EngineUnavailable."""


class Ledger:
    """Counts of this gateway on their way to the ledger of all."""

    def __init__(self, store: LedgerStore, engine: Engine, *, wall: Callable[[], float] = time.time) -> None:
        """Count towards `store`; `engine` is asked now and then what went from its cache."""
        self.store = store
        self._engine, self._wall = engine, wall
        self._fresh: defaultdict[tuple[int, Place], dict[str, int]] = defaultdict(dict)
        self._flushing = asyncio.Lock()
        self._seen: dict[tuple[str, str], int] = {}  # the engine's counters, by tenant and name
        self._life = -1  # which of the engine's lives they are of

    def ended(self, record: Record, tokens: bytes) -> None:
        """Count one exchange."""
        place = Place(record.tenant, record.key or "", record.model, record.api, record.upstream)
        counts = self._fresh[floor(record.at, MINUTE), place]
        counted = _warmed(record) if record.prewarm else _counted(record, len(tokens) // TOKEN_BYTES)
        for name, by in counted:
            if by:
                counts[name] = counts.get(name, 0) + by

    def watch(self, stats: EngineStats, *, life: int) -> None:
        """Count what went from the cache since the last snapshot; `life` is the engine's."""
        now = dict(_gone(stats))
        if life != self._life or any(now.get(key, 0) < before for key, before in self._seen.items()):
            self._seen = {}
        minute = floor(self._wall(), MINUTE)
        for (tenant, name), total in now.items():
            if by := total - self._seen.get((tenant, name), 0):
                place = NOBODY._replace(tenant=tenant, model=self._engine.model, upstream=self._engine.name)
                counts = self._fresh[minute, place]
                counts[name] = counts.get(name, 0) + by
        self._seen, self._life = now, life

    async def poll(self) -> None:
        """Look at the engine's counters, if there is an engine and it answers in time."""
        try:
            stats = await asyncio.wait_for(self._engine.stats(), PATIENCE_S)
        except (EngineUnavailable, TimeoutError):
            return
        self.watch(stats, life=self._engine.life)

    async def flush(self) -> None:
        """Hand the counts over. What the store does not take now stays for the next time."""
        async with self._flushing:
            fresh, self._fresh = self._fresh, defaultdict(dict)
            rows = [Row(start, place, counts) for (start, place), counts in fresh.items() if counts]
            for begin in range(0, len(rows), PORTION):
                try:
                    await self.store.add(rows[begin : begin + PORTION])
                except StoreUnavailable as error:
                    # what may have arrived is not sent again: counting twice is worse than once too few
                    self._take_back(rows[begin + PORTION * error.perhaps :])
                    return

    def flushing(self) -> AbstractAsyncContextManager[None]:
        """Poll and flush now and then while the block runs, and once more at its end."""
        return flushing(self._tick, FLUSH_S)

    async def _tick(self) -> None:
        await self.poll()
        await self.flush()

    def _take_back(self, rows: list[Row]) -> None:
        for row in rows:
            merge(self._fresh[row.start, row.place], row.counts)
        if len(self._fresh) > MOST_ROWS:
            minutes, self._fresh = self._fresh, defaultdict(dict)
            for (start, place), counts in minutes.items():
                merge(self._fresh[floor(start, HOUR), place], counts)
            for oldest in sorted(self._fresh)[: max(len(self._fresh) - MOST_ROWS, 0)]:
                del self._fresh[oldest]


def _counted(record: Record, tokens: int) -> Iterator[tuple[str, int]]:
    """Go over what a request counts. `tokens` are those of its prompt."""
    yield f"outcome|{record.outcome}", 1
    if record.outcome == "refused" and not tokens:
        return
    yield "requests", 1
    yield "output", record.generated
    finished = record.outcome == "finished"
    if finished:
        yield f"seconds|{slot(record.seconds)}", 1
    if record.routed is not None:
        yield from _sent(record, record.routed)
    facts = record.prompt
    if facts is None:
        if finished:  # answered, and nobody said what the cache did
            yield "prompt", tokens
            yield "unknown", tokens
        return
    yield "reported", int(record.reported)
    yield "hits", int(record.hit)
    yield from _prompt(record, facts)
    if record.first_token_s is not None and record.reported:
        yield f"first_{'hit' if record.hit else 'miss'}|{slot(record.first_token_s)}", 1
    if facts.timed:
        yield f"queue|{slot(facts.queue_s)}", 1
        yield f"prefill|{slot(facts.prefill_s)}", 1


def _sent(record: Record, routed: Routed) -> Iterator[tuple[str, int]]:
    """Go over what routing did: what it decided by, and, of answers that said it, what was promised and delivered."""
    yield f"routed|{routed.why}", 1
    if routed.delivered is None:
        return
    yield "told", 1
    yield "told_prompt", 0 if record.prompt is None else record.prompt.prompt
    yield "available", routed.available
    yield "captured", routed.captured
    yield "delivered", routed.delivered


def _prompt(record: Record, facts: PromptFacts) -> Iterator[tuple[str, int]]:
    """Go over a prompt's tokens and projections: each token in one place, each reason once a request."""
    yield "prompt", facts.prompt
    yield "read", facts.read
    yield "uncached", facts.uncached
    yield "unknown", facts.unknown
    left = facts.write
    for part in facts.written:
        left -= part.tokens
        yield f"write|{part.applied}", part.tokens
    yield f"write|{UNNAMED}", left
    reasons: dict[str, int] = {}
    for miss in facts.misses:
        reasons[miss.reason] = reasons.get(miss.reason, 0) + miss.tokens
    for reason, missed in reasons.items():
        yield f"missed|{reason}", missed
        yield f"misses|{reason}", 1
    if record.projected is not None:
        yield "done", record.projected
        yield "without", facts.prompt + max(record.generated - 1, 0)


def _warmed(record: Record) -> Iterator[tuple[str, int]]:
    """Go over what a pre-warm counts: apart from requests, since it is no hit and no miss."""
    yield "prewarms", 1
    if record.prompt is not None:
        yield "warm_read", record.prompt.read
        yield "warm_uncached", record.prompt.uncached
        for part in record.prompt.written:
            yield f"warm_write|{part.applied}", part.tokens


def _gone(stats: EngineStats) -> Iterator[tuple[tuple[str, str], int]]:
    """Go over the engine's counters of blocks that went, by tenant and name; causes are told of no tenant."""
    yield ("", "gone|expired"), stats.blocks_expired_total
    yield ("", "gone|evicted"), stats.blocks_evicted_total
    yield ("", "gone|purged"), stats.purged_total
    for place, blocks in stats.broken_promises.items():
        klass, _, tenant = place.partition("|")
        yield (tenant, f"broken|{klass}"), blocks
