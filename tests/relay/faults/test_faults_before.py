"""What clients see, and what is counted, where an upstream fails before it has answered."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.relay.sse import MOST_BYTES
from gateway.relay.upstream import Upstream
from tests.relay.faults.conftest import CHAT, MESSAGES, RESPONSES, StartFake, StartFront, facing
from tests.relay.faults.fakes import JSON, SSE, Behaviour, Fake, Wire, answering, event, sending, streaming, well

HTML = ("Content-Type", "text/html")
PAGE = b"<html><body><h1>Something</h1></body></html>"
SOON_S = 0.2


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, and what a client gets where there is no other upstream."""

    name: str
    behave: Behaviour | None  # None: nobody listens
    status: int
    code: str | None
    message: str = ""  # "": any
    fault: bool = True  # whether it counts against the upstream
    again: bool = True  # whether another upstream is asked
    streamed: tuple[bool, ...] = (False, True)

    def __str__(self) -> str:
        """Name the case."""
        return self.name


async def reset_after_headers(wire: Wire) -> None:
    """Begin an answer and break the connection."""
    await wire.head(200, SSE if wire.received.json.get("stream") else JSON)
    await wire.reset()


async def hang_after_headers(wire: Wire) -> None:
    """Begin an answer and say no more."""
    await wire.head(200, SSE if wire.received.json.get("stream") else JSON)
    await wire.hang()


async def drip_a_refusal(wire: Wire) -> None:
    """Send a 400 byte by byte."""
    await wire.head(400, JSON)
    for byte in json.dumps({"error": {"message": "too long", "code": "context_length_exceeded"}}).encode():
        await wire.chunk(bytes([byte]))
    await wire.end()


def error(message: str, **fields: Any) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}}


ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": "messages: at least one"}}
DETAIL = {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Field required", "type": "missing"}]}
OLD = {"object": "error", "message": "no such model", "type": "NotFoundError", "param": None, "code": 404}
CUT = b'{"id": "c1", "choices": [{"index": 0, "mess'
FAILED, LATE = "upstream_failed", "upstream_timeout"
STREAM, BODY = (True,), (False,)

ROWS = [
    Row("refused", None, 502, FAILED),
    Row("reset before headers", Wire.reset, 502, FAILED),
    Row("reset after headers", reset_after_headers, 502, FAILED),
    Row("hangs before headers", Wire.hang, 504, LATE),
    Row("hangs after headers", hang_after_headers, 504, LATE),
    Row("closes at once", sending(b""), 502, FAILED),
    Row("no HTTP", sending(b"SSH-2.0-OpenSSH_9.9\r\n"), 502, FAILED),
    Row("odd status line", sending(b"HTTP/1.1 banana\r\n\r\n"), 502, FAILED),
    Row("endless header", sending(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"), 502, FAILED),
    Row("400", answering(400, error("bad", code="c", param="p")), 400, "c", "bad", fault=False, again=False),
    Row("400 drip", drip_a_refusal, 400, "context_length_exceeded", "too long", fault=False, again=False),
    Row("400 Anthropic", answering(400, ANTHROPIC), 400, None, "messages: at least one", fault=False, again=False),
    Row("400 page", answering(400, PAGE, HTML), 400, None, "status 400", fault=False, again=False),
    Row("400 words", answering(400, b"no such LoRA", HTML), 400, None, "no such LoRA", fault=False, again=False),
    Row("400 noise", answering(400, b"\xff\x00\x01"), 400, None, "status 400", fault=False, again=False),
    Row("404 old", answering(404, OLD), 404, None, "no such model", fault=False, again=False),
    Row("413", answering(413, error("large")), 413, None, "large", fault=False, again=False),
    Row("422", answering(422, DETAIL), 422, None, "messages.0.role: Field required", fault=False, again=False),
    Row("422 text", answering(422, {"detail": "Bad"}), 422, None, "Bad", fault=False, again=False),
    Row("401", answering(401, error("Incorrect key sk-12")), 502, "upstream_refused_key", "the gateway's key"),
    Row("403", answering(403, error("not you")), 502, "upstream_refused_key", "the gateway's key"),
    Row("429", answering(429, error("slow down", type="tokens"), ("Retry-After", "7")), 429, None, "slow down"),
    Row("500", answering(500, error("out of memory")), 500, None, "out of memory"),
    Row("502 page", answering(502, PAGE, HTML), 502, None, "status 502"),
    Row("503", answering(503, error("loading"), ("Retry-After", "inf")), 503, None, "loading"),
    Row("529", answering(529, error("overloaded")), 529, None, "overloaded"),
    Row("999", answering(999, b""), 502, None, "status 502"),
    Row("redirect", answering(307, b"", ("Location", "/elsewhere")), 502, None, "status 502"),
    Row("204", answering(204, b""), 502, None, "status 502"),
    Row("garbage in a 200", answering(200, b"\x00\xff\x13garbage"), 502, FAILED),
    Row("truncated JSON", answering(200, CUT), 502, FAILED),
    Row("a list in a 200", answering(200, []), 502, FAILED),
    Row("nested without end", answering(200, b'{"usage": ' + b"[" * 200_000), 502, FAILED),
    Row("error in a 200", answering(200, error("no memory", code=503)), 503, None, "no memory"),
    Row("refusal in a 200", answering(200, OLD), 404, None, "no such model", fault=False, again=False),
    Row("length too long", sending(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + CUT), 502, FAILED),
    Row("length too short", sending(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + CUT), 502, FAILED),
    Row("no gzip", answering(200, b"plain", ("Content-Encoding", "gzip")), 502, FAILED),
    Row("cut gzip", answering(200, zlib.compress(CUT)[:9], ("Content-Encoding", "deflate")), 502, FAILED),
    Row("stream for a body", streaming([event({"choices": []})]), 502, FAILED, streamed=BODY),
    Row("empty stream", streaming([]), 502, FAILED, streamed=STREAM),
    Row("half an event", streaming([b'data: {"cho']), 502, FAILED, streamed=STREAM),
    Row("error event", streaming([event(error("dead"))]), 400, None, "dead", fault=False, again=False, streamed=STREAM),
    Row("failed event", streaming([event({"error": "dead"})]), 502, None, "dead", streamed=STREAM),
    Row("unreadable error event", streaming([event("oops", "error")]), 502, None, "oops", streamed=STREAM),
    Row("enormous event", streaming([b"data: ", b"x" * (MOST_BYTES + 9)]), 502, FAILED, streamed=STREAM),
]
CASES = [pytest.param(row, streamed, id=f"{row}-{streamed}") for row in ROWS for streamed in row.streamed]


async def placed(row: Row, start_fake: StartFake) -> tuple[Fake, Upstream]:
    """A fake that fails so, and what is written of it; it is asked first, for it is thought to be fast."""
    fake = await start_fake("bad", row.behave)
    if row.behave is None:
        await fake.__aexit__()
    times = {"first_byte_timeout": SOON_S} if row.code == LATE else {}
    return fake, facing(fake, weight=1000.0, **times)


@pytest.mark.parametrize(("row", "streamed"), CASES)
async def test_alone(row: Row, streamed: bool, start_fake: StartFake, start_front: StartFront) -> None:
    """Without another upstream the client gets one error by status, in its API's shape, and it is counted once."""
    fake, upstream = await placed(row, start_fake)
    front = await start_front(upstream)
    response = await front.ask(stream=streamed)
    told = (await response.json())["error"]
    assert (response.status, told["code"]) == (row.status, row.code)
    assert row.message in told["message"] and set(told) == {"message", "type", "param", "code"}
    assert "sk-12" not in told["message"] and "Traceback" not in told["message"]
    record = await front.last()
    assert (record.status, record.outcome) == (row.status, "refused" if row.status < 500 else "failed")
    assert (record.upstream, record.prompt, record.first_token_s) == ("bad", None, None)
    replica = front.replica("bad")
    assert (replica.requests, replica.failures, replica.open) == (1, int(row.fault), 0)
    assert front.relay.fleet.router("m").loads.at("bad") == 0
    assert front.relay.fleet.router("m").residency.blocks("bad") == 0
    assert len(fake.received) == (0 if row.behave is None else 1)


@pytest.mark.parametrize(("row", "streamed"), CASES)
async def test_with_another(row: Row, streamed: bool, start_fake: StartFake, start_front: StartFront) -> None:
    """Where it is safe the next upstream gives one clean answer; where it is not, nobody else is asked."""
    good = await start_fake("good")
    _, upstream = await placed(row, start_fake)
    front = await start_front(upstream, facing(good))
    response = await front.ask(stream=streamed)
    again = row.again and (streamed or row.code != LATE)  # a whole answer may be late because it is long
    assert len(good.received) == int(again)
    assert front.relay.retries == int(again)
    assert response.status == (200 if again else row.status)
    body = await response.read()
    record = await front.last()
    if not again:
        assert record.upstream == "bad"
        return
    assert body.count(b"one ") == 1 and b'"error"' not in body
    assert (record.upstream, record.outcome, record.status) == ("good", "finished", 200)
    assert response.headers["x-keepwarm-upstream"] == "good"
    assert (front.replica("bad").failures, front.replica("good").failures) == (1, 0)


async def test_retry_after_is_passed_on(start_fake: StartFake, start_front: StartFront) -> None:
    """How long an upstream asks to be left alone reaches the client; what is no time does not."""
    told = {"7": "7", "0": "1", "inf": None, "nan": None, "-3": None, "1e400": None, "soon": None, "2.4": "2"}
    front = await start_front(facing(fake := await start_fake()))
    for given, seen in told.items():
        fake.behave = answering(429, error("slow down"), ("Retry-After", given))
        front.replica("fake").health.breaker.succeed()
        assert (await front.ask()).headers.get("Retry-After") == seen


@pytest.mark.parametrize(
    ("path", "kind"), [(CHAT, "server_error"), (RESPONSES, "server_error"), (MESSAGES, "api_error")]
)
async def test_each_api_has_its_own_shape(path: str, kind: str, start_fake: StartFake, start_front: StartFront) -> None:
    """A failure is told in the words of the API that was called."""
    fake = await start_fake("fake", sending(b""))
    front = await start_front(facing(fake))
    response = await front.ask(path, max_tokens=5)
    told = await response.json()
    assert (response.status, told["error"]["type"]) == (502, kind)
    assert (told.get("type") == "error") is (path == MESSAGES)


@pytest.mark.parametrize(
    ("behave", "again"),
    [
        (None, True),
        (answering(503, error("loading")), True),
        (answering(429, error("slow down")), True),
        (answering(500, error("broken")), False),
        (sending(b""), False),
        (Wire.hang, False),
    ],
)
async def test_what_may_have_left_something_behind_is_not_sent_again(
    behave: Behaviour | None, again: bool, start_fake: StartFake, start_front: StartFront
) -> None:
    """A response that is to be stored goes to another upstream only where the first cannot have stored it."""
    good = await start_fake("good")
    code = LATE if behave is Wire.hang else None
    _, upstream = await placed(Row("", behave, 0, code), start_fake)
    front = await start_front(upstream, facing(good))
    response = await front.ask(RESPONSES)
    assert (response.status == 200, len(good.received)) == (again, int(again))


async def test_the_log_says_who_failed_and_not_what_was_said(start_fake: StartFake, start_front: StartFront) -> None:
    """A failing upstream is no bug of the gateway's, and neither prompt nor its words nor a key get into the log."""
    behave = answering(500, error("your prompt was: hello"))
    fake = await start_fake("fake", behave)
    front = await start_front(facing(fake, kind="openai", key_env="THEIR_KEY"), THEIR_KEY="sk-theirs")
    with capture_logs() as lines:
        assert (await front.ask()).status == 500
    assert {line["event"] for line in lines} == {"upstream_failed", "request"}
    assert not any(said in str(lines) for said in ("hello", "sk-theirs"))


async def test_503_then_well(start_fake: StartFake, start_front: StartFront) -> None:
    """An upstream that refuses once is asked again by the next request."""
    front = await start_front(facing(fake := await start_fake()))
    fake.plans = [answering(503, error("loading")), well]
    assert [(await front.ask()).status for _ in range(2)] == [503, 200]
    assert (front.replica("fake").failures, front.replica("fake").health.open) == (1, True)


async def test_a_circuit_opens_and_one_request_tries(start_fake: StartFake, start_front: StartFront) -> None:
    """After five failures nobody is sent there, until the rest is over and one request finds it well."""
    now = 0.0
    front = await start_front(facing(fake := await start_fake()), clock=lambda: now)
    fake.plans = [answering(500, error("broken"))] * 5
    assert [(await front.ask()).status for _ in range(6)] == [500] * 5 + [503]
    response = await front.ask()
    assert ((await response.json())["error"]["code"], response.headers["Retry-After"]) == ("no_upstream", "5")
    assert len(fake.received) == 5
    now = 5.0
    assert [(await front.ask()).status for _ in range(2)] == [200, 200]


async def test_a_refusal_that_ends_the_trial_closes_the_circuit(start_fake: StartFake, start_front: StartFront) -> None:
    """A 400 is an answer: whoever gives one is well."""
    now = 0.0
    front = await start_front(facing(fake := await start_fake()), clock=lambda: now)
    fake.plans = [*[answering(500, error("broken"))] * 5, answering(400, error("bad"))]
    for _ in range(5):
        await front.ask()
    now = 5.0
    assert [(await front.ask()).status for _ in range(2)] == [400, 200]
