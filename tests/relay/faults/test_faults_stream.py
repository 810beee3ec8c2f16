"""What clients see, and what is counted, where an upstream fails or babbles after its first byte."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.health import Health
from gateway.relay.sse import MOST_BYTES, EventReader
from gateway.relay.tap import Tap
from tests.relay.faults.conftest import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    StartFake,
    StartFront,
    error_in,
    events_in,
    facing,
)
from tests.relay.faults.fakes import (
    DONE,
    STREAM,
    TOLD,
    Behaviour,
    Wire,
    answering,
    delta,
    event,
    message_stream,
    response_stream,
    streaming,
    typed,
)

SOON_S = 0.2
USAGE = {"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 1}
PARTS: dict[str, list[bytes]] = {
    CHAT: STREAM,
    COMPLETIONS: [event({"choices": [{"index": 0, "text": "one ", "finish_reason": None}]}), *STREAM[2:]],
    MESSAGES: message_stream(USAGE, {"output_tokens": 2}),
    RESPONSES: response_stream(),
}
GARBLED = b"zz\r\n\r\n\r\n"


async def break_the_chunks(wire: Wire) -> None:
    """Send what is no chunk."""
    await wire.raw(GARBLED)
    wire.writer.close()


async def never_end(wire: Wire) -> None:
    """Send an event that does not end."""
    await wire.chunk(b"data: " + b"x" * (MOST_BYTES + 9))


async def close(wire: Wire) -> None:
    """Close without ending the body."""
    wire.writer.close()


def saying(*parts: bytes) -> Behaviour:
    """Send some more, and end well as HTTP goes."""

    async def behave(wire: Wire) -> None:
        for part in parts:
            await wire.chunk(part)
        await wire.end()

    return behave


def once(ready: asyncio.Event, then: Behaviour) -> Behaviour:
    """Do something when what was sent before has reached the client."""

    async def behave(wire: Wire) -> None:
        await ready.wait()
        await then(wire)

    return behave


DEAD = {"error": {"message": "dead", "type": "server_error", "code": "gone"}}
OVERLOADED = typed("error", error={"type": "overloaded_error", "message": "Overloaded"})
ENDS: dict[str, tuple[Behaviour, str | None, int]] = {
    "hangs": (Wire.hang, "upstream_timeout", 504),
    "resets": (Wire.reset, "upstream_failed", 502),
    "closes": (close, "upstream_failed", 502),
    "ends too soon": (Wire.end, "upstream_failed", 502),
    "breaks its chunks": (break_the_chunks, "upstream_failed", 502),
    "never ends an event": (never_end, "upstream_failed", 502),
    "says an error": (saying(event(DEAD)), "gone", 502),
    "says an error and goes on": (saying(event(DEAD), *STREAM), "gone", 502),
    "says an error and then no more": (saying(event(DEAD).rstrip(b"\n")), "gone", 502),
    "is overloaded": (saying(OVERLOADED), None, 529),
    "says an old error": (saying(event({"object": "error", "message": "old", "code": 500})), None, 500),
    "says noise": (saying(b"data: \xff\xfe{\n\n"), "upstream_failed", 502),
    "says half an event": (
        saying(b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}'),
        "upstream_failed",
        502,
    ),
}


@pytest.mark.parametrize("path", PARTS)
@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_that_fails_ends_in_one_error(
    path: str, end: str, start_fake: StartFake, start_front: StartFront
) -> None:
    """What came goes to the client once, then one error in its API's shape; nobody else is asked; it counts."""
    behave, code, status = ENDS[end]
    begun = PARTS[path][:1] if path != MESSAGES else PARTS[path][:3]
    ready = asyncio.Event()
    bad, good = await start_fake("bad", streaming(begun, once(ready, behave))), await start_fake("good")
    times = {"idle_timeout": SOON_S} if behave is Wire.hang else {}
    front = await start_front(facing(bad, weight=1000.0, **times), facing(good))
    response = await front.ask(path, stream=True, max_tokens=5)
    assert (response.status, await response.content.readexactly(len(b"".join(begun)))) == (200, b"".join(begun))
    ready.set()
    told = [error_in(one) for one in events_in(await response.read())]
    errors = [one for one in told if one is not None]
    assert (len(errors), errors[-1]) == (1, told[-1])
    if path != MESSAGES:
        assert errors[0]["code"] == code
    assert (len(bad.received), len(good.received), front.relay.retries) == (1, 0, 0)
    record = await front.last()
    assert (record.outcome, record.status, record.upstream) == ("failed", status, "bad")
    replica = front.replica("bad")
    assert (replica.failures, replica.open, front.relay.fleet.router("m").loads.at("bad")) == (1, 0, 0)


async def test_a_responses_error_goes_on_counting(start_fake: StartFake, start_front: StartFront) -> None:
    """In the API whose events are numbered, the error has the next number."""
    fake = await start_fake("fake", streaming(response_stream()[:2], Wire.reset))
    body = await (await (await start_front(facing(fake))).ask(RESPONSES, stream=True)).read()
    told = error_in(events_in(body)[-1])
    assert (told["type"], told["sequence_number"]) == ("error", 2)


async def test_a_failed_response_passes_as_it_came(start_fake: StartFake, start_front: StartFront) -> None:
    """`response.failed` is that API's own end: nothing is added, and it counts as failed, with its usage."""
    parts = response_stream("response.failed", error={"code": "server_error", "message": "dead"})
    fake = await start_fake("fake", streaming(parts))
    front = await start_front(facing(fake))
    assert await (await front.ask(RESPONSES, stream=True)).read() == b"".join(parts)
    record = await front.last()
    assert (record.outcome, record.status, front.replica("fake").failures) == ("failed", 502, 1)
    assert record.prompt is not None and (record.prompt.prompt, record.prompt.read) == (100, 80)


async def test_a_failed_response_is_an_answer(start_fake: StartFake, start_front: StartFront) -> None:
    """A whole response that says of itself that it failed passes as it came, and counts as failed."""
    failed = {"object": "response", "status": "failed", "error": {"code": "server_error", "message": "dead"}}
    front = await start_front(facing(await start_fake("fake", answering(200, failed))))
    response = await front.ask(RESPONSES)
    assert (response.status, await response.json()) == (200, failed)
    assert ((await front.last()).outcome, front.replica("fake").failures) == ("failed", 1)


@pytest.mark.parametrize("path", PARTS)
@pytest.mark.parametrize(
    "after",
    [DONE, STREAM[0], b"garbage", event(DEAD), OVERLOADED, b"\n\n\n"],
    ids=["done", "text", "junk", "error", "typed", "lf"],
)
async def test_nothing_follows_the_end(path: str, after: bytes, start_fake: StartFake, start_front: StartFront) -> None:
    """What an upstream says after its last event reaches nobody, and the answer counts as finished."""
    whole = PARTS[path]
    for parts in ([*whole, after], [*whole[:-1], whole[-1] + after]):
        front = await start_front(facing(await start_fake("fake", streaming(parts))))
        body = await (await front.ask(path, stream=True, max_tokens=5, stream_options={"include_usage": True})).read()
        assert body == b"".join(whole)
        assert ((await front.last()).outcome, front.replica("fake").failures) == ("finished", 0)


@pytest.mark.parametrize("then", [Wire.hang, Wire.reset, close, break_the_chunks])
async def test_an_answer_that_has_ended_is_not_failed_by_its_connection(
    then: Behaviour, start_fake: StartFake, start_front: StartFront
) -> None:
    """After its last event a connection may hang or break: the client has its answer and hears no error."""
    ready, stream = asyncio.Event(), b"".join(STREAM)
    front = await start_front(facing(await start_fake("fake", streaming(STREAM, once(ready, then)))))
    response = await front.ask(stream=True, stream_options={"include_usage": True})
    assert await response.content.readexactly(len(stream)) == stream
    ready.set()
    assert await response.read() == b""
    assert ((await front.last()).outcome, front.replica("fake").failures) == ("finished", 0)


async def test_a_server_that_never_says_done(start_fake: StartFake, start_front: StartFront) -> None:
    """Where every choice said why it ended and the body ended well, that is the end; where one did not, it is not."""
    front = await start_front(facing(fake := await start_fake("fake", streaming(TOLD))))
    assert await (await front.ask(stream=True)).read() == b"".join(TOLD)
    assert (await front.last()).outcome == "finished"
    fake.behave = streaming([delta("a"), delta("b", index=1), delta(None, finish="stop")])
    assert error_in(events_in(await (await front.ask(stream=True, n=2)).read())[-1])["code"] == "upstream_failed"
    assert (await front.last()).outcome == "failed"


async def test_the_last_blank_line_may_be_missing(start_fake: StartFake, start_front: StartFront) -> None:
    """A last event without its blank line gets one."""
    front = await start_front(facing(await start_fake("fake", streaming([*TOLD, b"data: [DONE]"]))))
    assert await (await front.ask(stream=True)).read() == b"".join(TOLD) + DONE


TEXT = "a\u2028b\u2029c\u0085d\x0b"


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
async def test_lines_end_only_where_the_standard_says(
    end: bytes, size: int, start_fake: StartFake, start_front: StartFront
) -> None:
    """Text with odd separators arrives as it was sent, in any packets and with any line ends, and usage is seen."""
    stream = b"".join([delta(TEXT), *STREAM]).replace(b"\n", end)
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    front = await start_front(facing(await start_fake("fake", streaming(parts))))
    response = await front.ask(stream=True, stream_options={"include_usage": True})
    assert await response.read() == stream
    record = await front.last()
    assert record.prompt is not None and (record.prompt.read, record.generated) == (80, 2)


async def test_an_event_goes_on_as_soon_as_it_is_whole(start_fake: StartFake, start_front: StartFront) -> None:
    """With CR alone as line end nobody waits for what may come after it."""
    first, rest = (part.replace(b"\n", b"\r") for part in (TOLD[0], b"".join(STREAM[1:])))
    go_on = asyncio.Event()

    async def then(wire: Wire) -> None:
        await go_on.wait()
        await saying(rest)(wire)

    front = await start_front(facing(await start_fake("fake", streaming([first], then))))
    response = await front.ask(stream=True, stream_options={"include_usage": True})
    assert await response.content.readexactly(len(first)) == first
    go_on.set()
    assert await response.read() == rest


@pytest.mark.parametrize("noise", [b"data: \xff\xc0\n\n", b": ping\n\n", b"\n\n", b"id: 4\nretry: 9\n\n", b"data:\n\n"])
async def test_what_cannot_be_read_passes_as_it_came(
    noise: bytes, start_fake: StartFake, start_front: StartFront
) -> None:
    """Comments, noise and unknown fields are no error while the answer goes on."""
    parts = [noise, STREAM[0], noise, *STREAM[1:-1], noise, DONE]
    front = await start_front(facing(await start_fake("fake", streaming(parts))))
    response = await front.ask(stream=True, stream_options={"include_usage": True})
    assert await response.read() == b"".join(parts)
    assert (await front.last()).outcome == "finished"


@pytest.mark.parametrize("path", PARTS)
@pytest.mark.parametrize("then", [Wire.end, close])
async def test_a_stream_cut_at_every_byte(
    path: str, then: Behaviour, start_fake: StartFake, start_front: StartFront
) -> None:
    """Wherever it is cut, the client gets the whole events before the cut once, then one error or the answer's end."""
    parts = PARTS[path]
    stream, ends = b"".join(parts), [len(b"".join(parts[: place + 1])) for place in range(len(parts))]
    fake = await start_fake("fake")
    front = await start_front(facing(fake))
    finished = next(
        (end for end, part in zip(ends, parts, strict=True) if b'"finish_reason": "stop"' in part), len(stream)
    )
    for cut in range(ends[0], len(stream)):
        came, ready = max(end for end in ends if end <= cut), asyncio.Event()
        fake.behave = streaming([stream[:cut]], once(ready, then))
        front.replica("fake").health = Health(asyncio.get_running_loop().time)
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if path in {CHAT, COMPLETIONS} else {}
        response = await front.ask(path, stream=True, max_tokens=5, **options)
        assert await response.content.readexactly(came) == stream[:came]
        ready.set()
        rest = await response.read()
        outcome = (await front.last()).outcome
        if then is Wire.end and (cut >= len(stream) - 2 or cut >= finished):
            assert (rest, outcome) == (stream[came:] if cut >= len(stream) - 2 else b"", "finished")
        else:
            (event,) = events_in(rest)
            assert (error_in(event) is not None, outcome) == (True, "failed")


CHUNKS = st.lists(
    st.one_of(
        st.text(max_size=30).map(delta),
        st.sampled_from([b": ping\n\n", delta(None, usage={"prompt_tokens": 9}), event({"choices": [], "x": 1})]),
    ),
    max_size=6,
)


@given(chunks=CHUNKS, end=st.sampled_from([b"\n", b"\r", b"\r\n"]), data=st.data())
def test_packets_change_nothing(chunks: list[bytes], end: bytes, data: st.DataObject) -> None:
    """However a valid stream is split, the same bytes go on and the same is learnt."""
    stream = b"".join([*chunks, *STREAM]).replace(b"\n", end)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    tap, reader, passed = Tap("chat"), EventReader(), b""
    for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        passed += b"".join(one.raw for one in reader.feed(stream[begin:stop]) if tap.event(one))
    assert passed == stream
    assert (tap.ended, tap.finished, tap.error, tap.reported.prompt, tap.reported.read) == (True, True, None, 100, 80)


@given(st.binary(max_size=200), st.booleans())
def test_noise_teaches_nothing_and_breaks_nothing(noise: bytes, typed_: bool) -> None:
    """Random bytes as a stream or as an answer raise nothing, and what passes of them is what came."""
    stream = (b"event: error\n" if typed_ else b"") + b"data: " + noise
    for endpoint in ("chat", "responses", "messages"):
        tap, reader = Tap(endpoint), EventReader()
        passed = b"".join(one.raw for one in reader.feed(stream) if tap.event(one))
        tap.whole(noise)
        assert passed in stream and tap.reported.prompt is None
