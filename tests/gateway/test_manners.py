"""How the gateway speaks HTTP: encodings, preflights, wrong addresses and methods, bodies of every size and framing."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from backports import zstd

from gateway.app import build_serving_app
from gateway.config import Settings
from gateway.house import build_house
from gateway.keyring import Key, Keyring
from prefix_store.sqlite_ledger import SqliteLedger
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.scripted import Script, ScriptedBackend
from tests.gateway.wire import ANSWERING, CHAT, COMPLETIONS, EVERY, MESSAGES, body, is_anthropic, refusal

ORIGIN = "https://page.example"
VERSION = {"anthropic-version": "2023-06-01"}
PACKED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}


async def post(gateway: Gateway, path: str, data: bytes, **headers: str) -> Any:
    """Send these bytes as they are."""
    return await gateway.serving.post(path, data=io.BytesIO(data), headers=headers)


async def raw(gateway: Gateway, text: bytes) -> tuple[int, bytes]:
    """Send bytes on a connection of their own; return status and body of the first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.serving.port)
    try:
        writer.write(text)
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
        length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length:"))
        return int(head[0].split(" ")[1]), await asyncio.wait_for(reader.readexactly(length), 10)
    finally:
        writer.close()


@pytest.mark.parametrize("path", ANSWERING)
async def test_every_encoding_is_the_same_prompt(gateway: Gateway, path: str) -> None:
    """Plain, named plain, gzip, deflate and zstd bodies reach the engine as the same tokens."""
    plain = json.dumps(body(path, "hello " * 50)).encode()
    said = [("", plain), ("identity", plain), *((name, pack(plain)) for name, pack in PACKED.items())]
    for encoding, data in said:
        headers = {"Content-Encoding": encoding} if encoding else {}
        assert (await post(gateway, path, data, **headers)).status == 200
    assert len(gateway.backend.submitted) == len(said)
    assert len({(submit.tokens, submit.rendering) for submit in gateway.backend.submitted}) == 1


@pytest.mark.parametrize("path", EVERY)
async def test_an_unknown_encoding_is_415(gateway: Gateway, path: str) -> None:
    """An encoding that nobody reads is refused in the API's envelope, even on a body that would be fine plain."""
    response = await post(gateway, path, json.dumps(body(path)).encode(), **{"Content-Encoding": "x-unknown"})
    assert (await refusal(response, path))[0] == 415
    assert gateway.backend.submitted == []


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize("encoding", PACKED)
async def test_a_broken_encoding_is_400(gateway: Gateway, path: str, encoding: str) -> None:
    """Bytes that are not what they are said to be, and such that end too soon, are the client's mistake."""
    plain = json.dumps(body(path, "hello " * 50)).encode()
    response = await post(gateway, path, plain, **{"Content-Encoding": encoding})
    assert (await refusal(response, path))[0] == 400
    packed = PACKED[encoding](plain)
    assert (await post(gateway, path, packed[: len(packed) // 2], **{"Content-Encoding": encoding})).status == 400
    assert gateway.backend.submitted == []


@pytest.mark.parametrize("encoding", PACKED)
async def test_a_decompression_bomb_is_413_and_not_read_whole(start_gateway: StartGateway, encoding: str) -> None:
    """A small body that would swell over the limit is refused by what it swells to."""
    gateway = await start_gateway(max_body=100_000)
    bomb = PACKED[encoding](b" " * 50_000_000)
    assert len(bomb) < 100_000
    response = await post(gateway, CHAT, bomb, **{"Content-Encoding": encoding})
    assert (await refusal(response, CHAT))[0] == 413


async def test_a_length_that_is_too_short_cuts_the_body(gateway: Gateway) -> None:
    """A gzip body whose declared length ends before it does is a 400, and what follows is not taken for a request."""
    packed = gzip.compress(json.dumps(body(CHAT, "hello " * 50)).encode())
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed) // 2}\r\n\r\n"
    assert (await raw(gateway, head.encode() + packed))[0] == 400
    assert gateway.backend.submitted == []


@pytest.mark.parametrize("path", EVERY)
async def test_a_body_over_the_limit_is_413(start_gateway: StartGateway, path: str) -> None:
    """A body is refused by its declared length, before it is sent."""
    gateway = await start_gateway(max_body=1000)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\n{{"
    status, answer = await raw(gateway, head.encode())
    kind = json.loads(answer)["error"]["type"]
    assert (status, kind) == (413, "request_too_large" if is_anthropic(path) else "invalid_request_error")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
async def test_a_body_in_chunks_of_no_declared_length(gateway: Gateway, path: str) -> None:
    """Chunked framing is the same request."""

    async def chunks() -> AsyncIterator[bytes]:
        text = json.dumps(body(path)).encode()
        for at in range(0, len(text), 7):
            yield text[at : at + 7]

    assert (await gateway.serving.post(path, data=chunks())).status == 200
    assert (await gateway.serving.post(path, json=body(path))).status == 200
    first, second = gateway.backend.submitted
    assert first.tokens == second.tokens


async def test_two_megabytes_wait_for_100_continue(gateway: Gateway) -> None:
    """A client that waits to be told to go on is told so, and then served."""
    data = json.dumps(body(CHAT, unknown="x" * (2 << 20))).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.serving.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode())
    assert await asyncio.wait_for(reader.readline(), 5) == b"HTTP/1.1 100 Continue\r\n"
    await reader.readline()
    writer.write(data)
    assert await asyncio.wait_for(reader.readline(), 5) == b"HTTP/1.1 200 OK\r\n"
    writer.close()


@pytest.fixture
async def keyed(renderer: Any) -> AsyncIterator[TestClient[Any, Any]]:
    """A gateway that asks for the key `k3y` and lets pages of one origin in."""
    ring = Keyring((Key(id="one", sha256=hashlib.sha256(b"k3y").hexdigest(), tenant="a"),))
    backend, state = ScriptedBackend(Script(deltas=[])), await SqliteStore.open(":memory:")
    ledger = await SqliteLedger.open(":memory:")
    settings = Settings(cors_origins=frozenset({ORIGIN}))
    house = build_house(settings, backend, renderer, state, ledger=ledger, keyring=ring)
    client = TestClient(TestServer(build_serving_app(house)))
    await client.start_server()
    yield client
    await client.close()


@pytest.mark.parametrize("path", [*EVERY, "/v1/models"])
async def test_a_preflight_needs_no_key(keyed: TestClient[Any, Any], path: str) -> None:
    """Browsers ask without a key: pages of an allowed origin get the allow headers, others a refusal without any."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    response = await keyed.options(path, headers={**asked, "Origin": ORIGIN})
    assert (response.status, await response.read()) == (204, b"")
    allow = {name: response.headers[f"Access-Control-Allow-{name}"] for name in ("Origin", "Methods", "Headers")}
    assert allow == {"Origin": ORIGIN, "Methods": "GET, POST, DELETE, OPTIONS", "Headers": "authorization"}
    for other in ({"Origin": "https://other.example"}, {}):
        response = await keyed.options(path, headers={**asked, **other})
        assert (response.status, "Access-Control-Allow-Origin" in response.headers) == (403, False)


@pytest.mark.parametrize("path", EVERY)
async def test_a_page_reads_why_it_was_refused(keyed: TestClient[Any, Any], path: str) -> None:
    """Without a key the answer is 401 in the API's envelope, and a page of the allowed origin may read it."""
    response = await keyed.post(path, json=body(path), headers={"Origin": ORIGIN})
    assert (await refusal(response, path))[0] == 401
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN


@pytest.mark.parametrize("path", EVERY)
async def test_a_slash_at_the_end_is_another_address(gateway: Gateway, path: str) -> None:
    """No redirect that would lose body or key: the address is not found, in the API's envelope."""
    response = await gateway.serving.post(path + "/", json=body(path), allow_redirects=False)
    status, message = await refusal(response, path)
    assert (status, message) == (404, f"There is nothing at POST {path}/.")


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_wrong_method_is_405_with_allow(gateway: Gateway, path: str, method: str) -> None:
    """The refusal is in the API's envelope and says which method is right."""
    response = await gateway.serving.request(method, path)
    assert (await refusal(response, path))[0] == 405
    assert "POST" in response.headers["Allow"].split(",")


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/tiny", "/openapi.json"])
async def test_head_is_get_without_a_body(gateway: Gateway, path: str) -> None:
    """Status, type and length are those of GET."""
    get, head = [await gateway.serving.request(method, path) for method in ("GET", "HEAD")]
    assert (head.status, head.content_type, head.headers["Content-Length"]) == (
        get.status,
        get.content_type,
        get.headers["Content-Length"],
    )
    assert (len(await get.read()) > 0, await head.read()) == (True, b"")


@pytest.mark.parametrize("headers", [{}, VERSION])
@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models/other", "/", "/v1/messages/nothing"])
async def test_an_address_that_is_nobodys_answers_as_the_caller_speaks(
    gateway: Gateway, path: str, headers: dict[str, str]
) -> None:
    """Under Anthropic's addresses, and elsewhere by its version header, errors are in its envelope."""
    response = await gateway.serving.get(path, headers=headers)
    spoken = MESSAGES if headers or is_anthropic(path) else CHAT
    assert (await refusal(response, spoken))[0] == 404


async def test_the_version_header_does_not_change_openais_addresses(gateway: Gateway) -> None:
    """At an address that only one API has, its envelope is the only one."""
    response = await gateway.serving.post(CHAT, json={}, headers=VERSION)
    assert (await refusal(response, CHAT))[0] == 400


@pytest.mark.parametrize(("headers", "spoken"), [({}, CHAT), (VERSION, MESSAGES)])
async def test_a_wrong_method_at_models_answers_as_the_caller_speaks(
    gateway: Gateway, headers: dict[str, str], spoken: str
) -> None:
    """Both APIs have this address, so the header decides."""
    response = await gateway.serving.post("/v1/models", headers=headers)
    assert (await refusal(response, spoken))[0] == 405
    assert response.headers["Allow"] == "GET,HEAD"
