"""One kind of work on one server as a row of numbers: what load generators write and tables read. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer, in seconds and tokens."""

    first: float  # until its first word
    gap: float | None  # between two tokens; None where there is only one
    prompt: int
    cached: int | None  # of the prompt; None where the server does not tell
    out: int
    text: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one kind together. Times are in seconds, tokens are sums."""

    name: str
    n: int
    ttft_p50: float
    ttft_p95: float
    ttft_max: float
    itl: float | None
    prompt: int
    cached: int  # 0 also where the server does not tell
    out: int
    wall: float | None = None  # of all of them together, where they ran at once

    def line(self) -> str:
        """As a person reads it."""
        gap = "–" if self.itl is None else f"{self.itl * 1000:.1f} ms"  # noqa: RUF001 - a dash
        wall = "" if self.wall is None else f", all in {self.wall:.2f} s"
        return (
            f"{self.name:15s} {self.n} answers, first token {self.ttft_p50 * 1000:,.0f} ms "
            f"(at most {self.ttft_max * 1000:,.0f} ms), between tokens {gap}, "
            f"{self.cached:,} of {self.prompt:,} prompt tokens cached{wall}"
        )


class RowsRefused(ValueError):
    """What a generator wrote is not what it should have written."""


def row(name: str, answers: Sequence[Answer], wall: float | None = None) -> Row:
    """Make one row of several answers; quantiles by nearest rank from above."""
    first = sorted(answer.first for answer in answers)
    gaps = [answer.gap for answer in answers if answer.gap is not None]
    last = len(first) - 1
    return Row(
        name=name,
        n=len(answers),
        ttft_p50=first[min(last, len(first) // 2)],
        ttft_p95=first[min(last, int(0.95 * len(first)))],
        ttft_max=first[last],
        itl=statistics.median(gaps) if gaps else None,
        prompt=sum(answer.prompt for answer in answers),
        cached=sum(answer.cached or 0 for answer in answers),
        out=sum(answer.out for answer in answers),
        wall=wall,
    )


def read_rows(document: bytes) -> list[Row]:
    """Read a generator's rows. Raises RowsRefused."""
    try:
        rows = msgspec.json.decode(document, type=list[Row])
    except msgspec.DecodeError as error:
        raise RowsRefused(f"the rows cannot be read: {error}") from error
    for each in rows:
        times = (each.ttft_p50, each.ttft_p95, each.ttft_max, each.itl, each.wall)
        if not all(time is None or (math.isfinite(time) and time > 0) for time in times):
            raise RowsRefused(f"{each.name}: a time is not above 0")
        if each.n < 1 or each.out < each.n:
            raise RowsRefused(f"{each.name}: {each.n} answers with {each.out} tokens: some are empty")
        if not 0 <= each.cached <= each.prompt:
            raise RowsRefused(f"{each.name}: {each.cached} of {each.prompt} prompt tokens cached")
    names = [each.name for each in rows]
    if len(set(names)) != len(names):
        raise RowsRefused("two rows have one name")
    return rows
