"""Parsing chat completions: what is understood, and which field a refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.openai_chat import ask_of, parse
from gateway.ask import ToolCall
from gateway.errors import BadRequest


def body(**fields: Any) -> bytes:
    """A body with defaults for what is required."""
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def refusal(raw: bytes) -> BadRequest:
    """The refusal that a body gets."""
    with pytest.raises(BadRequest) as caught:
        ask_of(parse(raw), "1")
    return caught.value


def message(**fields: Any) -> list[dict[str, Any]]:
    """One user message with these fields."""
    return [{"role": "user", **fields}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "banana", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": message(content=5)}, "messages[0].content"),
        ({"messages": message(content=[{"text": "hi"}])}, "messages[0].content[0].type"),
        ({"messages": message(content=[{"type": "text"}])}, "messages[0].content[0].text"),
        ({"messages": message(content=[{"type": "text", "text": 1}])}, "messages[0].content[0].text"),
        (
            {"messages": message(content=[{"type": "text", "text": ""}, {"type": "image_url", "image_url": {}}])},
            "messages[0].content[1]",
        ),
        ({"messages": message(content="hi", tool_calls=[{"function": {"name": "f"}}])}, "messages[0].tool_calls"),
        ({"model": 3}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"n": 129}, "n"),
        ({"n": 0}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
    ],
)
def test_refusal_names_the_field(fields: dict[str, Any], param: str) -> None:
    """Whatever is wrong, the refusal gives the path of the field."""
    assert refusal(body(**fields)).param == param


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -0.1}, "from 0 to 2"),
        ({"temperature": 2.1}, "from 0 to 2"),
        ({"top_p": 0}, "above 0 to 1"),
        ({"min_p": 1.1}, "from 0 to 1"),
        ({"presence_penalty": 2.5}, "from -2 to 2"),
        ({"frequency_penalty": -2.5}, "from -2 to 2"),
        ({"repetition_penalty": 0}, "above 0 to 10"),
        ({"top_logprobs": 21, "logprobs": True}, "from 0 to 20"),
        ({"prompt_logprobs": 21}, "from 0 to 20"),
        ({"n": 0}, "from 1 to 128"),
    ],
)
def test_a_number_out_of_range_is_told_its_range(fields: dict[str, Any], said: str) -> None:
    """The message names the field and where it may go from and to."""
    told = refusal(body(**fields))
    (field, *_) = fields
    assert told.param == field
    assert str(told).startswith(f"Invalid '{field}': ")
    assert str(told).endswith(f"({said}).")


def test_a_stream_tells_no_log_probabilities_of_the_prompt() -> None:
    """prompt_logprobs with stream is refused by name."""
    assert refusal(body(prompt_logprobs=1, stream=True)).param == "prompt_logprobs"


def test_missing_model_is_named() -> None:
    """A required field that is not there is named too."""
    assert refusal(b'{"messages":[{"role":"user"}]}').param == "model"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff",
        b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}',
        body()[:-1] + b',"temperature":NaN}',
        body()[:-1] + b',"extra":Infinity}',
        body()[:-1] + b',"x":' + b"[" * 20_000,
        body()[:-1] + b',"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        body() + b"x",
        b"[]",
        b"null",
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    """Text that is not JSON, NaN and nesting without end are refused, never our failure."""
    assert refusal(raw).code in {"invalid_json", "invalid_type"}


def test_number_beyond_floats_names_its_field() -> None:
    """1e999 is no temperature."""
    assert refusal(body()[:-1] + b',"temperature":1e999}').param == "temperature"


@pytest.mark.parametrize("half", [r"box \ud83d", r"x \ude00 y"])
@pytest.mark.parametrize(
    ("before", "after", "param"),
    [
        ('{"model":"tiny","messages":[{"role":"user","content":"', '"}]}', "messages[0].content"),
        (
            '{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"',
            '"}]}]}',
            "messages[0].content[0].text",
        ),
        ('{"messages":[{"role":"user","content":"hi"}],"model":"', '"}', "model"),
    ],
)
def test_half_a_surrogate_pair_names_its_field(half: str, before: str, after: str, param: str) -> None:
    """Half a surrogate pair is no character, wherever it stands in a string."""
    assert refusal((before + half + after).encode()).param == param


def test_whole_surrogate_pair_is_a_character() -> None:
    """An escaped emoji is text."""
    raw = rb'{"model":"tiny","messages":[{"role":"user","content":"\ud83d\ude00"}]}'
    assert ask_of(parse(raw), "1").turns[0].text == "\U0001f600"


def test_unknown_optional_fields_pass() -> None:
    """Fields of newer clients do no harm."""
    assert parse(body(user="u", metadata={"a": [1]}, messages=message(content="hi", weight=1))).model == "tiny"


def test_nulls_are_absent() -> None:
    """A null option is an option not given."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "n", "stream", "stream_options")
    assert ask_of(parse(body(**dict.fromkeys(names))), "1") == ask_of(parse(body()), "1")


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_null_missing_and_empty_content_are_alike(content: dict[str, Any]) -> None:
    """Content that says nothing is empty text however it is written."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ask = ask_of(parse(body(messages=[{"role": "assistant", "tool_calls": [call], **content}])), "1")
    assert ask.turns[0].text == ""


@pytest.mark.parametrize("arguments", ["null", "{}", ""])
def test_arguments_that_say_nothing_are_alike(arguments: str) -> None:
    """A call without arguments is the same call however they are written."""
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    ask = ask_of(parse(body(messages=[{"role": "assistant", "tool_calls": [call]}])), "1")
    assert ask.turns[0].tool_calls == (ToolCall(id="1", name="f", arguments={}),)


def test_parts_are_the_string_they_join_to() -> None:
    """Every part arrives, in order, with nothing between."""
    parts = [{"type": "text", "text": text} for text in ("Rule one. ", "", "Rule two. ", "Go.")]
    as_parts = ask_of(parse(body(messages=message(content=parts))), "1")
    assert as_parts == ask_of(parse(body(messages=message(content="Rule one. Rule two. Go."))), "1")


def test_developer_speaks_as_system() -> None:
    """The newer name of the system role is understood."""
    assert ask_of(parse(body(messages=[{"role": "developer", "content": "x"}])), "1").turns[0].role == "system"


def test_newer_name_of_the_limit_wins() -> None:
    """Where both limits are given, max_completion_tokens counts."""
    assert ask_of(parse(body(max_tokens=3, max_completion_tokens=5)), "1").max_tokens == 5


def test_sampling_reaches_the_engine_as_given() -> None:
    """Zero temperature is zero, and -1 of top_k keeps all."""
    sampling = ask_of(parse(body(temperature=0, top_p=0.5, top_k=-1, seed=-7)), "1").sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.0, 0.5, 0, -7)
