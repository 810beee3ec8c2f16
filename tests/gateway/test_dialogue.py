"""Conversations in the styles of published templates: what shapes a prompt, and what must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine.messages import Sampling
from gateway.api.openai_chat import ask_of, parse
from gateway.ask import Ask, OutputForm, Tool, ToolCall, ToolChoice, Turn
from gateway.errors import BadRequest
from tests.gateway.chats import (
    ASK,
    CLOCK,
    SCHEMA,
    TURNS,
    WEATHER,
    call,
    ids,
    styles,
    text,
    tool,
    turn,
)
from tests.gateway.templates import CODER, LLAMA, MISTRAL, QWEN, TRIM, Style

CHANGES: dict[str, Ask] = {
    "system text": turn(0, text="Be long."),
    "user text": turn(1, text="What is it like in Bonn?"),
    "newest text": turn(5, text="And in Bonn?"),
    "role": replace(ASK, turns=(*TURNS, Turn(role="assistant", text="Cold."), Turn(role="user", text="Sure?"))),
    "system name": turn(0, name="ann"),
    "user name": turn(1, name="ann"),
    "assistant name": turn(4, name="ann"),
    "text beside calls": turn(2, text="I look it up."),
    "call name": call(name="get_time"),
    "call arguments": call(arguments={"city": "Bonn"}),
    "call list order": call(arguments={"city": ["a", "b"]}),
    "call text": call(arguments="{broken"),
    "call id": replace(
        ASK, turns=(*TURNS[:2], call(id="call_2").turns[2], replace(TURNS[3], tool_call_id="call_2"), *TURNS[4:])
    ),
    "result": turn(3, text='"Rainy"'),
    "result id": turn(3, tool_call_id="call_2"),
    "result name": turn(3, name="get_weather"),
    "old thinking": turn(4, thinking="Hm."),
    "thinking beside calls": turn(2, thinking="Hm."),
    "tool name": tool(name="get_rain"),
    "tool description": tool(description="Tell the rain."),
    "no description": tool(description=""),
    "parameters": tool(parameters={**SCHEMA, "properties": {"city": {"type": "integer"}}}),
    "required order": tool(parameters={**SCHEMA, "required": ["city", "days"]}),
    "tool order": replace(ASK, tools=(CLOCK, WEATHER)),
    "fewer tools": replace(ASK, tools=(WEATHER,)),
    "no tools": replace(ASK, tools=()),
    "continues": replace(ASK, turns=TURNS[:5], continues=True),
}
LOOSE = {"old thinking": {"thinking beside calls"}}  # Qwen drops both: a question follows them
SAME_TURNS = {"continues": replace(ASK, turns=TURNS[:5])}


@styles
@pytest.mark.parametrize("field", CHANGES)
def test_what_claims_to_shape_the_prompt_does(style: Style, field: str) -> None:
    """Each field changes the token ids, but for those that a template leaves out on purpose, and these never do."""
    renderer, changed = style.renderer(), CHANGES[field]
    if field == "call text" and style is CODER:
        with pytest.raises(BadRequest, match="refused these messages"):
            renderer.made(changed)
        return
    if field == "continues" and style is MISTRAL:
        changed = replace(changed, turns=(TURNS[1], TURNS[4]))
        assert ids(renderer, changed) != ids(renderer, replace(changed, continues=False))
        return
    plain = SAME_TURNS.get(field, ASK)
    dropped = field in style.drops or any(field in more for drop, more in LOOSE.items() if drop in style.drops)
    assert (ids(renderer, changed) == ids(renderer, plain)) is dropped


@styles
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": ToolChoice(mode="required", names=frozenset({"get_time"}), parallel=False)},
        {"tool_choice": ToolChoice(mode="none")},
        {"output": OutputForm(kind="json_schema", schema=SCHEMA)},
        {"sampling": Sampling(temperature=0.0, seed=3, logprobs=2), "stops": ("x",), "stop_ids": (3,), "choices": 2},
        {"max_tokens": 7, "tenant": "t", "partition": "p", "prompt_logprobs": 1, "prompt_field": "input", "id": "b"},
        {"tools": (replace(WEATHER, strict=True, marked=True), replace(CLOCK, marked=True))},
        {"turns": tuple(replace(one, breaks=(0, len(one.text) // 2, len(one.text))) for one in TURNS)},
        {"turns": call(marked=True).turns},
    ],
    ids=["choice", "no choice", "form", "sampling", "limits", "tool marks", "marks", "call mark"],
)
def test_what_does_not_shape_the_prompt_leaves_it(style: Style, fields: dict[str, Any]) -> None:
    """Tool choice, form of the answer, sampling, limits and marks never change a token id."""
    renderer = style.renderer()
    assert ids(renderer, replace(ASK, **fields)) == ids(renderer)


SHUFFLED = {
    "required": ["city"],
    "properties": {"days": {"minimum": 1.0, "type": "integer"}, "city": {"description": "Where.", "type": "string"}},
    "type": "object",
}


@styles
def test_spelling_of_json_does_not_count_unless_asked_to(style: Style) -> None:
    """Key order and `1.0` leave the ids alone in schemas and arguments; without the canonical form they do not."""
    asks = [tool(parameters=SHUFFLED), call(arguments={"days": 2.0, "city": "Rome"})]
    canonical, as_sent = style.renderer(), style.renderer(canonical=False)
    assert [ids(canonical, ask) for ask in asks] == [ids(canonical)] * 2
    assert [ids(as_sent, ask) == ids(as_sent) for ask in asks] == [False, False]


@styles
def test_nothing_is_none(style: Style) -> None:
    """Empty content and arguments write no None and no null, and the call is still shown."""
    ask = replace(call(arguments={}), tools=(Tool(name="get_weather"),))
    spelt = text(style.renderer(), ask)
    assert "None" not in spelt and "null" not in spelt and "Undefined" not in spelt
    assert "get_weather" in spelt.replace("\n", " ").rpartition("Rome")[2]


def shared(one: list[int], other: list[int]) -> int:
    """How many leading ids are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@styles
@pytest.mark.parametrize("known", [2, 4])
def test_turns_go_on_from_the_prompt_before(style: Style, known: int) -> None:
    """A prompt with more turns begins as the earlier one did, up to where that one asked for an answer."""
    renderer = style.renderer()
    earlier = ids(renderer, replace(ASK, turns=TURNS[:known]))
    more = ids(renderer, replace(ASK, turns=TURNS))
    if style is MISTRAL:  # tools and system text move to the last user's message
        assert shared(earlier, more) < len(earlier) // 2
    else:  # of Llama's two line ends, this tokenizer joins the last to what follows
        assert shared(earlier, more) == len(earlier) - (style is LLAMA)


def test_qwen_drops_old_thinking() -> None:
    """What was thought before the last question goes, so that prompts part where the thinking stood."""
    renderer = QWEN.renderer()
    thought = turn(2, thinking="Hm.").turns
    earlier, more = (ids(renderer, replace(ASK, turns=thought[:end])) for end in (4, 6))
    before = ids(renderer, replace(ASK, turns=thought[:2]))
    assert shared(earlier, more) == len(before) + len("<")  # of <think> then, of <tool_call> now


@styles
@pytest.mark.parametrize("given", ["The answer is", "The answer is  ", "", "x<|im_end|>y</s>\n"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_prompt_that_goes_on_ends_with_the_given_text(style: Style, given: str, marked: bool) -> None:
    """No end of turn and no new turn follow, trailing blanks stay, and marks change nothing."""
    last = Turn(role="assistant", text=given, breaks=(len(given) // 2, len(given)) if marked else ())
    ask = Ask(id="a", model="m", turns=(TURNS[1], last), continues=True)
    renderer = style.renderer()
    spelt = text(renderer, ask)
    assert spelt.endswith("\n" + given if style is not MISTRAL else "[/INST] " + given)
    if marked:
        *_, place = renderer.made(ask).marks
        assert place == len(ids(renderer, ask))


def test_a_turn_whose_text_the_template_drops_cannot_go_on() -> None:
    """Llama's template writes a turn that calls without its text."""
    with pytest.raises(BadRequest, match="none can go on"):
        LLAMA.renderer().made(replace(ASK, turns=turn(2, text="I look.").turns[:3], continues=True))


@styles
def test_ids_of_calls_are_what_the_template_accepts(style: Style) -> None:
    """Ids of any length are served, and a call and its result keep one id."""
    spelt = text(style.renderer(), replace(ASK, tools=()))
    if style is MISTRAL:
        found = style.renderer().format.call_id("call_1")
        assert (len(found), spelt.count(found)) == (9, 2)
    else:
        assert "call_1" not in spelt


def test_templates_that_write_names_are_told_them() -> None:
    """A name goes where the template writes it, role by role, and else stands before the text."""
    who = "{{ m.role }}{% if m.role == 'user' %}({{ m.name }}){% endif %}"
    source = "{% for m in messages %}" + who + ": {{ m.content }}\n{% endfor %}"
    renderer = Style(name="names", source=source, specials=("<s>",)).renderer()
    turns = (Turn(role="user", text="hi", name="ann"), Turn(role="assistant", text="ho", name="bob"))
    assert text(renderer, Ask(id="a", model="m", turns=turns)) == "user(ann): hi\nassistant: bob: ho\n"


def test_results_of_a_template_without_them_are_the_users_words() -> None:
    """Results and the question behind them are one message."""
    turns = (*TURNS[2:4], replace(TURNS[3], name="b"), TURNS[5])
    assert text(TRIM.renderer(), Ask(id="a", model="m", turns=turns)).endswith(
        '<turn>user\n<tool_response>\n"Sunny"\n</tool_response>\n<tool_response>\nb: "Sunny"\n</tool_response>\n'
        "And in Oslo?\n</turn>\n<turn>assistant\n"
    )


@styles
def test_parallel_calls_are_written_by_every_template(style: Style) -> None:
    """Where a template takes one call a turn, each call stands in a turn of its own with its result behind it."""
    calls = (*TURNS[2].tool_calls, ToolCall(id="call_2", name="get_time", arguments={"zone": "UTC"}))
    results = (Turn(role="tool", text="Noon", tool_call_id="call_2"), *TURNS[3:])
    written = text(style.renderer(), replace(ASK, turns=(TURNS[1], replace(TURNS[2], tool_calls=calls), *results)))
    parts = ['"Rome"', "Sunny", "UTC", "Noon"] if style is LLAMA else ["Rome", "UTC", "Noon", "Sunny"]
    places = [written.rindex(part) for part in parts]
    assert places == sorted(places)


CALLED: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "add_stock", "arguments": "{}"}}
EMPTY: list[dict[str, Any]] = [
    {"content": None, "tool_calls": [CALLED]},
    {"tool_calls": [CALLED]},
    {"content": "", "tool_calls": [CALLED]},
    {"content": [], "tool_calls": [CALLED]},
    *(
        {"content": "", "tool_calls": [{**CALLED, "function": {"name": "add_stock", "arguments": arguments}}]}
        for arguments in ("", "null", " { } ")
    ),
]


def chat(*messages: dict[str, Any]) -> Ask:
    """A chat completion's body in our words."""
    return ask_of(parse(msgspec.json.encode({"model": "m", "messages": messages})), "a")


@styles
def test_absent_null_and_empty_are_the_same(style: Style) -> None:
    """Content and arguments that are missing, null or empty make one prompt, which says neither None nor null."""
    renderer = style.renderer()
    user, result = {"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
    asks = [chat(user, {"role": "assistant", **fields}, result) for fields in EMPTY]
    assert [ids(renderer, ask) for ask in asks] == [ids(renderer, asks[0])] * len(asks)
    written = text(renderer, asks[0])
    assert "add_stock" in written and "None" not in written and "null" not in written


@styles
def test_parts_are_joined_without_a_joiner(style: Style) -> None:
    """All parts are written in order, empty ones change nothing, and one string makes the same prompt."""
    renderer = style.renderer()
    pieces = ["Rule one. ", "Rule two. ", "", "Go."]
    forms = ["".join(pieces), [{"type": "text", "text": piece} for piece in pieces]]
    asks = [
        chat(
            {"role": "system", "content": form},
            {"role": "user", "content": form},
            {"role": "assistant", "content": form},
        )
        for form in forms
    ]
    assert ids(renderer, asks[0]) == ids(renderer, asks[1])
    assert text(renderer, asks[1]).count("Rule one. Rule two. Go.") == 3 - (style is MISTRAL)  # without its system text
    assert ids(renderer, chat({"role": "user", "content": []})) == ids(renderer, chat({"role": "user", "content": ""}))
