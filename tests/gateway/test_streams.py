"""Streams of every API: kept open while nothing comes, and never half a character or the beginning of a stop string."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from engine.errors import EngineUnavailable
from tests.gateway.conftest import Gateway, StartGateway, events_of
from tests.gateway.scripted import MODEL
from tests.gateway.wire import ANSWERING, CHAT, COMPLETIONS, MESSAGES, RESPONSES, body, pieces_of, said_by

PING_S = 0.02
COMMENT = b": keepwarm is still working\n"


async def comments(response: Any, count: int) -> None:
    """Wait for so many comment lines and nothing else."""
    for _ in range(count):
        assert await asyncio.wait_for(response.content.readline(), 5) == COMMENT
        assert await asyncio.wait_for(response.content.readline(), 5) == b"\n"


@pytest.mark.parametrize("path", ANSWERING)
async def test_a_quiet_stream_is_kept_open(start_gateway: StartGateway, path: str) -> None:
    """Headers and comments come before the engine says anything, again and again, and then the whole answer."""
    gateway, go = await start_gateway(stream_ping=PING_S), asyncio.Event()
    gateway.script(["hel", "lo"], until={0: go})
    response = await asyncio.wait_for(gateway.serving.post(path, json=body(path, stream=True)), 5)
    assert (response.status, response.content_type) == (200, "text/event-stream")
    await comments(response, 3)
    go.set()
    assert "".join(pieces_of(path, await response.text())) == "hello"


@pytest.mark.parametrize("path", ANSWERING)
async def test_a_stream_that_falls_silent_is_kept_open(start_gateway: StartGateway, path: str) -> None:
    """Comments stand between events, never inside one."""
    gateway, go = await start_gateway(stream_ping=PING_S), asyncio.Event()
    gateway.script(["hel", "lo"], until={1: go})
    response = await asyncio.wait_for(gateway.serving.post(path, json=body(path, stream=True)), 5)
    lines: list[bytes] = []
    while lines.count(COMMENT) < 3:
        lines.append(await asyncio.wait_for(response.content.readline(), 5))
    places = [place for place, line in enumerate(lines) if line == COMMENT]
    assert all(place == 0 or lines[place - 1] == b"\n" for place in places)
    go.set()
    text = b"".join(lines).decode() + await response.text()
    assert "".join(pieces_of(path, text)) == "hello"


@pytest.mark.parametrize("path", ANSWERING)
async def test_comments_can_be_turned_off(start_gateway: StartGateway, path: str) -> None:
    """While another gateway's stream gets comments, one without `stream_ping` gets none."""
    quiet, other, go = await start_gateway(stream_ping=0.0), await start_gateway(stream_ping=PING_S), asyncio.Event()
    for gateway in (quiet, other):
        gateway.script(["hi"], until={0: go})
    silent = asyncio.ensure_future(quiet.serving.post(path, json=body(path, stream=True)))
    await asyncio.wait_for(quiet.backend.entered.acquire(), 5)
    loud = await asyncio.wait_for(other.serving.post(path, json=body(path, stream=True)), 5)
    await comments(loud, 3)
    assert not silent.done()
    go.set()
    text = await (await silent).text()
    assert ("".join(pieces_of(path, text)), COMMENT.decode() in text) == ("hi", False)
    await loud.text()


@pytest.mark.parametrize("path", ANSWERING)
async def test_leaving_a_quiet_stream_frees_the_engine(start_gateway: StartGateway, path: str) -> None:
    """A client that goes away between comments leaves its ticket."""
    gateway = await start_gateway(stream_ping=PING_S)
    gateway.script(["hi"], until={0: asyncio.Event()})
    response = await asyncio.wait_for(gateway.serving.post(path, json=body(path, stream=True)), 5)
    await comments(response, 1)
    response.close()
    await asyncio.wait_for(gateway.backend.left.acquire(), 5)
    assert gateway.backend.running == 0


def failure(path: str, stream: str) -> tuple[str, str]:
    """Type and message of the error that ends a stream."""
    event = json.loads(events_of(stream)[-1])
    if path == RESPONSES:
        return event["type"], event["response"]["error"]["message"]
    return event.get("type", "no type"), event["error"]["message"]


@pytest.mark.parametrize("path", ANSWERING)
async def test_an_error_after_comments_is_an_event(start_gateway: StartGateway, path: str) -> None:
    """Once the headers are out, a refusal is the stream's last event in the shape of its API."""
    gateway, go = await start_gateway(stream_ping=PING_S), asyncio.Event()
    gateway.script([], then=EngineUnavailable("The engine is gone."), until={0: go})
    response = await asyncio.wait_for(gateway.serving.post(path, json=body(path, stream=True)), 5)
    await comments(response, 1)
    go.set()
    text = await response.text()
    kind = {CHAT: "no type", COMPLETIONS: "no type", RESPONSES: "response.failed", MESSAGES: "error"}[path]
    assert failure(path, text) == (kind, "The engine is gone.")
    assert "[DONE]" not in text
    assert "message_stop" not in text


async def test_openais_sdk_reads_past_comments(start_gateway: StartGateway) -> None:
    """Its streams begin while the engine is still silent, and hold the whole text."""
    gateway, go = await start_gateway(stream_ping=PING_S), asyncio.Event()
    gateway.script(["hel", "lo"], until={0: go})
    url = str(gateway.serving.make_url("/v1"))
    user: Any = [{"role": "user", "content": "hello"}]
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=10) as client:
        chat = await client.chat.completions.create(model=MODEL, messages=user, stream=True)
        response = await client.responses.create(model=MODEL, input="hello", stream=True)
        completion = await client.completions.create(model=MODEL, prompt="hello", stream=True)
        go.set()
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in chat]) == "hello"
        assert "".join([one.delta async for one in response if one.type == "response.output_text.delta"]) == "hello"
        assert "".join([chunk.choices[0].text async for chunk in completion]) == "hello"


async def test_anthropics_sdk_reads_past_comments(start_gateway: StartGateway) -> None:
    """Its stream begins while the engine is still silent, and holds the whole text."""
    gateway, go = await start_gateway(stream_ping=PING_S), asyncio.Event()
    gateway.script(["hel", "lo"], until={0: go})
    url = str(gateway.serving.make_url("/"))
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=10) as client:
        stream = await client.messages.create(
            model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "hello"}], stream=True
        )
        go.set()
        deltas = [one.delta async for one in stream if one.type == "content_block_delta"]
    assert "".join(delta.text for delta in deltas if delta.type == "text_delta") == "hello"


EMOJI = "\U0001f95d"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
TEXTS = (f"kiwi {EMOJI}", "키위 주스", f"a {FAMILY} b", "kept \ufffd so")


def cut(tokens: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """Deltas of so many tokens each."""
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]


@pytest.mark.parametrize("path", ANSWERING)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3])
async def test_characters_are_whole_in_every_stream(gateway: Gateway, path: str, text: str, size: int) -> None:
    """Wherever tokens cut a character, each piece is text, and the pieces are the whole answer."""
    gateway.script(cut(gateway.tokens(text), size))
    pieces = pieces_of(path, await (await gateway.serving.post(path, json=body(path, stream=True))).text())
    whole = said_by(path, await (await gateway.serving.post(path, json=body(path))).json())
    assert "".join(pieces) == text == whole
    assert sum("\ufffd" in piece for piece in pieces) == text.count("\ufffd")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
@pytest.mark.parametrize(
    ("stops", "said"),
    [
        (["beta gamma"], "alpha "),
        (["beta gammX"], "alpha beta gamma!"),
        (["beta", "beta gamma"], "alpha "),
        (["beta gamma", "beta gammaX"], "alpha "),
    ],
)
async def test_a_stop_string_over_several_tokens_never_shows(
    gateway: Gateway, path: str, stops: list[str], said: str
) -> None:
    """What may become a stop is held back, and given out whole where it does not."""
    gateway.script(["al", "pha", " be", "ta", " gam", "ma", "!"])
    fields = {"stop_sequences" if path == MESSAGES else "stop": stops}
    pieces = pieces_of(path, await (await gateway.serving.post(path, json=body(path, stream=True, **fields))).text())
    whole = said_by(path, await (await gateway.serving.post(path, json=body(path, **fields))).json())
    assert ("".join(pieces), whole) == (said, said)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_list_of_prompts_times_n(gateway: Gateway, streamed: bool) -> None:
    """Two prompts of two choices are four choices in order; prompts are not joined and each counts once."""
    said = body(COMPLETIONS, ["a", "bb"], n=2, stream=streamed)
    if streamed:
        said["stream_options"] = {"include_usage": True}
    response = await gateway.serving.post(COMPLETIONS, json=said)
    if streamed:
        chunks = [json.loads(event) for event in events_of(await response.text())[:-1]]
        ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
        usage = chunks[-1]["usage"]
    else:
        answer = await response.json()
        ends, usage = [choice["index"] for choice in answer["choices"]], answer["usage"]
    lengths = [len(submit.tokens) // 4 for submit in gateway.backend.submitted]
    assert (sorted(ends), ends[0]) == ([0, 1, 2, 3], 0)
    assert sorted(lengths) == [1, 1, 2, 2]
    assert usage["prompt_tokens"] == 1 + 2
