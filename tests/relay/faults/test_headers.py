"""Which headers cross, and whose body a length is of."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.relay.headers import DOWN, DOWN_PREFIXES, UP, UP_NEVER, UP_PREFIXES, downward, upward
from tests.relay.faults.conftest import MESSAGES, RESPONSES, StartFake, StartFront, facing
from tests.relay.faults.fakes import WHOLE, Behaviour, Wire, answering, well

ALWAYS = {"content-type", "accept-encoding", "x-request-id"}

UPWARD: list[tuple[list[tuple[str, str]], dict[str, str]]] = [
    ([("Authorization", "Bearer sk-client"), ("X-API-Key", "sk-client"), ("Cookie", "a=b")], {}),
    ([("Host", "evil"), ("Content-Length", "9"), ("Transfer-Encoding", "chunked"), ("TE", "trailers")], {}),
    ([("Proxy-Authorization", "x"), ("Upgrade", "h2c"), ("Keep-Alive", "1"), ("Expect", "100-continue")], {}),
    ([("X-Forwarded-For", "10.0.0.1"), ("Forwarded", "for=x"), ("X-Real-IP", "1.1.1.1")], {}),
    ([("Accept", "text/event-stream")], {"accept": "text/event-stream"}),
    ([("Anthropic-Version", "2023-06-01")], {"anthropic-version": "2023-06-01"}),
    ([("anthropic-beta", "a"), ("Anthropic-Beta", "b,c")], {"anthropic-beta": "a, b,c"}),
    ([("OpenAI-Organization", "org"), ("OpenAI-Project", "p"), ("OpenAI-Beta", "x")], {"openai-beta": "x"}),
    (
        [("traceparent", "00-1"), ("tracestate", "a=1"), ("tracestate", "b=2")],
        {"traceparent": "00-1", "tracestate": "a=1, b=2"},
    ),
    ([("Connection", "close, Accept"), ("Accept", "x")], {}),
    ([("Connection", "close"), ("connection", " anthropic-BETA "), ("anthropic-beta", "a")], {}),
    ([("X-Session-Id", "s"), ("X-Anything", "1")], {}),
    ([("Content-Encoding", "gzip"), ("Content-Type", "text/plain"), ("Accept-Encoding", "br")], {}),
    ([("X-Request-Id", "theirs")], {}),
]


@pytest.mark.parametrize(("given_", "crossed"), UPWARD)
def test_what_reaches_an_upstream(given_: list[tuple[str, str]], crossed: dict[str, str]) -> None:
    """Credentials, addresses, cookies and hop-by-hop headers end here; lines that share a name are joined."""
    sent = upward(CIMultiDict(given_), request_id="r1", credentials={"authorization": "Bearer ours"})
    own = {"content-type": "application/json", "accept-encoding": "identity", "x-request-id": "r1"}
    assert sent == {**crossed, **own, "authorization": "Bearer ours"}


DOWNWARD: list[tuple[list[tuple[str, str]], dict[str, str]]] = [
    ([("Content-Type", "application/json")], {"content-type": "application/json"}),
    ([("Content-Length", "9"), ("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked")], {}),
    ([("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Server", "uvicorn"), ("Date", "now"), ("Via", "x")], {}),
    ([("X-Request-Id", "theirs"), ("Request-Id", "theirs")], {}),
    ([("x-ratelimit-remaining-tokens", "7")], {"x-ratelimit-remaining-tokens": "7"}),
    ([("Connection", "X-RateLimit-A"), ("x-ratelimit-a", "7"), ("x-ratelimit-b", "8")], {"x-ratelimit-b": "8"}),
    ([("Connection", "close"), ("Connection", "x-ratelimit-a"), ("x-ratelimit-a", "7")], {}),
    ([("Retry-After", "3"), ("Cache-Control", "no-cache")], {"retry-after": "3", "cache-control": "no-cache"}),
    ([("Access-Control-Allow-Origin", "*"), ("Strict-Transport-Security", "x"), ("Location", "/")], {}),
]


@pytest.mark.parametrize(("given_", "crossed"), DOWNWARD)
def test_what_reaches_a_client(given_: list[tuple[str, str]], crossed: dict[str, str]) -> None:
    """Lengths, encodings, cookies and ids of the upstream's answer are not the gateway's."""
    assert downward(CIMultiDict(given_)) == crossed


NAMES = st.one_of(
    st.sampled_from([*UP, *DOWN, *UP_NEVER, "Authorization", "Cookie", "Set-Cookie", "Connection", "X-Foo", "TE"]),
    st.sampled_from([*UP_PREFIXES, *DOWN_PREFIXES]).map(lambda prefix: prefix + "x"),
)


@given(st.lists(st.tuples(NAMES, st.sampled_from(["1", "accept", "X-RateLimit-x, accept", ""])), max_size=8))
def test_nothing_unlisted_crosses(lines: list[tuple[str, str]]) -> None:
    """Of any headers, only listed names cross, and none that the sender meant for its neighbour alone."""
    headers = CIMultiDict(lines)
    named = {one.strip().lower() for value in headers.getall("connection", []) for one in value.split(",")}
    for crossed, listed, prefixes in (
        (upward(headers, request_id="r", credentials={}), UP, UP_PREFIXES),
        (downward(headers), DOWN, DOWN_PREFIXES),
    ):
        for name in crossed.keys() - ALWAYS:
            assert name in listed or name.startswith(prefixes)
            assert name not in named and name not in UP_NEVER
            assert crossed[name] == ", ".join(headers.getall(name))


async def with_everything(wire: Wire) -> None:
    """Answer with every header that must not cross."""
    many = [
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("Connection", "X-RateLimit-Secret"),
        ("X-RateLimit-Secret", "1"),
        ("X-RateLimit-Left", "2"),
        ("X-Request-Id", "theirs"),
        ("Server", "uvicorn"),
    ]
    await answering(200, WHOLE, *many)(wire)


async def test_headers_of_an_answer(start_fake: StartFake, start_front: StartFront) -> None:
    """On a real socket: the gateway's id, no cookie, nothing hop-by-hop, the length of what is sent."""
    front = await start_front(facing(await start_fake("fake", with_everything)))
    response = await front.ask(headers={"x-request-id": "mine"})
    body = await response.read()
    assert (response.headers["x-request-id"], response.headers["x-ratelimit-left"]) == ("mine", "2")
    assert response.headers.keys().isdisjoint({"Set-Cookie", "X-RateLimit-Secret", "Connection"})
    assert "uvicorn" not in response.headers.getall("Server")
    assert int(response.headers["Content-Length"]) == len(body) and json.loads(body) == WHOLE


ZIPPED = gzip.compress(json.dumps(WHOLE).encode())


async def zipped_stream(wire: Wire) -> None:
    """Send a stream in gzip to whoever asked for none, in two packets."""
    data = gzip.compress(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    await wire.head(200, ("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip"))
    await wire.chunk(data[:20])
    await wire.chunk(data[20:])
    await wire.end()


@pytest.mark.parametrize(
    ("behave", "streamed", "says"),
    [(answering(200, ZIPPED, ("Content-Encoding", "gzip")), False, b'"one two"'), (zipped_stream, True, b"[DONE]")],
)
async def test_an_answer_in_gzip_is_readable(
    behave: Behaviour, streamed: bool, says: bytes, start_fake: StartFake, start_front: StartFront
) -> None:
    """An upstream that compresses unasked: the client gets it plain, with no encoding and no length of another body."""
    front = await start_front(facing(await start_fake("fake", behave)))
    response = await front.ask(stream=streamed)
    body = await response.read()
    assert says in body and "Content-Encoding" not in response.headers
    assert response.headers.get("Content-Length") == (None if streamed else str(len(body)))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_has_its_own_length(streamed: bool, start_fake: StartFake, start_front: StartFront) -> None:
    """A 400 with the upstream's length comes as JSON of the gateway's own length, to a request for a stream too."""
    refusal = {"error": {"message": "bad", "padding": "x" * 999}}
    front = await start_front(facing(await start_fake("fake", answering(400, refusal))))
    response = await front.ask(stream=streamed)
    body = await response.read()
    assert (response.status, response.content_type) == (400, "application/json")
    assert int(response.headers["Content-Length"]) == len(body)


async def test_a_redirect_is_not_followed(start_fake: StartFake, start_front: StartFront) -> None:
    """Prompt and key go to the address that was configured, and nowhere else."""
    other = await start_fake("other")
    fake = await start_fake("fake", answering(307, b"", ("Location", f"{other.url}/chat/completions")))
    front = await start_front(facing(fake))
    response = await front.ask()
    assert (response.status, "Location" in response.headers, other.received) == (502, False, [])


@pytest.mark.parametrize(
    ("kind", "path", "sent"), [("openai", RESPONSES, "authorization"), ("anthropic", MESSAGES, "x-api-key")]
)
async def test_keys_do_not_cross(
    kind: str, path: str, sent: str, start_fake: StartFake, start_front: StartFront
) -> None:
    """An upstream gets its own key from the environment and never the client's."""
    fake = await start_fake("fake", well)
    front = await start_front(facing(fake, kind=kind, key_env="THEIR_KEY"), THEIR_KEY="sk-theirs")
    theirs: dict[str, Any] = {"authorization": "Bearer sk-client", "x-api-key": "sk-client", "cookie": "c=sk-client"}
    await (await front.ask(path, headers=theirs, max_tokens=5)).read()
    headers = fake.received[0].headers
    assert "sk-client" not in str(headers)
    assert fake.received[0].header(sent) in ([["Bearer sk-theirs"], ["sk-theirs"]])
    assert [name for name, value in headers if "sk-theirs" in value] == [sent]
