"""Server-sent events read beside their bytes: where each ends, and what it says (WHATWG HTML, section 9.2).

Owns what has come of an event that is not whole yet. Rules: lines end at LF, CR or CRLF and at nothing else, wherever
packets are cut; the bytes of all events, in order, are the bytes that came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.errors import GatewayError

MOST_BYTES: Final = 16 << 20  # of one event
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_BLANK: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n|\Z)|\r\Z)")


class EventTooLong(GatewayError):
    """An event does not end."""


class SentEvent(NamedTuple):
    """One event: its bytes as they came, blank line included, its name and its data."""

    raw: bytes
    name: str
    data: bytes


class EventReader:
    """Cuts a stream of bytes into events."""

    def __init__(self) -> None:
        self._rest = b""
        self._swallow = False  # the last event ended in a CR: a LF that comes next belongs to it

    def feed(self, data: bytes) -> list[SentEvent]:
        """Take bytes; return the events that are whole now. Raises EventTooLong."""
        if self._rest:
            data = self._rest + data
        events, at = [], 0
        for end in _ends(data):
            events.append(parse(data[at:end]))
            at = end
        self._rest = data[at:]
        if len(self._rest) > MOST_BYTES:
            raise EventTooLong(f"the upstream sent an event of more than {MOST_BYTES} bytes")
        return events

    def end(self) -> list[SentEvent]:
        """Hear that nothing more comes. Return what was still open, if it says anything; it may be cut short."""
        rest, self._rest = self._rest, b""
        return [parse(rest)] if rest.strip(b"\r\n") else []

    @property
    def whole(self) -> bool:
        """Whether no event is open."""
        return not self._rest.strip(b"\r\n")


def _ends(data: bytes) -> Iterator[int]:
    """Yield where each event ends that is whole."""
    if b"\r" not in data:  # as nearly every server writes: a search for bytes is ten times faster than the pattern
        end = data.find(b"\n\n") + 2
        while end > 1:
            yield end
            end = data.find(b"\n\n", end) + 2
        return
    for blank in _BLANK.finditer(data):
        end = blank.end()
        if end == len(data) and data.endswith(b"\r"):
            return  # whether a LF follows decides where the event ends
        yield end


def parse(raw: bytes) -> SentEvent:
    """Read one event."""
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and b"\n" not in raw[:-2] and b"\r" not in raw:
        return SentEvent(raw, "", raw[6:-2])  # what nearly every event looks like
    name, data = "", []
    for line in _lines(raw):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return SentEvent(raw, name, b"\n".join(data))


def _lines(raw: bytes) -> Iterator[bytes]:
    yield from _LINE.split(raw)
