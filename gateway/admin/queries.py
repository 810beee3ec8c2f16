"""What may be asked of exchanges and happenings: filters and ranges, from query strings. Pure: time is an argument.

Rule: a field that is not known, or a value that cannot be, is refused by its name with what fits it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta

from gateway.admin.shapes import AdminRefused
from gateway.ask import Api
from gateway.miss import REASONS
from gateway.record import Outcome, Record
from prefix_store.retention import parse_duration

APIS: Final[tuple[str, ...]] = get_args(Api)
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)
INSTANT: Final = "seconds since the epoch, ISO 8601 such as 2026-11-29T14:05:00Z, -1h, or now"
HOUR_S: Final = 3_600.0
TITLE_LENGTH: Final = 200

_SECONDS: Final = re.compile(r"\d{1,12}(\.\d{1,9})?")


class NoQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing may be asked."""


class RequestsQuery(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Which exchanges to show, the latest first."""

    from_: str | None = None
    to: str | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    api: str | None = None
    upstream: str | None = None
    outcome: str | None = None
    reason: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    before: str | None = None

    def check(self) -> None:
        """Refuse words that nothing is called. Raises AdminRefused."""
        _one_of("api", self.api, APIS)
        _one_of("outcome", self.outcome, OUTCOMES)
        _one_of("reason", self.reason, REASONS)

    def accepts(self, record: Record, begin: float, end: float) -> bool:
        """Whether an exchange is meant."""
        for wanted, has in (
            (self.tenant, record.tenant),
            (self.key, record.key),
            (self.model, record.model),
            (self.api, record.api),
            (self.upstream, record.upstream),
            (self.outcome, record.outcome),
        ):
            if wanted is not None and wanted != has:
                return False
        if not begin <= record.at < end:
            return False
        misses = () if record.prompt is None else record.prompt.misses
        return self.reason is None or any(miss.reason == self.reason for miss in misses)


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """When something happened."""

    from_: str | None = None
    to: str | None = None


class MarkBody(msgspec.Struct, frozen=True, kw_only=True):
    """A deploy mark."""

    title: str

    def check(self) -> str:
        """Return the title. Raises AdminRefused."""
        title = self.title.strip()
        if not 0 < len(title) <= TITLE_LENGTH or not title.isprintable():
            fits = f"one line of 1 to {TITLE_LENGTH} characters"
            raise AdminRefused("title: is empty, too long or more than a line", field="title", allowed=fits)
        return title


def span(begin: str | None, end: str | None, *, now: float, otherwise: float = HOUR_S) -> tuple[float, float]:
    """Read a range: to now and from `otherwise` seconds before its end where nothing is said. Raises AdminRefused."""
    until = now if end is None else instant(end, "to", now)
    since = until - otherwise if begin is None else instant(begin, "from", now)
    if since > until:
        raise AdminRefused("from: lies after to", field="from", allowed="a time before to")
    return since, until


def instant(text: str, field: str, now: float) -> float:
    """Read a point in time. Raises AdminRefused."""
    if text == "now":
        return now
    try:
        if _SECONDS.fullmatch(text):
            return float(text)
        if text.startswith("-"):
            return now - parse_duration(text[1:])
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise AdminRefused(f"{field}: {text!r} is no time", field=field, allowed=INSTANT) from error


def _one_of(field: str, word: str | None, words: Iterable[str]) -> None:
    if word is not None and word not in words:
        raise AdminRefused(f"{field}: there is no {word!r}", field=field, allowed=", ".join(words))
