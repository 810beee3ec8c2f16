"""Parsing Anthropic's messages: what is understood, which turns it makes, and which field a refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.anthropic_errors import error_body
from gateway.api.anthropic_messages import ask_of, parse, parse_count, prompt_of
from gateway.ask import Ask, OutputForm, Tool, ToolCall, ToolChoice, Turn
from gateway.errors import BadRequest, problem_of

WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def body(**fields: Any) -> bytes:
    """A body with defaults for what is required."""
    return json.dumps(
        {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    ).encode()


def ask(**fields: Any) -> Ask:
    """What a body asks for."""
    return ask_of(parse(body(**fields)), "msg_1")


def turns(*messages: tuple[str, Any], **fields: Any) -> tuple[Turn, ...]:
    """The turns that messages, each a role and a content, make."""
    return ask(messages=[{"role": role, "content": content} for role, content in messages], **fields).turns


def refusal(raw: bytes) -> BadRequest:
    """The refusal that a body gets."""
    with pytest.raises(BadRequest) as caught:
        ask_of(parse(raw), "msg_1")
    return caught.value


def wire(raw: bytes) -> str:
    """The text of the refusal as a client reads it."""
    text: str = json.loads(error_body(problem_of(refusal(raw)), "r"))["error"]["message"]
    return text


def content(*blocks: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
    """One message of these blocks."""
    return [{"role": role, "content": list(blocks)}]


def text(words: str, **fields: Any) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": words, **fields}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "banana", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "developer", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": content({"text": "hi"})}, "messages[0].content[0].type"),
        ({"messages": content({"type": 3})}, "messages[0].content[0].type"),
        ({"messages": content({"type": "text"})}, "messages[0].content[0].text"),
        ({"messages": content(text("a"), {"type": "weird"})}, "messages[0].content[1]"),
        ({"messages": content({"type": "tool_result"})}, "messages[0].content[0].tool_use_id"),
        ({"messages": content({**CALL, "input": "x"}, role="assistant")}, "messages[0].content[0].input"),
        ({"messages": content({**CALL, "name": "a b"}, role="assistant")}, "messages[0].content[0].name"),
        ({"messages": content(CALL)}, "messages[0].content[0]"),
        ({"messages": content({"type": "thinking", "thinking": "x"})}, "messages[0].content[0]"),
        ({"messages": content(CALL, role="system")}, "messages[0].content[0]"),
        (
            {"messages": content({"type": "tool_result", "tool_use_id": "1"}, role="assistant")},
            "messages[0].content[0]",
        ),
        ({"messages": content(CALL, role="assistant")}, "messages[0]"),
        ({"messages": content(role="assistant")}, "messages"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"model": 3}, "model"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {}}, "thinking.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a\n", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "regex", "schema": {}}}, "output_format.type"),
        ({"diagnostics": {"previous_message_id": 3}}, "diagnostics.previous_message_id"),
    ],
)
def test_refusal_names_the_field(fields: dict[str, Any], param: str) -> None:
    """Whatever is wrong, the refusal gives the path of the field."""
    assert refusal(body(**fields)).param == param


@pytest.mark.parametrize("field", ["model", "max_tokens", "messages"])
def test_missing_field_is_named(field: str) -> None:
    """A required field that is not there is named, in the words of the API."""
    whole = json.loads(body())
    del whole[field]
    assert wire(json.dumps(whole).encode()) == f"{field}: Field required"


@pytest.mark.parametrize(
    "kind",
    ["image", "document", "search_result", "audio", "server_tool_use", "web_search_tool_result", "container_upload"],
)
def test_what_the_model_cannot_read_is_refused_by_its_path(kind: str) -> None:
    """Images, documents and the like are never dropped in silence."""
    block = {"type": kind, "source": {"type": "base64", "data": ""}, "content": 5, "text": []}
    expected = f"messages.0.content.1: Blocks of type '{kind}' are not supported here: this model reads text only."
    assert wire(body(messages=content(text("look: "), block))) == expected


def test_image_inside_a_result_is_refused_by_its_path() -> None:
    """The path leads into the result's own content."""
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("a"), {"type": "image"}]}
    assert refusal(body(messages=content(result))).param == "messages[0].content[0].content[1]"


@pytest.mark.parametrize("half", [r"box \ud83d", r"x \ude00 y"])
@pytest.mark.parametrize(
    ("before", "after", "param"),
    [
        ('{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"', '"}]}', "messages[0].content"),
        (
            '{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"',
            '"}]}]}',
            "messages[0].content[0].text",
        ),
    ],
)
def test_half_a_surrogate_pair_names_its_field(half: str, before: str, after: str, param: str) -> None:
    """Half a surrogate pair is no character (P18)."""
    assert refusal((before + half + after).encode()).param == param


def test_whole_surrogate_pair_is_a_character() -> None:
    """An escaped emoji is text."""
    raw = rb'{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"\ud83d\ude00"}]}'
    assert ask_of(parse(raw), "1").turns[0].text == "\U0001f600"


@pytest.mark.parametrize("nan", [b"NaN", b"1e999"])
def test_numbers_that_are_none_are_refused(nan: bytes) -> None:
    """NaN and numbers beyond floats are refused, never our failure."""
    assert refusal(body()[:-1] + b',"temperature":' + nan + b"}").code in {"invalid_json", "invalid_value"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ("tools", "tools[0].input_schema"),
        ("input", "messages[0].content[0].input"),
        ("output", "output_config.format.schema"),
    ],
)
def test_nesting_too_deep_names_its_field(fields: str, param: str) -> None:
    """JSON that nobody means is refused before anything walks it."""
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    shapes: dict[str, dict[str, Any]] = {
        "tools": {"tools": [{"name": "f", "input_schema": deep}]},
        "input": {"messages": [*content({**CALL, "input": deep}, role="assistant"), {"role": "user", "content": "x"}]},
        "output": {"output_config": {"format": {"type": "json_schema", "schema": deep}}},
    }
    assert refusal(body(**shapes[fields])).param == param


def test_unknown_optional_fields_pass() -> None:
    """Fields of newer and of older clients do no harm."""
    extra: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "speed": "fast",
        "container": None,
        "inference_geo": "eu",
        "context_management": {"edits": []},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [{"role": "user", "content": [text("hi", citations=None)], "weight": 1}],
    }
    assert ask(**extra) == ask()


def test_nulls_are_absent() -> None:
    """A null option is an option not given."""
    names = ("system", "tools", "tool_choice", "stop_sequences", "temperature", "top_p", "top_k", "stream")
    more = ("thinking", "cache_control", "diagnostics", "output_config", "output_format")
    assert ask(**dict.fromkeys((*names, *more))) == ask()


def test_parts_are_the_string_they_join_to() -> None:
    """Every block arrives, in order, with nothing between (P30)."""
    blocks = [text("Rule one. "), text(""), text("Rule two. "), text("Go.")]
    whole = "Rule one. Rule two. Go."
    assert turns(("user", blocks), system=blocks) == turns(("user", whole), system=whole)


@pytest.mark.parametrize("empty", ["", [], [{"type": "text", "text": ""}]])
def test_empty_content_is_empty_text(empty: Any) -> None:
    """Content that says nothing is empty text however it is written, and an empty system prompt is none (P29)."""
    assert turns(("user", empty), system=empty) == (Turn(role="user", text=""),)


def test_consecutive_messages_of_one_role_are_one() -> None:
    """Their blocks come one after the other."""
    apart = turns(
        ("user", "a"), ("user", [text("b"), text("c")]), ("assistant", "d"), ("assistant", "e"), ("user", "f")
    )
    assert apart == turns(("user", "abc"), ("assistant", "de"), ("user", "f"))


def test_system_message_in_the_conversation_keeps_its_place() -> None:
    """Instructions that change on the way are a system turn where they stand."""
    assert [turn.role for turn in turns(("user", "a"), ("system", "be brief"), ("user", "b"), system="s")] == [
        "system",
        "user",
        "system",
        "user",
    ]


def test_one_conversation_with_tools_is_these_turns() -> None:
    """A conversation is the same turns that the other API makes of it."""
    made = turns(
        ("user", "Weather in Oslo and Rome?"),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "Two calls.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("Let me look."),
                CALL,
                {**CALL, "id": "toolu_2", "input": {"city": "Rome"}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [text("no "), text("data")],
                    "is_error": True,
                },
                text("So?"),
            ],
        ),
        system=[text("Be brief."), text(" Be kind.")],
    )
    assert made == (
        Turn(role="system", text="Be brief. Be kind."),
        Turn(role="user", text="Weather in Oslo and Rome?"),
        Turn(
            role="assistant",
            text="Let me look.",
            thinking="Two calls.",
            tool_calls=(
                ToolCall(id="toolu_1", name="weather", arguments={"city": "Oslo"}),
                ToolCall(id="toolu_2", name="weather", arguments={"city": "Rome"}),
            ),
        ),
        Turn(role="tool", text="rain", name="weather", tool_call_id="toolu_1"),
        Turn(role="tool", text="Error: no data", name="weather", tool_call_id="toolu_2"),
        Turn(role="user", text="So?"),
    )


def test_text_between_results_keeps_its_place() -> None:
    """A result is a turn of its own, and no text moves past one."""
    results = [{"type": "tool_result", "tool_use_id": name} for name in ("a", "b")]
    made = turns(("user", [text("1"), results[0], text("2"), results[1], text("3")]))
    assert [(turn.role, turn.text or turn.tool_call_id) for turn in made] == [
        ("user", "1"),
        ("tool", "a"),
        ("user", "2"),
        ("tool", "b"),
        ("user", "3"),
    ]


def test_result_of_an_unknown_call_has_no_name() -> None:
    """A result whose call was cut off the history is still a result."""
    made = turns(("user", [{"type": "tool_result", "tool_use_id": "gone", "content": None}]))
    assert made == (Turn(role="tool", text="", tool_call_id="gone"),)


def test_last_message_of_the_assistant_is_gone_on_from() -> None:
    """A prefill is the beginning of the answer; an empty one begins nothing."""
    prefilled = ask(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}])
    empty = ask(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}])
    assert (prefilled.continues, prefilled.turns[-1]) == (True, Turn(role="assistant", text="{"))
    assert (empty.continues, empty.turns) == (False, (Turn(role="user", text="a"),))


def test_tools_are_read_whole() -> None:
    """Name, description, schema and examples reach the prompt; a deferred tool does not."""
    tools = [
        {**WEATHER, "type": "custom", "description": "Tells it.", "strict": True, "input_examples": [{"city": "Oslo"}]},
        {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True},
        {"name": "now", "input_schema": {"type": "object"}, "type": None, "eager_input_streaming": True},
    ]
    assert ask(tools=tools).tools == (
        Tool(
            name="weather",
            description="Tells it.",
            parameters={**WEATHER["input_schema"], "examples": [{"city": "Oslo"}]},  # type: ignore[dict-item]
            strict=True,
        ),
        Tool(name="now", parameters={"type": "object"}),
    )


@pytest.mark.parametrize(
    ("field", "choice"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "tool", "name": "weather"}, ToolChoice(mode="required", names=frozenset({"weather"}))),
        (None, ToolChoice()),
    ],
)
def test_tool_choice_is_read(field: dict[str, Any] | None, choice: ToolChoice) -> None:
    """Each choice is the one of our own words that means it."""
    assert ask(tools=[WEATHER], tool_choice=field).tool_choice == choice


def test_sampling_reaches_the_engine_as_given() -> None:
    """Zero temperature is zero, and the stop sequences are the stops."""
    made = ask(temperature=0, top_p=0.5, top_k=7, stop_sequences=["a", "\n"])
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.top_k) == (0.0, 0.5, 7)
    assert (made.stops, made.max_tokens, made.choices) == (("a", "\n"), 9, 1)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_config.format",
        ),
    ],
)
def test_form_of_the_answer_is_read_from_both_places(fields: dict[str, Any], path: str) -> None:
    """The newer field wins over the older one, and the form knows which field asked for it."""
    assert ask(**fields).output == OutputForm(kind="json_schema", schema=SCHEMA, path=path)


def test_effort_shapes_nothing() -> None:
    """Effort alone asks for no form."""
    assert ask(output_config={"effort": "high"}) == ask()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        ({"tools": [WEATHER], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}, "tool_choice"),
    ],
)
def test_warming_up_cannot_ask_for_an_answer(fields: dict[str, Any], param: str) -> None:
    """With max_tokens 0, whatever shapes an answer is refused."""
    assert refusal(body(max_tokens=0, **fields)).param == param


def test_warming_up_is_a_wish() -> None:
    """max_tokens 0 asks to keep the prompt and for nothing more."""
    made = ask(max_tokens=0, stream=False, thinking={"type": "disabled"}, tool_choice={"type": "auto"})
    assert (made.max_tokens, made.wish.prewarm, ask().wish.prewarm) == (0, True, False)


def test_counting_needs_no_limit_and_makes_the_same_prompt() -> None:
    """What is counted is the prompt that a message would have."""
    fields = {"system": "s", "tools": [WEATHER], "messages": content(text("a"), text("b"))}
    whole = json.loads(body(**fields))
    del whole["max_tokens"]
    counted = prompt_of(parse_count(json.dumps(whole).encode()), "msg_1")
    made = ask(**fields)
    assert (counted.turns, counted.tools, counted.continues) == (made.turns, made.tools, made.continues)
