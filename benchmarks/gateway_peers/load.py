"""Requests to one address, and how long each took to its first word and to its end.

Rule: a run that gets anything but a whole answer is an error, not a number.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import aiohttp

from benchmarks.gateway_peers.upstream import MODEL, WORD

FILLER = "lorem ipsum dolor sit amet "
SMALL, LARGE = 4_000, 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is sent, and how many at a time."""

    size: int  # bytes of the system message
    streamed: bool
    at_once: int

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{self.size // 1000} kB, {'streamed' if self.streamed else 'whole'}, {self.at_once} at a time"


SHAPES = tuple(
    Shape(size=size, streamed=streamed, at_once=at_once)
    for size in (SMALL, LARGE)
    for streamed in (True, False)
    for at_once in (1, 16)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run's times in seconds, request by request, and the rate of them all."""

    first: tuple[float, ...]
    total: tuple[float, ...]
    per_second: float


async def run(http: aiohttp.ClientSession, url: str, key: str, shape: Shape, requests: int) -> Run:
    """Send so many requests."""
    bodies = iter([_body(shape, number) for number in range(requests)])

    async def sender() -> list[tuple[float, float]]:
        return [await _one(http, url, key, body, streamed=shape.streamed) for body in bodies]

    began = time.perf_counter()
    senders = await asyncio.gather(*(sender() for _ in range(shape.at_once)))
    elapsed = time.perf_counter() - began
    times = [each for sent in senders for each in sent]
    first, total = zip(*times, strict=True)
    return Run(first=first, total=total, per_second=requests / elapsed)


def _body(shape: Shape, number: int) -> bytes:
    text = (FILLER * (shape.size // len(FILLER) + 1))[: shape.size]
    messages = [{"role": "system", "content": text}, {"role": "user", "content": f"question {number}"}]
    return json.dumps({"model": MODEL, "stream": shape.streamed, "max_tokens": 16, "messages": messages}).encode()


async def _one(http: aiohttp.ClientSession, url: str, key: str, body: bytes, *, streamed: bool) -> tuple[float, float]:
    """Send one request. Return when its first word and its end came."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    word, last = WORD.encode(), b""
    first: float | None = None
    began = time.perf_counter()
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
        if response.status != 200:  # noqa: PLR2004 - an answer
            raise RuntimeError(f"{url} answered {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if first is None and word in line:
                first = time.perf_counter() - began
            last = line if line.strip() else last
    total = time.perf_counter() - began
    if first is None or (streamed and not last.startswith(b"data: [DONE]")):
        raise RuntimeError(f"{url} sent an answer that is not whole: {last[:300]!r}")
    return first, total
