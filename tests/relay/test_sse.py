"""Events are cut at line ends and nowhere else, however packets fall."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.sse import MOST_BYTES, EventReader, EventTooLong

ENDS = (b"\n", b"\r", b"\r\n")


def slow(stream: bytes) -> list[tuple[str, bytes]]:
    """The whole stream at once, line by line, as the standard words it."""
    told: list[tuple[str, bytes]] = []
    name, seen = "", False
    data: list[bytes] = []
    for line in re.split(rb"\r\n|\n|\r", stream):
        if not line:
            if seen:
                told.append((name, b"\n".join(data)))
            name, data, seen = "", [], False
            continue
        seen = True
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode()
    return told


def read(stream: bytes, cuts: list[int]) -> tuple[list[tuple[str, bytes]], bytes]:
    """The events of a stream that came in pieces, and their bytes."""
    reader, events = EventReader(), []
    borders = [0, *sorted(cuts), len(stream)]
    for begin, end in pairwise(borders):
        events += reader.feed(stream[begin:end])
    events += reader.end()
    said = [(event.name, event.data) for event in events if event.raw.strip(b"\r\n")]
    return said, b"".join(event.raw for event in events)


STREAM = (
    b'data: {"a": 1}\n\nevent: ping\ndata: {}\n\n: a comment\n\ndata: one\r\ndata: two\r\n\r\n'
    + 'data: "a\u2028b\u0085c"\r\r'.encode()
    + b"id: 7\nevent:x\ndata:y\n\ndata: [DONE]\n\n"
)


def test_every_cut_gives_the_same_events() -> None:
    """A stream cut at each byte position in turn says the same, and loses no byte."""
    expected = slow(STREAM)
    assert ("", '"a\u2028b\u0085c"'.encode()) in expected
    for cut in range(len(STREAM) + 1):
        assert read(STREAM, [cut]) == (expected, STREAM)


def test_one_byte_at_a_time_gives_the_same_events() -> None:
    """Packets of one byte, CR and LF apart."""
    assert read(STREAM, list(range(len(STREAM)))) == (slow(STREAM), STREAM)


@given(st.data())
def test_any_lines_cut_anywhere(data: st.DataObject) -> None:
    """Random lines with random ends, cut at random places, against the slow truth."""
    lines = data.draw(st.lists(st.sampled_from([b"data: x", b"data:", b"event: e", b": c", b"", b"z"]), max_size=12))
    stream = b"".join(line + data.draw(st.sampled_from(ENDS)) for line in lines) + b"\n\n"
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    said, raw = read(stream, cuts)
    assert said == slow(stream)
    assert stream.startswith(raw)
    assert not stream[len(raw) :].strip(b"\r\n")


def test_an_event_that_does_not_end_is_refused() -> None:
    """Memory for one event is bounded."""
    reader = EventReader()
    assert reader.feed(b"x" * MOST_BYTES) == []
    with pytest.raises(EventTooLong, match="more than"):
        reader.feed(b"x")
