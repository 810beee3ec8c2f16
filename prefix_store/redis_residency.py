"""The feed between gateways over a Redis that they share: a stream of batches, and each gateway's load as a value.

Owns: what is stored under which key, and how far this gateway has read. How a call is made is `redis_link`'s. Rules:
every key is a digest and expires; the stream is bounded, so a newcomer reads what is kept and no more; one call tells
and hears; ages are taken from the server's own clock.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from prefix_store.breaker import Breaker
from prefix_store.redis_link import RedisLink
from prefix_store.redis_settings import RedisSettings
from prefix_store.residency_feed import Heard

KEPT_BYTES: Final = 32 << 20  # about, of all batches together
FEWEST, MOST = 64, 16_384  # batches that are kept
STREAM_S: Final = 3600.0  # after the last batch
LOAD_S: Final = 1.0  # after which a gateway that says nothing counts no more
PORTION: Final = 16  # batches in one answer
PATIENCE_S: Final = 0.5  # at least, for a call: no request waits for one
BACK_MS: Final = 1000
FIELD: Final = b"b"


class RedisFeed:
    """`Feed` over Redis or Valkey. Connects with the first call."""

    def __init__(self, settings: RedisSettings, gateway: str, *, breaker: Breaker | None = None) -> None:
        """Speak as `gateway`, a name that no other process has."""
        patient = dataclasses.replace(settings, timeout_s=max(settings.timeout_s, PATIENCE_S))
        self._link = RedisLink(patient, breaker or Breaker())
        self._stream = settings.key_of("residency")
        self._listing = settings.key_of("loads")
        self._own = settings.key_of("load", gateway)
        self._last = b"0-0"
        self._mean = 0.0  # bytes of a batch
        self._known: list[bytes] = []  # where other gateways' loads are

    async def exchange(self, batch: bytes | None, load: bytes | None, *, ask_loads: bool) -> Heard:
        """Tell and hear in one call. Raises StoreUnavailable; what was to be told may have been told."""
        asked = list(self._known) if ask_loads else []
        pipeline = self._link.redis.pipeline(transaction=False)
        if batch is not None:
            self._mean += (len(batch) - self._mean) / (8 if self._mean else 1)
            kept = min(MOST, max(FEWEST, round(KEPT_BYTES / max(1.0, self._mean))))
            _ = pipeline.xadd(self._stream, {FIELD: batch}, maxlen=kept, approximate=True)
            _ = pipeline.pexpire(self._stream, round(STREAM_S * 1000))
        if load is not None:
            _ = pipeline.set(self._own, load, px=round(LOAD_S * 1000))
            _ = pipeline.sadd(self._listing, self._own)
            _ = pipeline.pexpire(self._listing, round(STREAM_S * 1000))
        if ask_loads:
            _ = pipeline.smembers(self._listing)
            if asked:
                _ = pipeline.mget(asked)
        _ = pipeline.time()
        _ = pipeline.xread({self._stream: self._last}, count=PORTION)
        answers: list[Any] = await self._link.write(pipeline.execute)
        loads = await self._loads(answers[:-2], asked) if ask_loads else None
        return self._heard(answers[-2], answers[-1], loads)

    async def close(self) -> None:
        """Hang up."""
        await self._link.close()

    async def _loads(self, answers: list[Any], asked: list[bytes]) -> list[bytes]:
        """Return what the others have sent. One that was listed a moment ago is asked from the next call on."""
        values: list[bytes | None] = answers[-1] if asked else []
        members: set[bytes] = answers[-2] if asked else answers[-1]
        gone = [key for key, value in zip(asked, values, strict=True) if value is None and key in members]
        if gone:
            await self._link.write(lambda: self._link.redis.srem(self._listing, *gone))
        self._known = sorted(members - {self._own.encode(), *gone})
        return [value for value in values if value is not None]

    def _heard(self, time: tuple[int, int], answer: Any, loads: list[bytes] | None) -> Heard:
        now_ms = time[0] * 1000 + time[1] // 1000
        if now_ms + BACK_MS < int(self._last.partition(b"-")[0]):
            self._last = b"0-0"  # the server's clock was set back, so what comes now is numbered below what came
        entries = answer[0][1] if isinstance(answer, list) and answer else []
        if isinstance(answer, dict):
            entries = [entry for portions in answer.values() for portion in portions for entry in portion]
        batches = []
        for number, fields in entries:
            self._last = number
            age_s = max(0.0, (now_ms - int(number.partition(b"-")[0])) / 1000)
            batches.append((age_s, fields.get(FIELD, b"")))
        return Heard(batches=batches, loads=loads, more=len(entries) == PORTION)
