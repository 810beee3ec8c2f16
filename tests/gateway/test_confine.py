"""What an answer is confined to: its calls, its form, or one of the two."""

from __future__ import annotations

from functools import cache

import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from gateway.ask import Ask, OutputForm, Tool, ToolCall, ToolChoice
from gateway.confine import confine, grammar_for
from gateway.errors import BadRequest
from gateway.tools import ToolFormat
from gateway.tools.generic import Generic
from gateway.tools.hermes import Hermes
from gateway.tools.llama3 import Llama3
from gateway.tools.mistral import Mistral
from tests.tiny_model import tiny_tokenizer

ZONE = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
TIME = Tool(name="get_time", parameters=ZONE)
STRICT = Tool(name="get_time", parameters={**ZONE, "additionalProperties": False}, strict=True)
RAIN = Tool(name="get_rain")
BAD = Tool(name="bad", parameters={"type": "object", "properties": {"a": {"type": "nonsense"}}}, strict=True)
FORM = OutputForm(kind="regex", text="yes|no")
AUTO, REQUIRED = ToolChoice(), ToolChoice(mode="required")
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
LOOSE = '<tool_call>\n{"name": "get_time", "arguments": {"zone": 1}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_rain", "arguments": {}}\n</tool_call>'
FORMATS: tuple[ToolFormat, ...] = (Hermes(), Llama3(), Mistral(), Mistral(named=True), Generic())


@cache
def _guide() -> LLTokenizer:
    return from_tokenizer(tiny_tokenizer())


def accepts(grammar: str, answer: str) -> bool:
    """Whether an answer may be exactly this."""
    matcher = LLMatcher(_guide(), grammar, log_level=0)
    tokens = tiny_tokenizer().encode(answer, add_special_tokens=False)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def ask(
    *tools: Tool,
    choice: ToolChoice = AUTO,
    output: OutputForm | None = None,
) -> Ask:
    """A request."""
    return Ask(id="a", model="m", tools=tools, tool_choice=choice, output=output)


@pytest.mark.parametrize(
    ("made", "right", "wrong"),
    [
        (ask(TIME, RAIN, choice=REQUIRED), [CALL, OTHER, f"{CALL}\n{OTHER}"], ["", "yes", "Hm. " + CALL]),
        (ask(TIME, choice=ToolChoice(mode="required", parallel=False)), [CALL], [f"{CALL}\n{CALL}", LOOSE]),
        (
            ask(TIME, RAIN, choice=ToolChoice(mode="required", names=frozenset({"get_rain"}))),
            [OTHER],
            [CALL, "no", f"{OTHER}\n{CALL}"],
        ),
        (ask(STRICT, RAIN), ["", "Anything.", CALL, f"So: {CALL}", OTHER], [LOOSE]),
        (ask(output=FORM), ["yes", "no"], ["", "maybe", CALL]),
        (ask(TIME, RAIN, output=FORM), ["yes", "no", CALL, OTHER], ["", "maybe", f"yes{CALL}"]),
        (ask(STRICT, output=FORM), ["yes", CALL], ["maybe", LOOSE]),
        (ask(TIME, RAIN, choice=ToolChoice(names=frozenset({"get_rain"})), output=FORM), ["yes", OTHER], ["", CALL]),
        (ask(TIME, choice=ToolChoice(mode="none"), output=FORM), ["yes"], [CALL]),
        (ask(TIME, choice=REQUIRED, output=FORM), [CALL], ["yes"]),
        (ask(TIME, choice=ToolChoice(names=frozenset()), output=FORM), ["yes"], [CALL]),
    ],
    ids=[
        "required",
        "single",
        "named",
        "strict",
        "form",
        "either",
        "strict or form",
        "some or form",
        "no tools",
        "required beats form",
        "no tool allowed",
    ],
)
def test_what_an_answer_may_be(made: Ask, right: list[str], wrong: list[str]) -> None:
    """Calls where they are required, free text or calls where the model chooses, form or calls where both are set."""
    grammar = grammar_for(made, Hermes())
    assert [accepts(grammar, answer) for answer in right] == [True] * len(right)
    assert [accepts(grammar, answer) for answer in wrong] == [False] * len(wrong)


@pytest.mark.parametrize(
    "made",
    [ask(), ask(TIME, RAIN), ask(TIME, choice=ToolChoice(mode="none")), ask(STRICT, choice=ToolChoice(mode="none"))],
)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
async def test_what_asks_for_nothing_is_not_confined(made: Ask, form: ToolFormat) -> None:
    """No grammar for plain requests, for tools that the model may call as it likes, nor for those it may not."""
    assert await confine(made, form) == ""


NAMED = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}
BESIDE = (  # a form, answers that it allows, and answers that it does not
    (FORM, ["yes"], ["{}", "maybe"]),
    (OutputForm(kind="json_object"), ["{}", '{"a": [1]}', '{"name": "Bob"}'], ["yes", "[]"]),
    (OutputForm(kind="json_schema", schema=ZONE), ['{"zone": "UTC"}', '{"zone":"UTC"}', '{ "zone": "a"}'], ["yes"]),
    (OutputForm(kind="json_schema", schema=NAMED), ['{"name": "Bob"}', '{"name":"get_time","age":1}'], ["{}"]),
    (OutputForm(kind="lark", text='start: "yes"'), ["yes"], ["no"]),
    (OutputForm(kind="gbnf", text='root ::= "yes"'), ["yes"], ["no"]),
)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize(("output", "right", "wrong"), BESIDE)
async def test_forms_and_calls_stand_side_by_side(
    form: ToolFormat, output: OutputForm, right: list[str], wrong: list[str]
) -> None:
    """The form or a call, whatever the convention, also where both are JSON and begin alike."""
    grammar = await confine(ask(TIME, output=output), form)
    called = form.spell([ToolCall(id="1", name="get_time", arguments={"zone": "UTC"})])
    assert [accepts(grammar, answer) for answer in [*right, called]] == [True] * (len(right) + 1)
    assert [accepts(grammar, answer) for answer in wrong] == [False] * len(wrong)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "made",
    [ask(BAD), ask(BAD, choice=REQUIRED), ask(BAD, output=FORM), ask(TIME, BAD, choice=REQUIRED, output=FORM)],
    ids=["auto", "required", "form", "required and form"],
)
async def test_a_wrong_schema_of_a_tool_is_refused(form: ToolFormat, made: Ask) -> None:
    """A schema that does not compile is the client's error, named as tools, also where the grammar is one of two."""
    with pytest.raises(BadRequest) as refused:
        await confine(made, form)
    assert (refused.value.param, refused.value.code) == ("tools", "invalid_schema")


def test_a_wrong_schema_shows_only_with_a_form() -> None:
    """A tool that is not strict is confined once a form is asked for, so then its schema must compile."""
    loose = Tool(name="bad", parameters={"type": "object", "properties": {"a": {"type": "nonsense"}}})
    assert grammar_for(ask(loose), Hermes()) == ""
    with pytest.raises(BadRequest) as refused:
        grammar_for(ask(loose, output=FORM), Hermes())
    assert refused.value.param == "tools"


async def test_a_wrong_form_is_refused_in_its_own_name() -> None:
    """With tools beside it, the form's field is named."""
    output = OutputForm(kind="regex", text="a(", path="text.format")
    with pytest.raises(BadRequest) as refused:
        await confine(ask(TIME, output=output), Hermes())
    assert refused.value.param == "text.format"
