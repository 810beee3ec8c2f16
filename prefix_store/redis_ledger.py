"""A ledger in a Redis that several gateways share: all of them add to the same rows.

Owns: what of a ledger is stored under which key. How a call is made is `redis_link`'s, atomic steps are the scripts'.
Rules: keys are digests and every one of them expires; a call is small, so that it keeps within the time-out and
holds up nobody; while the server does not answer, nothing is added and nothing is pretended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any

from redis.commands.core import AsyncScript

from prefix_store.breaker import Breaker
from prefix_store.ledger import RETENTION_S, STEPS, Cell, Place, Question, Row, Sums, floor, keep_s, merge
from prefix_store.redis_link import RedisLink
from prefix_store.redis_settings import RedisSettings

STRETCHES = 32  # whose places are listed in one call
ROWS = 32  # added up in one call
PATIENCE_S = 1.0  # at least, for a call: no request waits for one, and what is given up is not counted
SHORTEST_LIFE_S = 60.0  # of a row that comes when its time is over

Stretch = tuple[int, int]  # step and start


class RedisLedger:
    """`LedgerStore` over Redis or Valkey. `open` is the way in; it connects with the first call."""

    def __init__(
        self,
        settings: RedisSettings,
        link: RedisLink,
        scripts: Mapping[str, str],
        retention_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Take what `open` has read."""
        self._link, self._key_of, self._clock = link, settings.key_of, clock
        self._scripts: dict[str, AsyncScript] = {
            name: link.redis.register_script(text) for name, text in scripts.items()
        }
        self.retention_s = retention_s

    @classmethod
    async def open(
        cls,
        settings: RedisSettings,
        *,
        retention_s: float = RETENTION_S,
        breaker: Breaker | None = None,
        clock: Callable[[], float] = time.time,
    ) -> RedisLedger:
        """Read the scripts; the server need not be there."""
        scripts = await asyncio.to_thread(_read_scripts)
        patient = dataclasses.replace(settings, timeout_s=max(settings.timeout_s, PATIENCE_S))
        return cls(settings, RedisLink(patient, breaker or Breaker()), scripts, retention_s, clock)

    async def add(self, rows: Sequence[Row]) -> None:
        """Add counts to their minutes and to every longer stretch around them, all or none."""
        keys: list[str] = []
        arguments: list[Any] = []
        for row in rows:
            arguments += len(STEPS), _spelt(row.place), len(row.counts)
            for step in STEPS:
                start = floor(row.start, step)
                life_s = max(start + step + keep_s(step, self.retention_s) - self._clock(), SHORTEST_LIFE_S)
                keys += self._listing((step, start)), self._row((step, start), row.place)
                arguments.append(round(life_s * 1000))
            for name, by in row.counts.items():
                arguments += name, by
        if keys:
            await self._link.write(lambda: self._scripts["ledger_add"](keys=keys, args=arguments))

    async def sums(self, question: Question) -> Sums:
        """Return the sums that were asked for."""
        cells: dict[Cell, list[str]] = {}
        for stretch, place in await self._rows(question):
            if question.asks(place):
                cells.setdefault(question.cell(stretch[1], place), []).append(self._row(stretch, place))
        found: Sums = {}
        pairs = [(cell, key) for cell, keys in cells.items() for key in keys]
        for portion in _portions(pairs, ROWS):
            lengths: dict[Cell, int] = {}
            for cell, _ in portion:
                lengths[cell] = lengths.get(cell, 0) + 1
            keys = [key for _, key in portion]
            call = partial(self._scripts["ledger_sum"], keys=keys, args=list(lengths.values()))
            answers: list[Any] = await self._link.read(call)
            for cell, flat in zip(lengths, answers, strict=True):
                counts = {name.decode(): int(by) for name, by in zip(flat[::2], flat[1::2], strict=True)}
                if counts:
                    merge(found.setdefault(cell, {}), counts)
        return found

    async def close(self) -> None:
        """Hang up."""
        await self._link.close()

    async def _rows(self, question: Question) -> list[tuple[Stretch, Place]]:
        """Return which rows there are."""
        stretches = [(span.step, at) for span in question.spans for at in range(span.start, span.end, span.step)]
        rows: list[tuple[Stretch, Place]] = []
        for portion in _portions(stretches, STRETCHES):
            pipeline = self._link.redis.pipeline(transaction=False)
            for stretch in portion:
                _ = pipeline.smembers(self._listing(stretch))
            listed: list[Any] = await self._link.read(pipeline.execute)
            for stretch, members in zip(portion, listed, strict=True):
                rows += [(stretch, Place(*json.loads(member))) for member in sorted(members)]
        return rows

    def _listing(self, stretch: Stretch) -> str:
        return self._key_of("ledger", *map(str, stretch))

    def _row(self, stretch: Stretch, place: Place) -> str:
        return self._key_of("ledger", *map(str, stretch), *place)


def _spelt(place: Place) -> str:
    return json.dumps(list(place), ensure_ascii=False, separators=(",", ":"))


def _portions(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def _read_scripts() -> dict[str, str]:
    folder = resources.files("prefix_store") / "scripts"
    return {name: (folder / f"{name}.lua").read_text("utf-8") for name in ("ledger_add", "ledger_sum")}
