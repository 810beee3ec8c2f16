"""Hostile and broken bodies on every endpoint: refused by name, in the API's own envelope, before the engine."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from engine.errors import PromptTooLong
from tests.gateway.conftest import Gateway
from tests.gateway.wire import (
    ANSWERING,
    CHAT,
    COMPLETIONS,
    COUNT,
    EVERY,
    INPUT_TOKENS,
    MESSAGES,
    RESPONSES,
    TALKING,
    body,
    is_anthropic,
    refusal,
)

HALVES = ("box \ud83d", "x \ude00 y")
SAMPLED = (CHAT, COMPLETIONS)


def with_json(path: str, text: str, **fields: Any) -> bytes:
    """A body in which `text` stands, as it is, where a field says `@`."""
    return json.dumps(body(path, **fields)).replace('"@"', text).encode()


async def refused(gateway: Gateway, path: str, data: bytes | dict[str, Any]) -> str:
    """The message of a 400 that came before the engine was asked."""
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    response = await gateway.serving.post(path, data=io.BytesIO(data), headers={"Content-Type": "application/json"})
    status, message = await refusal(response, path)
    assert (status, gateway.backend.submitted) == (400, [])
    return message


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        ([-1], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ([5, 2**32], "prompt[1]"),
        ([10**400], "prompt[0]"),
        ([[1], [2, -1]], "prompt[1][1]"),
        (["a", 3], "prompt[1]"),
        ([[]], "prompt[0]"),
        ({}, "prompt"),
    ],
)
async def test_prompts_of_impossible_ids_are_refused(gateway: Gateway, prompt: Any, where: str) -> None:
    """What is no token id is refused by its place."""
    message = await refused(gateway, COMPLETIONS, body(COMPLETIONS, prompt))
    assert message.startswith(f"{where}: ")


@pytest.mark.parametrize("path", SAMPLED)
@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"logit_bias": {"x": 5}}, "logit_bias.x"),
        ({"logit_bias": {"-1": 5}}, "logit_bias.-1"),
        ({"logit_bias": {"²": 5}}, "logit_bias.²"),
        ({"logit_bias": {"99999999999": 5}}, "logit_bias.99999999999"),
        ({"logit_bias": {"9" * 5000: 5}}, "logit_bias." + "9" * 32),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"stop_token_ids": [-3]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [2**70]}, "stop_token_ids[0]"),
    ],
)
async def test_impossible_ids_in_fields_are_refused(
    gateway: Gateway, path: str, fields: dict[str, Any], where: str
) -> None:
    """Biases and stop tokens of ids that cannot be are refused by their place."""
    assert (await refused(gateway, path, body(path, **fields))).startswith(f"{where}: ")


@pytest.mark.parametrize("path", [*ANSWERING, INPUT_TOKENS])
@pytest.mark.parametrize("number", ["1e999", "-1", "1" * 400, "true", '"1"'])
async def test_temperatures_out_of_range_are_refused(gateway: Gateway, path: str, number: str) -> None:
    """A temperature that is negative, endless or no number is refused by name."""
    assert (await refused(gateway, path, with_json(path, number, temperature="@"))).startswith("temperature: ")


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
async def test_nan_and_infinity_are_no_json(gateway: Gateway, path: str, word: str) -> None:
    """Words that Python would read as numbers are refused on every endpoint, in any field."""
    for field in ("temperature", "unknown"):
        message = await refused(gateway, path, with_json(path, word, **{field: "@"}))
        assert message.startswith("The body is not valid JSON")


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 20_000, "The body must be a JSON object."),
        ('{"a":' * 20_000, "The body is nested too deeply."),
        ('{"unknown":' + "[" * 20_000 + "]" * 20_000 + "}", "The body is nested too deeply."),
    ],
)
async def test_json_of_20000_levels_is_refused(gateway: Gateway, path: str, text: str, said: str) -> None:
    """Nesting that no parser can follow is the client's mistake, whether the field is known or not."""
    assert (await refused(gateway, path, text.encode())).startswith(said)


@pytest.mark.parametrize("path", TALKING)
@pytest.mark.parametrize(("depth", "named"), [(120, True), (1000, False)])
async def test_deep_tool_schemas_are_refused(gateway: Gateway, path: str, depth: int, named: bool) -> None:
    """A schema deeper than any that means it is refused by its place, and by the parser where that gives up first."""
    schema = '{"properties":' * depth + '{"type":"object"}' + "}" * depth
    if path == CHAT:
        tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": "@"}}
    else:
        tool = {"name": "f"} | (
            {"input_schema": "@"} if is_anthropic(path) else {"type": "function", "parameters": "@"}
        )
    message = await refused(gateway, path, with_json(path, schema, tools=[tool]))
    begin = "tools.0" if is_anthropic(path) else "tools[0]"
    assert message.startswith(begin if named else "The body is nested too deeply.")


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize("text", HALVES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_half_a_surrogate_pair_is_refused(gateway: Gateway, path: str, text: str, streamed: bool) -> None:
    """Half a character is a 400 that names its place, never a stream that breaks later."""
    where = {COMPLETIONS: "prompt", RESPONSES: "input[0].content", INPUT_TOKENS: "input[0].content"}
    expected = where.get(path, "messages.0.content" if is_anthropic(path) else "messages[0].content")
    assert (await refused(gateway, path, body(path, text, stream=streamed))).startswith(f"{expected}: ")


@pytest.mark.parametrize("path", EVERY)
async def test_a_whole_surrogate_pair_is_a_character(gateway: Gateway, path: str) -> None:
    """The same character as two escapes and raw is one prompt."""
    for text in (
        json.dumps(body(path, "box \U0001f4e6")),
        json.dumps(body(path, "box \U0001f4e6"), ensure_ascii=False),
    ):
        response = await gateway.serving.post(path, data=text.encode())
        assert response.status == 200
    assert len({submit.tokens for submit in gateway.backend.submitted}) == (1 if path in ANSWERING else 0)


@pytest.mark.parametrize("path", ANSWERING)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_beyond_the_window_is_refused_whole(gateway: Gateway, path: str, streamed: bool) -> None:
    """No head is cut: the refusal is in the words by which each API's clients know it."""
    message = await refused(gateway, path, body(path, "word " * 20_000, stream=streamed))
    if is_anthropic(path):
        assert message.startswith("prompt is too long: ")
    response = await gateway.serving.post(path, json=body(path, "word " * 20_000))
    assert is_anthropic(path) or (await response.json())["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ANSWERING)
async def test_the_engines_own_measure_is_told_alike(gateway: Gateway, path: str) -> None:
    """A prompt that only the engine finds too long is the same refusal, naming the field of the API."""
    gateway.script([], then=PromptTooLong.of(prompt=9, answer=3, limit=10))
    response = await gateway.serving.post(path, json=body(path))
    status, message = await refusal(response, path)
    begin = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input", MESSAGES: "prompt is too long"}[path]
    assert (status, message.partition(": ")[0]) == (400, begin)


@pytest.mark.parametrize("path", [COUNT, INPUT_TOKENS])
async def test_counting_has_no_window(gateway: Gateway, path: str) -> None:
    """A prompt that could not be served is still counted, to its last token."""
    short, long = [
        (await (await gateway.serving.post(path, json=body(path, "word " * times))).json())["input_tokens"]
        for times in (1, 2001)
    ]
    assert long - short == 2000 * 5


@pytest.mark.parametrize(
    ("path", "fields", "where"),
    [
        (CHAT, {"messages": []}, "messages: "),
        (CHAT, {"messages": "hi"}, "messages: "),
        (CHAT, {"messages": None}, "messages: "),
        (COMPLETIONS, {"prompt": []}, "prompt: "),
        (COMPLETIONS, {"prompt": ""}, "prompt: "),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]: "),
        (RESPONSES, {"input": []}, "input: "),
        (RESPONSES, {"input": None}, "input: "),
        (RESPONSES, {"input": 5}, "input: "),
        (INPUT_TOKENS, {"input": []}, "input: "),
        (MESSAGES, {"messages": []}, "messages: "),
        (MESSAGES, {"messages": "hi"}, "messages: "),
        (COUNT, {"messages": []}, "messages: "),
        (COUNT, {"messages": "hi"}, "messages: "),
    ],
)
async def test_empty_input_is_refused(gateway: Gateway, path: str, fields: dict[str, Any], where: str) -> None:
    """Nothing to answer is a 400 that names the field."""
    assert (await refused(gateway, path, body(path) | fields)).startswith(where)


@pytest.mark.parametrize("path", [*ANSWERING, COUNT])
@pytest.mark.parametrize("empty", [b"", b"{}", b"null", b"[]", b'"hi"'])
async def test_an_empty_body_is_refused(gateway: Gateway, path: str, empty: bytes) -> None:
    """A body without anything in it is a 400 in the API's envelope."""
    assert await refused(gateway, path, empty) != ""


@pytest.mark.parametrize("path", [*ANSWERING, COUNT])
async def test_a_missing_model_is_named(gateway: Gateway, path: str) -> None:
    """A body without a model is refused by that name."""
    said = body(path)
    del said["model"]
    assert (await refused(gateway, path, said)).startswith("model: ")


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_developer_is_heard(gateway: Gateway, path: str) -> None:
    """What the developer says is in the prompt."""
    said = {"role": "developer", "content": "Say kumquat."}
    field = "messages" if path == CHAT else "input"
    body_ = body(path)
    body_[field].insert(0, said)
    assert (await gateway.serving.post(path, json=body_)).status == 200
    (submit,) = gateway.backend.submitted
    assert "Say kumquat." in gateway.renderer.spell(submit.tokens)


@pytest.mark.parametrize("path", TALKING)
async def test_an_unknown_role_is_refused(gateway: Gateway, path: str) -> None:
    """A role that nobody has is refused by its place."""
    field = "input" if path in (RESPONSES, INPUT_TOKENS) else "messages"
    said = body(path, **{field: [{"role": "banana", "content": "hi"}]})
    place = f"{field}.0.role" if is_anthropic(path) else f"{field}[0].role"
    assert (await refused(gateway, path, said)).startswith(f"{place}: ")
