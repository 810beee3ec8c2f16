"""Which stretch of time and whose requests an operator asks about: the query fields that all views of data share. Pure.

Rule: what cannot be read is refused naming the field; a value that nobody has is no error, it only finds nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final

from gateway.admin.shapes import AdminRefused
from prefix_store.classes import nearest
from prefix_store.retention import parse_duration

DEFAULT_S = 3600.0
LATEST = 253_402_300_799.0  # the last second of the year 9999
TIMES: Final = "seconds since the epoch, ISO 8601 such as 2026-05-01T12:00Z, a span back such as -1h, or now"
_SPAN: Final = re.compile(r"-(.+)")


@dataclass(frozen=True, slots=True)
class Range:
    """From `start` on, up to `end`: seconds since the epoch."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The one value that each of these must have, None for any."""

    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    api: str | None = None
    upstream: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """Those that are set."""
        return {name: value for name in FILTERS if (value := getattr(self, name)) is not None}

    def take(self, thing: object) -> bool:
        """Tell whether something with attributes of these names is meant."""
        return all(getattr(thing, name) == value for name, value in self.given.items())


FILTERS: Final = tuple(field.name for field in fields(Filters))
RANGE: Final = ("from", "to")


def check_fields(query: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse fields that this address does not have, and one that is given twice. Raises AdminRefused."""
    names, seen = tuple(known), set[str]()
    for name, _ in query.items():  # noqa: PERF102 - in which a repeated field is there twice
        if name not in names:
            guess = nearest(name, names)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise AdminRefused(f"{name} is not a field{hint}", field=name, allowed=", ".join(names))
        if name in seen:
            raise AdminRefused(f"{name}: is given twice", field=name, allowed="one value")
        seen.add(name)


def parse_range(query: Mapping[str, str], now: float) -> Range:
    """Read `from` (an hour ago where absent) and `to` (now). Raises AdminRefused."""
    end = instant(query["to"], "to", now) if "to" in query else now
    start = instant(query["from"], "from", now) if "from" in query else min(end, now) - DEFAULT_S
    if not start < end:
        raise AdminRefused("from: is not before to", field="from", allowed="a time before `to`")
    return Range(start, end)


def parse_filters(query: Mapping[str, str]) -> Filters:
    """Read the filters. Raises AdminRefused."""
    given = dict(_given(query))
    return Filters(**given)


def _given(query: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in FILTERS:
        if name in query:
            if not query[name]:
                raise AdminRefused(f"{name}: is empty", field=name, allowed="the value to look for")
            yield name, query[name]


def instant(text: str, field: str, now: float) -> float:
    """Read a point in time. Raises AdminRefused."""
    at = _read(text.strip(), now)
    if at is None or not 0 <= at <= LATEST:
        raise AdminRefused(f"{field}: {text!r} is not a time", field=field, allowed=TIMES)
    return at


def _read(text: str, now: float) -> float | None:
    if text == "now":
        return now
    try:
        if span := _SPAN.fullmatch(text):
            return now - parse_duration(span[1])
        try:
            number = float(text)
        except ValueError:
            told = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)  # a + that was not escaped
            return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
        return number if math.isfinite(number) else None
    except (ValueError, OverflowError):
        return None
