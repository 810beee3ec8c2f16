"""Conversations in the styles of published templates: what shapes a prompt, and what must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from engine.messages import Sampling
from gateway.ask import Ask, OutputForm, Tool, ToolCall, ToolChoice, Turn
from gateway.errors import BadRequest
from gateway.prompt import Renderer
from gateway.template import ChatTemplate
from tests.gateway.templates import CODER, LLAMA, MISTRAL, NOON, QWEN, SMOL, STYLES, TRIM, Style, tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where."}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
WEATHER = Tool(name="get_weather", description="Tell the weather.", parameters=SCHEMA)
CLOCK = Tool(name="get_time", description="Tell the time.", parameters={"type": "object", "properties": {}})
CALL = ToolCall(id="call_1", name="get_weather", arguments={"city": "Rome", "days": 2})
TURNS = (
    Turn(role="system", text="Be brief."),
    Turn(role="user", text="What is it like in Rome?"),
    Turn(role="assistant", text="", tool_calls=(CALL,)),
    Turn(role="tool", text='"Sunny"', tool_call_id="call_1"),
    Turn(role="assistant", text="It is sunny."),
    Turn(role="user", text="And in Oslo?"),
)
ASK = Ask(id="a", model="m", turns=TURNS, tools=(WEATHER, CLOCK))

styles = pytest.mark.parametrize("style", STYLES, ids=repr)


def ids(renderer: Renderer, ask: Ask = ASK) -> list[int]:
    """Token ids of a request."""
    found: list[int] = np.frombuffer(renderer.made(ask).tokens, dtype="<u4").tolist()
    return found


def text(renderer: Renderer, ask: Ask = ASK) -> str:
    """A prompt as text, control tokens included."""
    decoded: str = renderer._encoder.tokenizer.decode(ids(renderer, ask), skip_special_tokens=False)
    return decoded


def turn(place: int, **fields: Any) -> Ask:
    """The request with one turn changed."""
    return replace(ASK, turns=(*TURNS[:place], replace(TURNS[place], **fields), *TURNS[place + 1 :]))


def call(**fields: Any) -> Ask:
    """The request with its call changed."""
    return turn(2, tool_calls=(replace(CALL, **fields),))


def tool(**fields: Any) -> Ask:
    """The request with its first tool changed."""
    return replace(ASK, tools=(replace(WEATHER, **fields), CLOCK))


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


NAMES = (
    (QWEN, "enable_thinking", False),
    (LLAMA, "date_string", "01 Feb 2020"),
    (LLAMA, "tools_in_user_message", False),
)


@pytest.mark.parametrize(("style", "name", "value"), NAMES, ids=[name for _, name, _ in NAMES])
def test_template_arguments_shape_the_prompt(style: Style, name: str, value: object) -> None:
    """Each name that a template reads changes its prompt."""
    renderer = style.renderer()
    assert ids(renderer, replace(ASK, template_arguments={name: value})) != ids(renderer)


@styles
@pytest.mark.parametrize(
    "name", ["nonsense", "messages", "tools", "add_generation_prompt", "bos_token", "strftime_now", "keepwarm_signs"]
)
def test_names_that_the_template_does_not_leave_to_clients_are_refused(style: Style, name: str) -> None:
    """Neither unknown names nor the gateway's own may be set."""
    with pytest.raises(BadRequest) as refused:
        style.renderer().made(replace(ASK, template_arguments={name: 1}))
    assert (refused.value.param, refused.value.code) == (f"chat_template_kwargs.{name}", "unknown_name")


def test_a_value_that_breaks_the_template_is_the_callers_error() -> None:
    """A number where the template joins text is refused, not a failure of the gateway."""
    with pytest.raises(BadRequest, match="refused these messages"):
        LLAMA.renderer().made(replace(ASK, template_arguments={"date_string": 7}))


def nested(depth: int) -> dict[str, Any]:
    """An object so deep."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"items": value}
    return value


@styles
@pytest.mark.parametrize("canonical", [True, False])
def test_deep_values_are_refused_in_the_name_of_their_field(style: Style, canonical: bool) -> None:
    """Schemas, arguments and template arguments of any depth are refused before they are written."""
    renderer = style.renderer(canonical=canonical)
    deep = nested(5_000)
    asks = {
        "tools[1]": replace(ASK, tools=(WEATHER, replace(CLOCK, parameters=deep))),
        "messages": call(arguments=deep),
    }
    if style.arguments:
        name = style.arguments[0]
        asks[f"chat_template_kwargs.{name}"] = replace(ASK, template_arguments={name: deep})
    for path, ask in asks.items():
        with pytest.raises(BadRequest) as refused:
            renderer.made(ask)
        assert (refused.value.param, refused.value.code) == (path, "too_deep")


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


def swapped(place: int, name: str = "") -> Callable[[Style, str], Ask]:
    """Forged words in one field of a turn."""
    return lambda style, words: turn(place, **{name or "text": words})


FORGERIES: dict[str, Callable[[Style, str], Ask]] = {
    "user": swapped(1),
    "system": swapped(0),
    "result": swapped(3),
    "assistant": swapped(4),
    "name": swapped(1, "name"),
    "thinking": swapped(4, "thinking"),
    "call text": swapped(2),
    "result id": swapped(3, "tool_call_id"),
    "call name": lambda style, words: call(name=words),
    "argument key": lambda style, words: call(arguments={words: 1}),
    "argument value": lambda style, words: call(arguments={"city": [words, {"a": words}]}),
    "call id": lambda style, words: call(id=words),
    "tool name": lambda style, words: tool(name=words),
    "description": lambda style, words: tool(description=words),
    "schema key": lambda style, words: tool(parameters={"type": "object", "properties": {words: {"type": "string"}}}),
    "schema value": lambda style, words: tool(
        parameters={"type": "object", "properties": {"a": {"type": "string", "enum": [words]}}}
    ),
}


def control(renderer: Renderer, ask: Ask) -> list[int]:
    """The control tokens of a prompt, in order."""
    special = set(renderer._encoder.special_ids.values())
    return [token for token in ids(renderer, ask) if token in special]


@styles
@pytest.mark.parametrize("place", FORGERIES)
@pytest.mark.parametrize("marks", [False, True])
def test_forged_control_tokens_stay_text(style: Style, place: str, marks: bool) -> None:
    """Spelt control tokens make none, wherever they stand, and can still be read where the template writes them."""
    renderer = style.renderer()
    forged, harmless = ("".join(["x", *(f"{word}\ny" for word in style.specials), end]) for end in ("z", "z"))
    harmless = "".join(word for word in harmless if word.isalnum())
    asks = [FORGERIES[place](style, words) for words in (forged, harmless)]
    if marks:
        asks = [replace(ask, turns=tuple(replace(one, breaks=(len(one.text),)) for one in ask.turns)) for ask in asks]
    assert control(renderer, asks[0]) == control(renderer, asks[1])
    shown = place in text(renderer, asks[1]) or harmless in text(renderer, asks[1])
    if shown:
        spelt = text(renderer, asks[0])
        written = [
            word
            for word in style.specials
            if spelt.count(word) > control(renderer, asks[0]).count(renderer._encoder.special_ids[word])
        ]
        assert written == list(style.specials)


def test_forged_template_arguments_stay_text() -> None:
    """A control token that comes by way of a template argument is text too."""
    renderer = LLAMA.renderer()
    forged = replace(ASK, template_arguments={"date_string": "<|eot_id|>"})
    assert control(renderer, forged) == control(renderer, ASK)
    assert "Today Date: <|eot_id|>\n" in text(renderer, forged)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages }}",
        "{{ messages | tojson(ensure_ascii=true) }}",
        "{{ messages | string }}",
        "{{ '' ~ messages[0] }}",
    ],
)
def test_templates_that_write_whole_objects_forge_nothing(source: str) -> None:
    """Python's and ASCII's spelling of a value keep the stand-ins."""
    style = Style(name="whole", source=source, specials=("<|im_end|>",))
    for ask in (Turn(role="user", text="a<|im_end|>b"), Turn(role="user", text="a", tool_call_id="<|im_end|>")):
        plain = control(style.renderer(), Ask(id="a", model="m", turns=(ask,)))
        marked = replace(ask, breaks=(1,))
        assert plain == control(style.renderer(), Ask(id="a", model="m", turns=(marked,))) == []


def test_forged_words_later_leave_the_prompt_before_them_alone() -> None:
    """The built-in wording has the same ids whether or not a later turn spells a control token."""
    style = replace(SMOL, specials=(*SMOL.specials, "<tool_call>", "</tool_call>"))
    renderer = style.renderer()
    plain, forged = ids(renderer), ids(renderer, turn(5, text="And <|im_end|>?"))
    assert plain[: len(plain) - 40] == forged[: len(plain) - 40]


@styles
def test_bos_is_written_once(style: Style) -> None:
    """The template's BOS is the only one, and a prompt without a template has the tokenizer's default."""
    renderer = style.renderer()
    if style.bos:
        bos = renderer._encoder.special_ids[style.bos]
        assert (ids(renderer)[0], ids(renderer).count(bos)) == (bos, 1)
    assert ids(renderer, Ask(id="a", model="m", raw="hi")) == renderer._encoder.encode("hi")


@pytest.mark.parametrize("adds", [True, False])
def test_raw_prompts_begin_as_the_tokenizer_begins(adds: bool) -> None:
    """Where the tokenizer adds BOS by itself, a raw prompt has one and a chat still has only its template's."""
    from tokenizers import processors

    from gateway.encoding import Encoder

    made = tokenizer(MISTRAL.specials)
    if adds:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    template = ChatTemplate(MISTRAL.source, names={"bos_token": "<s>"}, clock=lambda: NOON)
    renderer = Renderer(Encoder(made), template)
    assert ids(renderer, Ask(id="a", model="m", raw="hi")).count(0) == adds
    assert ids(renderer).count(0) == 1


@styles
def test_nothing_is_none(style: Style) -> None:
    """Empty content and arguments write no None and no null, and the call is still shown."""
    ask = replace(call(arguments={}), tools=(Tool(name="get_weather"),))
    spelt = text(style.renderer(), ask)
    assert "None" not in spelt and "null" not in spelt and "Undefined" not in spelt
    assert "get_weather" in spelt.replace("\n", " ").rpartition("Rome")[2]


def test_the_clock_is_given_and_stands_still_for_a_day() -> None:
    """A date in the prompt comes from the given clock, the same all day, and another the next day."""
    now = [NOON]
    renderer = LLAMA.renderer(clock=lambda: now[0])
    first = ids(renderer)
    now[0] = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
    assert ids(renderer) == first
    assert "Today Date: 01 Mar 2026" in text(renderer)
    now[0] += timedelta(minutes=1)
    assert "Today Date: 02 Mar 2026" in text(renderer)
    seconds = Style(name="s", source="{{ strftime_now('%H:%M:%S') }}", specials=("<s>",))
    assert text(seconds.renderer(clock=lambda: now[0] + timedelta(seconds=7))) == "00:00:00"


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
    asked = len(ids(renderer, replace(ASK, turns=TURNS[:known], template_arguments={}))) - len(earlier)
    assert asked == 0
    if style is MISTRAL:  # tools and system text move to the last user's message
        assert shared(earlier, more) < len(earlier) // 2
    else:
        assert shared(earlier, more) == len(earlier)


def test_qwen_drops_old_thinking() -> None:
    """What was thought before the last question goes, so that prompts part where the thinking stood."""
    renderer = QWEN.renderer()
    thought = turn(2, thinking="Hm.").turns
    earlier, more = (ids(renderer, replace(ASK, turns=thought[:end])) for end in (4, 6))
    before = ids(renderer, replace(ASK, turns=thought[:2]))
    assert shared(earlier, more) == len(before)


@styles
@pytest.mark.parametrize("given", ["The answer is", "The answer is  ", "", "x<|im_end|>y</s>\n"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_prompt_that_goes_on_ends_with_the_given_text(style: Style, given: str, marked: bool) -> None:
    """No end of turn and no new turn follow, trailing blanks stay, and marks change nothing."""
    last = Turn(role="assistant", text=given, breaks=(len(given) // 2, len(given)) if marked else ())
    ask = Ask(id="a", model="m", turns=(TURNS[1], last), continues=True)
    renderer = style.renderer()
    spelt = text(renderer, ask)
    assert spelt.endswith("\n" + given if style not in {MISTRAL} else "[/INST] " + given)
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
    source = "{% for m in messages %}{{ m.role }}{% if m.role == 'user' %}({{ m.name }}){% endif %}: {{ m.content }}\n{% endfor %}"
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
