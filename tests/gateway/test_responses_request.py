"""Parsing OpenAI's Responses API: what is understood, which turns and marks it is, and which field a refusal names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gateway.api.responses_items import Item
from gateway.api.responses_request import ask_of, items_of, parse, parse_count
from gateway.api.responses_store import Earlier
from gateway.ask import Ask, OutputForm, Tool, ToolCall, ToolChoice, Turn
from gateway.errors import BadRequest, NotStored, problem_of
from gateway.retention import AskedMark, Wish

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": None}
CLOCK = {"type": "function", "name": "clock", "description": "Tells the time.", "strict": True}


def body(**fields: Any) -> bytes:
    """A body with defaults for what is required."""
    return json.dumps({"model": "tiny", "input": "hi", **fields}).encode()


def asked(earlier: Earlier | None = None, **fields: Any) -> Ask:
    """What a body with these fields asks for."""
    return ask_of(parse(body(**fields)), "resp_1", earlier=earlier)


def turns(*items: dict[str, Any], **fields: Any) -> tuple[Turn, ...]:
    """The turns that these items are."""
    return asked(input=list(items), **fields).turns


def said(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """A message of these parts."""
    return {"role": role, "content": list(parts)}


def text(words: str, **fields: Any) -> dict[str, Any]:
    """An input_text part."""
    return {"type": "input_text", "text": words, **fields}


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    """A function call whose id is its name."""
    return {"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": name, "arguments": arguments}


def result(call_id: str, output: Any) -> dict[str, Any]:
    """The output of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def part(**fields: Any) -> dict[str, Any]:
    """A body's fields for one user message with one part."""
    return {"input": [said("user", text("a"), fields)]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "banana", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        (part(type="input_image", image_url="data:"), "input[0].content[1]"),
        (part(type="input_file", file_id="f"), "input[0].content[1]"),
        (part(type="input_audio", input_audio={}), "input[0].content[1]"),
        (part(type="input_text"), "input[0].content[1].text"),
        (part(type="refusal"), "input[0].content[1].refusal"),
        (part(text="untyped"), "input[0].content[1].type"),
        (
            {"input": [said("user", text("a", prompt_cache_breakpoint={"mode": "implicit"}))]},
            "input[0].content[0].prompt_cache_breakpoint.mode",
        ),
        (
            {"input": [said("user", text("a", cache_control={"type": "lasting"}))]},
            "input[0].content[0].cache_control.type",
        ),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0]"),
        ({"input": [{"type": "computer_call_output", "call_id": "1", "output": {"type": "x"}}]}, "input[0]"),
        ({"input": [{"type": "configuration_update", "text": {"format": {"type": "text"}}}]}, "input[0].text"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [result("1", {"a": 1})]}, "input[0].output"),
        ({"input": [result("1", [{"type": "input_image"}])]}, "input[0].output[0]"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tool_choice": "banana"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "clock"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": [WEATHER, {"type": "mcp"}]}},
            "tool_choice.tools[1]",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": [WEATHER, CLOCK]}},
            "tool_choice.tools[1].name",
        ),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"verbosity": "shouting"}}, "text.verbosity"),
        ({"prompt_cache_options": {"mode": "off"}}, "prompt_cache_options.mode"),
    ],
)
def test_refusal_names_the_field(fields: dict[str, Any], param: str) -> None:
    """Whatever is wrong, the refusal gives the path of the field."""
    with pytest.raises(BadRequest) as caught:
        asked(**fields)
    assert caught.value.param == param


def test_string_is_one_user_message() -> None:
    """A string, a message without a type and one in parts are the same turns."""
    one = (Turn(role="user", text="hi"),)
    assert asked().turns == turns({"role": "user", "content": "hi"}) == turns(said("user", text("h"), text("i"))) == one


def test_instructions_come_first_as_system() -> None:
    """Instructions are a system turn before everything, and empty ones are none."""
    assert asked(instructions="Be brief.").turns == (
        Turn(role="system", text="Be brief."),
        Turn(role="user", text="hi"),
    )
    assert asked(instructions="").turns == asked().turns


@pytest.mark.parametrize("role", ["system", "developer"])
def test_developer_speaks_as_system(role: str) -> None:
    """Both names of the role are one."""
    assert turns({"role": role, "content": "x"})[0].role == "system"


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_null_missing_and_empty_content_are_alike(content: dict[str, Any]) -> None:
    """Content that says nothing is empty text however it is written."""
    assert turns({"role": "user", **content}) == (Turn(role="user", text=""),)


def test_message_and_its_calls_are_one_turn() -> None:
    """An assistant's message and the calls after it are one turn, which the outputs follow."""
    assert turns(
        said("assistant", {"type": "output_text", "text": "Let me see."}),
        call("weather", '{"city": "Rome"}'),
        call("clock", ""),
        result("weather", "sunny"),
        result("clock", [text("no"), text("on")]),
    ) == (
        Turn(
            role="assistant",
            text="Let me see.",
            tool_calls=(
                ToolCall(id="weather", name="weather", arguments={"city": "Rome"}),
                ToolCall(id="clock", name="clock", arguments={}),
            ),
        ),
        Turn(role="tool", text="sunny", tool_call_id="weather"),
        Turn(role="tool", text="noon", tool_call_id="clock"),
    )


def test_text_after_a_call_stays_in_its_turn() -> None:
    """A message between calls joins their turn, as in the chat API; two messages in a row stay two turns."""
    assistant = {"role": "assistant", "content": "b"}
    (turn,) = turns(said("assistant", {"type": "refusal", "refusal": "a"}), call("clock"), assistant)
    assert (turn.text, len(turn.tool_calls)) == ("ab", 1)
    assert len(turns(assistant, assistant)) == 2


def test_arguments_that_are_no_object_stay_text() -> None:
    """Arguments that are not a JSON object arrive as the client wrote them."""
    (turn,) = turns(call("f", "[1"))
    assert turn.tool_calls[0].arguments == "[1"


def test_thinking_goes_before_what_it_led_to() -> None:
    """The text of a reasoning item, or else its summary, is the thinking of the assistant's turn that follows."""
    first = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "sum"}]}
    second = {**first, "content": [{"type": "reasoning_text", "text": "all"}]}
    assert [turn.thinking for turn in turns(first, call("f"), second, said("assistant"))] == ["sum", "all"]


def test_thinking_that_led_nowhere_is_left_out() -> None:
    """Reasoning before a user's turn, or encrypted only, is no part of the prompt."""
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAAA"}
    lost = {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "x"}]}
    user, assistant = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
    assert turns(lost, user, sealed, assistant) == turns(user, assistant)


def test_changed_effort_is_accepted() -> None:
    """An update of the reasoning effort in the input changes nothing here."""
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    assert turns(update, {"role": "user", "content": "hi"}) == asked().turns


def test_marks_stand_in_rendering_order() -> None:
    """There is one mark for each that was written: the tools' first, then the input's, each with its path."""
    ask = asked(
        tools=[WEATHER, {**CLOCK, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        instructions="Be brief.",
        input=[
            said("developer", text("ab", prompt_cache_breakpoint={"mode": "explicit"}), text("c")),
            said("user", text("de", prompt_cache_breakpoint={"ttl": "12h"}, cache_control={"type": "ephemeral"})),
            call("clock"),
            result(
                "clock", [text("f"), text("gh", cache_control={"type": "ephemeral"}), text("i", cache_control=None)]
            ),
        ],
    )
    assert ask.wish.marks == (
        AskedMark("1h", "tools[1].cache_control.ttl"),
        AskedMark(None, "input[0].content[0].prompt_cache_breakpoint.ttl"),
        AskedMark("12h", "input[1].content[0].prompt_cache_breakpoint.ttl"),
        AskedMark(None, "input[3].output[1].cache_control.ttl"),
    )
    assert [tool.marked for tool in ask.tools] == [False, True]
    assert [turn.breaks for turn in ask.turns] == [(), (2,), (2,), (), (3,)]


def test_marks_of_text_after_a_call_count_from_the_turns_start() -> None:
    """Where a message joins a turn, its marks move with its text."""
    marked = {"type": "output_text", "text": "cd", "prompt_cache_breakpoint": {}}
    (turn,) = turns({"role": "assistant", "content": "ab"}, call("f"), said("assistant", marked))
    assert turn.breaks == (4,)


def test_cache_options_become_a_wish() -> None:
    """Mode, TTL and key are taken over; retention is accepted and ignored."""
    options = {"mode": "explicit", "ttl": "12h", "comparison_response_id": "resp_0"}
    ask = asked(prompt_cache_options=options, prompt_cache_key="k", prompt_cache_retention="24h")
    assert (ask.wish, ask.partition) == (Wish(mode="explicit", ttl="12h"), "k")


def test_prewarming_answers_nothing() -> None:
    """A pre-warm asks for no token, whatever the limit says."""
    ask = asked(prompt_cache_options={"prewarm": True}, max_output_tokens=5)
    assert (ask.max_tokens, ask.wish) == (0, Wish(prewarm=True))


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 3}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"include": ["reasoning.encrypted_content"]}, None),
    ],
)
def test_log_probabilities_are_told_when_included(fields: dict[str, Any], logprobs: int | None) -> None:
    """Only `include` asks for log-probabilities; `top_logprobs` says how many rivals."""
    assert asked(**fields).sampling.logprobs == logprobs


def test_sampling_is_taken_over() -> None:
    """Zero temperature is zero, and the limit is the engine's."""
    ask = asked(temperature=0, top_p=0.5, max_output_tokens=7)
    assert (ask.sampling.temperature, ask.sampling.top_p, ask.max_tokens) == (0.0, 0.5, 7)


def test_tools_are_taken_over() -> None:
    """Strict is what was asked, and null is no."""
    assert asked(tools=[WEATHER, CLOCK]).tools == (
        Tool(name="weather", parameters={"type": "object"}),
        Tool(name="clock", description="Tells the time.", strict=True),
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "name": "clock"}, ToolChoice(mode="required", names=frozenset({"clock"}))),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [WEATHER]},
            ToolChoice(mode="required", names=frozenset({"weather"})),
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [CLOCK]}, ToolChoice(names=frozenset({"clock"}))),
    ],
)
def test_tool_choice_is_understood(choice: Any, expected: ToolChoice) -> None:
    """Every way to choose functions becomes a mode and names."""
    assert asked(tools=[WEATHER, CLOCK], tool_choice=choice).tool_choice == expected


def test_calls_one_by_one() -> None:
    """Parallel calls can be refused."""
    assert not asked(parallel_tool_calls=False).tool_choice.parallel


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, OutputForm(kind="json_object", path="text.format")),
        (
            {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True},
            OutputForm(kind="json_schema", schema={"type": "object"}, path="text.format.schema"),
        ),
    ],
)
def test_format_becomes_a_form(form: dict[str, Any], expected: OutputForm | None) -> None:
    """The text's format is what the answer is confined to."""
    assert asked(text={"format": form, "verbosity": "low"}).output == expected


def test_what_is_accepted_changes_nothing() -> None:
    """Fields that only some templates ask for, and unknown ones, change nothing else."""
    accepted: dict[str, Any] = {
        "reasoning": {"effort": "low"},
        "truncation": "auto",
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "service_tier": "flex",
        "max_tool_calls": 3,
        "store": False,
        "context_management": [{"type": "compaction"}],
        "weight": [1],
    }
    assert replace(asked(**accepted), settings={}) == asked()


def test_nulls_are_absent() -> None:
    """A null option is an option not given."""
    names = {field.name for field in msgspec.structs.fields(type(parse(body())))} - {"model", "input"}
    assert asked(**dict.fromkeys(names)) == asked()


def test_counting_needs_no_model() -> None:
    """A body whose prompt is only counted may leave the model out, but not the input."""
    assert parse_count(b'{"input": "hi"}').model is None
    with pytest.raises(BadRequest) as caught:
        parse_count(b'{"model": "tiny"}')
    assert caught.value.param == "input"


def test_missing_reference_is_not_found() -> None:
    """An item that is not kept is a 404, like a response."""
    with pytest.raises(NotStored) as caught:
        asked(input=[{"type": "item_reference", "id": "msg_1"}])
    assert problem_of(caught.value).status == 404


def test_reference_is_the_item_it_names() -> None:
    """A referenced item stands where the reference stood, also in what is kept of the conversation."""
    item = Item(type="message", id="msg_1", role="assistant", content="ho")
    earlier = Earlier(referenced={"msg_1": item})
    request = parse(body(input=[{"role": "user", "content": "hi"}, {"id": "msg_1"}]))
    assert ask_of(request, "resp_1", earlier=earlier).turns[1] == Turn(role="assistant", text="ho")
    assert items_of(request, earlier)[1] is item


def test_earlier_items_come_first_without_their_instructions() -> None:
    """What is gone on from stands between this request's instructions and its input."""
    earlier = Earlier(items=parse(body(input=[said("user", text("a", cache_control={"type": "ephemeral"}))])).items)
    ask = asked(earlier, instructions="New.", previous_response_id="resp_0", input="b")
    assert [turn.text for turn in ask.turns] == ["New.", "a", "b"]
    assert [mark.path for mark in ask.wish.marks] == ["previous_response_id.content[0].cache_control.ttl"]


def test_going_on_needs_no_input() -> None:
    """With a previous response the input may be left out."""
    earlier = Earlier(items=parse(body()).items)
    raw = b'{"model": "tiny", "previous_response_id": "resp_0"}'
    assert ask_of(parse(raw), "resp_1", earlier=earlier).turns == asked().turns
