"""Server-sent events read beside their bytes: where each ends, and what it says (WHATWG HTML, section 9.2).

Owns what has come of an event that is not whole yet. Rules: lines end at LF, CR or CRLF and at nothing else, wherever
packets are cut; the bytes of all events, in order, are the bytes that came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.errors import UpstreamFailed

MOST_BYTES: Final = 16 << 20  # of one event
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_BLANK: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LONGEST_BLANK: Final = 4


class EventTooLong(UpstreamFailed):
    """An event does not end."""


class SentEvent(NamedTuple):
    """One event: its bytes as they came, blank line included, its name and its data."""

    raw: bytes
    name: str
    data: bytes


class EventReader:
    """Cuts a stream of bytes into events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_cr = False  # the last event ended in a CR: a LF that comes next belongs to that line end

    def feed(self, data: bytes) -> list[SentEvent]:
        """Take bytes; return the events that are whole now. Raises EventTooLong."""
        events = []
        if self._after_cr and data:
            self._after_cr = False
            if data.startswith(b"\n"):
                events.append(SentEvent(b"\n", "", b""))
                data = data[1:]
        looked_at = max(0, len(self._rest) - _LONGEST_BLANK)
        if not self._rest:
            at = self._cut(data, 0, events)
            self._rest += data[at:]
        else:
            self._rest += data
            del self._rest[: self._cut(self._rest, looked_at, events)]
        if len(self._rest) > MOST_BYTES:
            raise EventTooLong(f"The upstream sent an event of more than {MOST_BYTES} bytes.")
        return events

    def _cut(self, data: bytes | bytearray, looked_at: int, events: list[SentEvent]) -> int:
        """Add the whole events of `data`, none of which ends before `looked_at`. Return where the last one ends."""
        at = 0
        for end in _ends(data, looked_at):
            events.append(parse(bytes(data[at:end])))
            at = end
        self._after_cr = 0 < at == len(data) and data.endswith(b"\r")
        return at

    def end(self) -> list[SentEvent]:
        """Hear that nothing more comes. Return what was still open, if it says anything; it may be cut short."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [parse(rest)] if rest.strip(b"\r\n") else []

    @property
    def whole(self) -> bool:
        """Whether no event is open."""
        return not self._rest.strip(b"\r\n")


def _ends(data: bytes | bytearray, at: int) -> Iterator[int]:
    """Yield where each blank line ends that ends after `at`."""
    if data.find(b"\r", at) >= 0:
        yield from (blank.end() for blank in _BLANK.finditer(data, at))
        return
    while (at := data.find(b"\n\n", at) + 2) > 1:  # as nearly every server writes; ten times faster than the pattern
        yield at


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
