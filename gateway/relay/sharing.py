"""One gateway's knowledge of replicas joined with that of the others: told and heard.

Owns what waits to be told and how it came out. Rules:
- nothing on a request's path waits for it: learning is a note in memory, and one task talks to the others;
- while the others cannot be reached this gateway goes on by what it knows, says so, and counts nobody else's work;
- a replica is who is at an address, whatever a gateway calls it;
- what others said of a replica before they heard that it was lost is not believed after it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from gateway.relay.fleet import Fleet
from gateway.routing.router import Choice, refuted
from gateway.routing.wanted import Wanted
from prefix_store.residency_feed import (
    BATCH_BYTES,
    Batch,
    Feed,
    Heard,
    Kept,
    Load,
    Lost,
    News,
    Outbox,
    Refuted,
    batch_of,
    load_of,
    packed,
)
from prefix_store.store import StoreUnavailable

PERIOD_S: Final = 0.1
LOAD_EVERY_S: Final = 0.2
LOAD_AGAIN_S: Final = 0.4  # unchanged, so that it does not expire
FORGOTTEN_S: Final = 1.0  # without a word from the others, their work is not counted
JITTER_S: Final = 0.2  # by which two times that travelled may be apart although they were one
RETURN_S: Final = 10.0
CATCH_UP: Final = 64  # calls in one turn at most
TAG: Final = 8

log = structlog.get_logger("gateway.relay")


class Sharing:
    """Tells the others and hears them. A follower of its fleet."""

    def __init__(
        self,
        fleet: Fleet,
        feed: Feed,
        *,
        secret: bytes,
        gateway: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join `fleet` with whoever is on `feed`; only those with the same `secret` understand each other."""
        self.degraded: str | None = None
        self.outbox = Outbox()
        self.heard = 0  # news that were taken in
        self.garbled = 0  # batches and loads that could not be read
        self._fleet, self._feed, self._secret, self._clock = fleet, feed, secret, clock
        self._gateway = gateway or secrets.token_bytes(TAG)
        self._tags: dict[str, bytes] = {}
        self._returning: dict[bytes, float] = {}  # replicas whose loss has not come round; how long it is waited for
        self._load: Load | None = None  # as it was told last
        self._load_told_at = self._load_asked_at = self._others_at = float("-inf")
        fleet.follow(self)

    # ---- what is learnt here ----

    def computed(self, model: str, choice: Choice, wanted: Wanted, now: float) -> None:
        """Hear that a prompt is computed; its answer goes on."""
        self._keep(model, choice, wanted, now)

    def learnt(self, model: str, choice: Choice, wanted: Wanted, now: float, *, read: int | None) -> None:
        """Hear what an answer said."""
        if choice.replica not in self._fleet.replicas:
            return
        if refuted(choice, read) and choice.used is not None:
            self.outbox.refuted(self._place(choice.replica), self._tag("model", model), choice.used)
        self._keep(model, choice, wanted, now)

    def lost(self, replica: str) -> None:
        """Hear that a replica holds nothing any more."""
        if replica in self._fleet.replicas:
            place = self._place(replica)
            self.outbox.lost(place)
            self._returning[place] = float("inf")

    def _keep(self, model: str, choice: Choice, wanted: Wanted, now: float) -> None:
        if choice.replica in self._fleet.replicas:
            place = self._place(choice.replica)
            self.outbox.kept(place, self._tag("model", model), wanted.path, now + wanted.ttl_s, now)

    # ---- one turn ----

    async def turn(self) -> None:
        """Tell what waits and take in what came. Never raises for a server that cannot be used."""
        try:
            for _ in range(CATCH_UP):
                if not await self._call(self._clock()) and self.outbox.bytes <= BATCH_BYTES:
                    break
                await asyncio.sleep(0)
        except StoreUnavailable as error:
            if self.degraded is None:
                log.warning("sharing_degraded", why=str(error))
            self.degraded = str(error)
            self._forget_others(self._clock())
            return
        if self.degraded is not None:
            log.info("sharing_resumed")
        self.degraded = None

    async def _call(self, now: float) -> bool:
        """Make one call. Return whether more waits to be heard."""
        chosen = self.outbox.peek(now)
        batch = packed(Batch(self._gateway, [one.news(now) for one in chosen])) if chosen else None
        load = self._load_to_tell(now)
        ask = now - self._load_asked_at >= LOAD_EVERY_S
        heard = await self._feed.exchange(batch, None if load is None else packed(load), ask_loads=ask)
        for one in chosen:
            if one.key[0] == "lost":
                self._returning[one.replica] = now + RETURN_S
        self.outbox.told(chosen)
        if load is not None:
            self._load, self._load_told_at = load, now
        if ask:
            self._load_asked_at = now
        self._take_in(heard, self._clock())
        return heard.more

    def _load_to_tell(self, now: float) -> Load | None:
        if now - self._load_told_at < LOAD_EVERY_S:
            return None
        work = [
            (self._tag("model", model), self._place(name), tokens)
            for model, router in self._fleet.routers()
            for name, tokens in router.loads.own().items()
            if name in self._fleet.replicas
        ]
        load = Load(self._gateway, work)
        return load if load != self._load or now - self._load_told_at >= LOAD_AGAIN_S else None

    # ---- what others learnt ----

    def _take_in(self, heard: Heard, now: float) -> None:
        if not heard.batches and heard.loads is None:
            return
        self._returning = {place: until for place, until in self._returning.items() if now < until}
        names: dict[bytes, list[str]] = {}
        for name in self._fleet.replicas:
            names.setdefault(self._place(name), []).append(name)
        models = {self._tag("model", model): model for model in self._fleet.models}
        for age_s, data in heard.batches:
            batch = batch_of(data)
            if batch is None:
                self.garbled += 1
            elif batch.gateway == self._gateway:
                self._came_round(batch.news)
            else:
                for news in batch.news:
                    self._believe(news, names.get(news.replica, []), models, now, age_s)
        if heard.loads is not None:
            self._count_others(heard.loads, names, models, now)

    def _came_round(self, told: list[News]) -> None:
        """See one's own batch: from here on others speak of the replica as it was after its loss."""
        for news in told:
            if isinstance(news, Lost) and self._returning.get(news.replica, 0.0) < float("inf"):
                self._returning.pop(news.replica, None)

    def _believe(self, news: News, names: list[str], models: dict[bytes, str], now: float, age_s: float) -> None:
        if not names:
            return
        self.heard += 1
        for name in names:
            match news:
                case Lost():
                    self._fleet.lost(name, tell=False)
                case Kept(model=tag, path=path, ago_s=ago_s) if tag in models and news.replica not in self._returning:
                    deadline = now + news.left_s - age_s
                    if deadline > now:
                        self._fleet.router(models[tag]).residency.note(name, path, deadline, now - age_s - ago_s)
                case Refuted(model=tag, ago_s=ago_s) if tag in models and news.replica not in self._returning:
                    self._fleet.router(models[tag]).residency.contradict(name, now - age_s - ago_s + JITTER_S)
                case _:
                    pass

    def _count_others(
        self, loads: list[bytes], names: dict[bytes, list[str]], models: dict[bytes, str], now: float
    ) -> None:
        sums: dict[str, dict[str, float]] = {model: {} for model in models.values()}
        for data in loads:
            load = load_of(data)
            if load is None:
                self.garbled += 1
                continue
            for model, place, tokens in load.work:
                for name in names.get(place, []) if model in models else []:
                    work = sums[models[model]]
                    work[name] = work.get(name, 0.0) + tokens
        for name, summed in sums.items():
            self._fleet.router(name).loads.others(summed)
        self._others_at = now

    def _forget_others(self, now: float) -> None:
        if now - self._others_at >= FORGOTTEN_S:
            for _, router in self._fleet.routers():
                router.loads.others({})

    # ---- names ----

    def _place(self, replica: str) -> bytes:
        """Return the name that all gateways have for a replica."""
        return self._tag("replica", self._fleet.replicas[replica].upstream.base_url.rstrip("/"))

    def _tag(self, kind: str, name: str) -> bytes:
        key = f"{kind} {name}"
        tag = self._tags.get(key)
        if tag is None:
            if len(self._tags) >= 1 << 14:
                self._tags.clear()
            tag = self._tags[key] = hmac.digest(self._secret, b"share " + key.encode(), hashlib.sha256)[:TAG]
        return tag

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keep in touch while the block runs, tell once more at its end, and hang up."""
        task = asyncio.create_task(self._keep_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.turn()
            await self._feed.close()

    async def _keep_on(self) -> None:
        while True:
            await self.turn()
            await asyncio.sleep(PERIOD_S)
