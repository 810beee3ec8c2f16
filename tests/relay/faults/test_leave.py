"""Clients that leave, and clients that do not read."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.relay.faults.conftest import CHAT, MESSAGES, RESPONSES, Front, StartFake, StartFront, asked, facing
from tests.relay.faults.fakes import (
    SSE,
    Behaviour,
    Fake,
    Wire,
    answering,
    delta,
    message_stream,
    response_stream,
    streaming,
)

CLIENTS = 50
PATIENCE_S = 20.0
STARTED = {
    CHAT: [delta("a"), delta("b"), delta("c")],
    MESSAGES: message_stream({"input_tokens": 9}, {})[:3],
    RESPONSES: response_stream()[:2],
}


async def flood(wire: Wire) -> None:
    """Send text without end."""
    await wire.head(200, SSE)
    while True:
        await wire.chunk(delta("x" * 10_000))


async def half_an_answer(wire: Wire) -> None:
    """Begin a whole answer and say no more."""
    await wire.head(200, ("Content-Type", "application/json"))
    await wire.chunk(b'{"choices": ')
    await wire.hang()


async def leave_after(front: Front, path: str, read: int, *, streamed: bool, fake: Fake) -> None:
    """Ask, read so many bytes, and close the socket."""
    asking = asyncio.create_task(front.ask(path, stream=streamed, max_tokens=5000))
    if read:
        response = await asking
        await response.content.readexactly(read)
        response.close()
    else:
        await fake.arrived.acquire()
        asking.cancel()
        await asyncio.wait([asking])


async def all_seen(fake: Fake, front: Front) -> None:
    """Wait until the fake has seen every connection close, and every exchange is told."""
    for _ in range(CLIENTS):
        await fake.left.acquire()
        await front.kept.told.acquire()


CASES: list[tuple[str, str, Behaviour, int, bool]] = [
    ("before the headers", CHAT, Wire.hang, 0, False),
    ("before the headers of a stream", CHAT, Wire.hang, 0, True),
    ("in a whole answer", MESSAGES, half_an_answer, 0, False),
    ("in a flood", CHAT, flood, 40_000, True),
    *(
        (f"in a stream of {path}", path, streaming(STARTED[path], Wire.hang), len(b"".join(STARTED[path])), True)
        for path in STARTED
    ),
]


@pytest.mark.parametrize(
    ("path", "behave", "read", "streamed"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
async def test_who_leaves_is_heard_of_upstream(
    path: str, behave: Behaviour, read: int, streamed: bool, start_fake: StartFake, start_front: StartFront
) -> None:
    """Fifty clients leave: the upstream sees each connection close, nothing counts as a failure, nothing is left."""
    fake = await start_fake("fake", behave)
    front = await start_front(facing(fake))
    before = asyncio.all_tasks()
    await asyncio.gather(*(leave_after(front, path, read, streamed=streamed, fake=fake) for _ in range(CLIENTS)))
    await asyncio.wait_for(all_seen(fake, front), PATIENCE_S)
    await asyncio.wait_for(front.relay.drained(), PATIENCE_S)
    assert {(one.outcome, one.status) for one in front.kept.records} == {("cancelled", 499)}
    assert (len(front.kept.records), len(fake.received)) == (CLIENTS, CLIENTS)
    replica, router = front.replica("fake"), front.relay.fleet.router("m")
    assert (replica.open, replica.failures, replica.health.well, replica.health.open) == (0, 0, True, True)
    assert (router.loads.at("fake"), router.loads.open("fake")) == (0, 0)
    assert front.relay.retries == 0
    if left := asyncio.all_tasks() - before:
        _, pending = await asyncio.wait(left, timeout=PATIENCE_S)
        assert pending == set()


async def test_leaving_before_an_answer_leaves_no_belief(start_fake: StartFake, start_front: StartFront) -> None:
    """A prompt that nobody waited for may not have been computed: it is not believed to be anywhere."""
    fake = await start_fake("fake", Wire.hang)
    front = await start_front(facing(fake))
    await leave_after(front, CHAT, 0, streamed=True, fake=fake)
    assert (await front.last()).outcome == "cancelled"
    assert front.relay.fleet.router("m").residency.blocks("fake") == 0


async def test_a_client_that_leaves_during_a_trial_decides_nothing(
    start_fake: StartFake, start_front: StartFront
) -> None:
    """The one request that tries an upstream again may be left: the next one after the rest tries anew."""
    now = 0.0
    fake = await start_fake("fake", answering(500, {}))
    front = await start_front(facing(fake), clock=lambda: now)
    for _ in range(5):
        await front.ask()
        await fake.arrived.acquire()
        await front.last()
    fake.plans, now = [Wire.hang], 5.0
    await leave_after(front, CHAT, 0, streamed=False, fake=fake)
    assert (await front.last()).outcome == "cancelled"
    assert (await front.ask()).status == 503
    fake.behave, now = streaming([delta("a", finish="stop")]), 10.0
    assert (await front.ask(stream=True)).status == 200


# ---- clients that do not read ----

PIECE = delta("x" * (1 << 16))
PIECES = 1024  # 64 MiB and more
BUFFERS = 32 << 20  # what four socket buffers and the gateway may hold together


class Measured:
    """Sends many pieces and notices when the other side takes no more."""

    def __init__(self) -> None:
        self.taken = 0
        self.stalled = asyncio.Event()

    async def __call__(self, wire: Wire) -> None:
        await wire.head(200, SSE)
        for _ in range(PIECES):
            sending = asyncio.ensure_future(wire.chunk(PIECE))
            done, _pending = await asyncio.wait([sending], timeout=1.0)
            if not done:
                self.stalled.set()
            await sending
            self.taken += len(PIECE)
        await wire.chunk(delta(None, finish="stop"))
        await wire.end()


async def test_who_does_not_read_stops_the_upstream(start_fake: StartFake, start_front: StartFront) -> None:
    """A client that reads nothing stops the reading from the upstream; when it goes on, it gets all of it."""
    measured = Measured()
    front = await start_front(facing(await start_fake("fake", measured)))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (front.client.host, front.client.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    body = json.dumps(asked(CHAT, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await asyncio.wait_for(measured.stalled.wait(), PATIENCE_S)
    assert measured.taken < BUFFERS
    got = 0
    while data := await reader.read(1 << 20):
        got += data.count(b"x" * 100)
    assert got > 0 and measured.taken == PIECES * len(PIECE)
    assert (await front.last()).outcome == "finished"
    writer.close()
