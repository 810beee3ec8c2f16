"""How relayed requests travel over HTTP: encodings, preflights, methods, framing, bodies of every size."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator

import pytest

from gateway.keyring import Key, Keyring
from tests.gateway.wire import ANSWERING, CHAT, body, refusal
from tests.relay.conftest import Front, StartFake, StartFront

ORIGIN = "https://page.example"


@pytest.mark.parametrize("path", [one for one in ANSWERING if one == CHAT or one.endswith("completions")])
async def test_a_packed_body_goes_up_plain(front: StartFront, fake: StartFake, path: str) -> None:
    """Plain, named plain and gzip reach the upstream as the same bytes, with their own length and no encoding."""
    a = await fake("a")
    gateway = await front([a.upstream(salt=False)])
    plain = json.dumps(body(path, "hello " * 2000, model="m")).encode()
    for encoding, data in (("", plain), ("identity", plain), ("gzip", gzip.compress(plain))):
        assert (await gateway.post(path, data, **({"Content-Encoding": encoding} if encoding else {}))).status == 200
    assert [sent for _, sent in a.seen] == [plain] * 3
    for headers, _ in a.seen:
        assert (headers["content-length"], "content-encoding" in headers) == (str(len(plain)), False)


async def test_a_packed_body_is_the_same_prefix(front: StartFront, fake: StartFake) -> None:
    """Routing sees a gzip body as the prompt that the plain one was: it goes where that went, captured."""
    gateway = await front([(await fake(name)).upstream() for name in ("a", "b", "c", "d")])
    plain = json.dumps(body(CHAT, "hello " * 2000, model="m")).encode()
    first = await gateway.post(CHAT, plain)
    second = await gateway.post(CHAT, gzip.compress(plain), **{"Content-Encoding": "gzip"})
    assert first.headers["x-keepwarm-upstream"] == second.headers["x-keepwarm-upstream"]
    chosen = (await gateway.upstreams())[first.headers["x-keepwarm-upstream"]]
    assert (chosen["requests"], chosen["captured_tokens"] > 500) == (2, True)


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [("x-unknown", b"{}", 415), ("gzip", b"not gzip", 400), ("gzip", gzip.compress(b'{"model":"m"}' * 99)[:20], 400)],
)
async def test_a_body_that_cannot_be_unpacked_goes_nowhere(
    front: StartFront, fake: StartFake, encoding: str, data: bytes, status: int
) -> None:
    """An unknown or broken encoding is refused here and no upstream hears of it."""
    a = await fake("a")
    gateway = await front([a.upstream()])
    response = await gateway.post(CHAT, data, **{"Content-Encoding": encoding})
    assert ((await refusal(response, CHAT))[0], a.seen) == (status, [])


async def test_a_preflight_needs_no_key_and_no_upstream(front: StartFront, fake: StartFake) -> None:
    """Browsers are answered here: 204 for an allowed origin, 403 for another; the real request needs the key."""
    a = await fake("a")
    ring = Keyring((Key(id="one", sha256=hashlib.sha256(b"k3y").hexdigest(), tenant="t"),))
    gateway = await front([a.upstream()], keyring=ring, cors_origins=frozenset({ORIGIN}))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, status in ((ORIGIN, 204), ("https://other.example", 403)):
        assert (await gateway.serving.options(CHAT, headers={**asked, "Origin": origin})).status == status
    keyless = await gateway.serving.post(CHAT, json=body(CHAT, model="m"), headers={"Origin": ORIGIN})
    assert (keyless.status, keyless.headers["Access-Control-Allow-Origin"], a.seen) == (401, ORIGIN, [])
    keyed = await gateway.serving.post(
        CHAT, json=body(CHAT, model="m"), headers={"Origin": ORIGIN, "Authorization": "Bearer k3y"}
    )
    assert (keyed.status, keyed.headers["Access-Control-Allow-Origin"]) == (200, ORIGIN)
    assert "k3y" not in json.dumps(a.seen[0][0])


async def test_methods_and_addresses(front: StartFront, fake: StartFake) -> None:
    """HEAD is GET without a body, a wrong method is 405 with Allow, a slash at the end is 404; none goes up."""
    a = await fake("a")
    gateway = await front([a.upstream()])
    for path in ("/health", "/ready", "/v1/models", "/v1/models/m"):
        get, head = [await gateway.serving.request(method, path) for method in ("GET", "HEAD")]
        assert (head.status, head.headers["Content-Length"], await head.read()) == (
            get.status,
            get.headers["Content-Length"],
            b"",
        )
    wrong = await gateway.serving.get(CHAT)
    assert (wrong.status, "POST" in wrong.headers["Allow"].split(",")) == (405, True)
    slash = await gateway.serving.post(f"{CHAT}/", json=body(CHAT, model="m"), allow_redirects=False)
    assert (slash.status, a.seen) == (404, [])


async def head_of(gateway: Front, text: bytes, more: bytes = b"") -> list[str]:
    """Send bytes on a connection of their own, and `more` once the first line has come; return the lines that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.serving.port)
    try:
        writer.write(text)
        lines = [(await asyncio.wait_for(reader.readline(), 10)).decode().strip()]
        if more:
            await reader.readline()
            writer.write(more)
            lines.append((await asyncio.wait_for(reader.readline(), 10)).decode().strip())
        return lines
    finally:
        writer.close()


async def test_two_megabytes_wait_for_100_continue(front: StartFront, fake: StartFake) -> None:
    """A client that waits to be told to go on is told so, and the upstream gets its body without that header."""
    a = await fake("a")
    gateway = await front([a.upstream(salt=False)])
    data = json.dumps(body(CHAT, "x" * (2 << 20), model="m")).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(data)}\r\n\r\n"
    assert await head_of(gateway, head.encode(), data) == ["HTTP/1.1 100 Continue", "HTTP/1.1 200 OK"]
    ((headers, sent),) = a.seen
    assert (sent == data, "expect" in headers) == (True, False)


async def test_a_body_over_the_limit_goes_nowhere(front: StartFront, fake: StartFake) -> None:
    """It is refused by its declared length before it is sent, and packed by what it swells to."""
    a = await fake("a")
    gateway = await front([a.upstream()], max_body=1000)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\n{{"
    assert await head_of(gateway, head.encode()) == ["HTTP/1.1 413 Request Entity Too Large"]
    bomb = gzip.compress(json.dumps(body(CHAT, "x" * 100_000, model="m")).encode())
    assert len(bomb) < 1000
    assert (await gateway.post(CHAT, bomb, **{"Content-Encoding": "gzip"})).status == 413
    assert a.seen == []


async def test_a_body_in_chunks_goes_up_with_a_length(front: StartFront, fake: StartFake) -> None:
    """Chunked framing ends at the gateway: the upstream gets the same bytes and their length."""
    a = await fake("a")
    gateway = await front([a.upstream(salt=False)])
    plain = json.dumps(body(CHAT, model="m")).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(plain), 7):
            yield plain[at : at + 7]

    assert (await gateway.serving.post(CHAT, data=chunks())).status == 200
    ((headers, sent),) = a.seen
    assert (sent, headers["content-length"], "transfer-encoding" in headers) == (plain, str(len(plain)), False)
