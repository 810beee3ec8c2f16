"""What conventions write: grammars, prompts, calls and ids; and which of them a template spells."""

from __future__ import annotations

from functools import cache

import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from tokenizers import AddedToken

from gateway.ask import Tool, ToolCall, ToolChoice
from gateway.errors import ConfigError
from gateway.grammars import check
from gateway.tools import ToolFormat
from gateway.tools.choose import format_of
from gateway.tools.generic import Generic
from gateway.tools.hermes import Hermes
from gateway.tools.llama3 import Llama3
from gateway.tools.mistral import Mistral
from tests.tiny_model import CHATML, tiny_tokenizer

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/place"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"place": {"type": "string", "maxLength": 8}},
    },
)
TIME = Tool(name="get")
STRICT = Tool(name="get_weather", parameters=WEATHER.parameters, strict=True)
REQUIRED = ToolChoice(mode="required")
ONE = ToolChoice(mode="required", parallel=False)
SPECIALS = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]")
FORMATS: tuple[ToolFormat, ...] = (Hermes(), Llama3(), Mistral(), Mistral(named=True), Generic())
named = pytest.mark.parametrize("tool_format", FORMATS, ids=["hermes", "llama3", "mistral", "mistral named", "json"])


@cache
def special_ids() -> dict[str, int]:
    """The markers' ids in a tokenizer that has them as special tokens."""
    tokenizer = _tokenizer(special=True)
    return {marker: tokenizer.convert_tokens_to_ids(marker) for marker in SPECIALS}


@cache
def _tokenizer(*, special: bool):
    tokenizer = tiny_tokenizer()
    if special:
        tokenizer.add_tokens([AddedToken(marker, special=True, normalized=False) for marker in SPECIALS])
    return tokenizer


@cache
def _guide(*, special: bool) -> LLTokenizer:
    return from_tokenizer(_tokenizer(special=special))


def accepts(grammar: str, answer: str, *, special: bool = False) -> bool:
    """Whether an answer may be exactly this."""
    assert check(grammar, param="tools") == grammar
    guide = _guide(special=special)
    matcher = LLMatcher(guide, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = _tokenizer(special=special).encode(answer, add_special_tokens=False)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def call(name: str, **arguments: object) -> ToolCall:
    """A call with an id that nobody looks at."""
    return ToolCall(id="x", name=name, arguments=arguments)


RIGHT = [
    [call("get_weather", city="Rome")],
    [call("get")],
    [call("get", any=[1])],
    [call("get_weather", city="Rome", days=2), call("get"), call("get_weather", city="é")],
]
WRONG = [
    [call("get_weather")],
    [call("get_weather", city=3)],
    [call("get_weather", city="much too long")],
    [call("get_weather", city="Rome", more=1)],
    [call("rm", path="/")],
    [call("get"), call("rm")],
]


@named
def test_a_required_call_obeys_its_schema(tool_format: ToolFormat) -> None:
    """Calls as the convention spells them are accepted if they obey, and nothing else is, free text neither."""
    grammar = tool_format.grammar([WEATHER, TIME], REQUIRED)
    assert [accepts(grammar, tool_format.spell(calls)) for calls in RIGHT] == [True] * len(RIGHT)
    assert [accepts(grammar, tool_format.spell(calls)) for calls in WRONG] == [False] * len(WRONG)
    assert not any(accepts(grammar, text) for text in ("", "No.", "{}", "[]", "No. " + tool_format.spell(RIGHT[0])))


@named
def test_blanks_in_a_call_come_to_an_end(tool_format: ToolFormat) -> None:
    """Arguments may be laid out over lines, but blanks are bounded, so that a call ends."""
    grammar = tool_format.grammar([WEATHER, TIME], REQUIRED)
    spelled = tool_format.spell([call("get_weather", city="Rome")])
    assert accepts(grammar, spelled.replace('{"city"', "{\n" + " " * 31 + '"city"'))
    assert not accepts(grammar, spelled.replace('{"city"', "{\n" + " " * 32 + '"city"'))


@named
def test_one_call_where_several_may_not_be(tool_format: ToolFormat) -> None:
    """Without parallel calls, one call is accepted and two are not."""
    grammar = tool_format.grammar([WEATHER, TIME], ONE)
    assert accepts(grammar, tool_format.spell([call("get")]))
    assert not accepts(grammar, tool_format.spell([call("get"), call("get")]))


@named
def test_only_the_tools_named(tool_format: ToolFormat) -> None:
    """A choice that names tools leaves only these."""
    grammar = tool_format.grammar([WEATHER, TIME], ToolChoice(mode="required", names=frozenset({"get"})))
    assert accepts(grammar, tool_format.spell([call("get")]))
    assert not accepts(grammar, tool_format.spell([call("get_weather", city="Rome")]))


@named
def test_free_answers_are_not_confined(tool_format: ToolFormat) -> None:
    """Where the model may choose and no tool is strict, and where it may not call, there is no grammar."""
    assert tool_format.grammar([WEATHER, TIME], ToolChoice()) == ""
    assert tool_format.grammar([STRICT], ToolChoice(mode="none")) == ""
    assert tool_format.grammar([], REQUIRED) == ""


@named
def test_a_strict_tool_confines_calls_only(tool_format: ToolFormat) -> None:
    """Beside a strict tool, free text stays free, and a call once begun obeys: the strict tool's its schema."""
    grammar = tool_format.grammar([STRICT, TIME], ToolChoice())
    texts = ("", "No.", "Two\nlines, 1 < 2 and [x].\n", "An object: {}")
    assert [accepts(grammar, text) for text in texts] == [True] * len(texts)
    assert [accepts(grammar, tool_format.spell(calls)) for calls in RIGHT] == [True] * len(RIGHT)
    assert [accepts(grammar, tool_format.spell(calls)) for calls in WRONG] == [False] * len(WRONG)


@pytest.mark.parametrize("tool_format", [Hermes(), Mistral(), Mistral(named=True)], ids=["hermes", "list", "named"])
def test_a_strict_tool_confines_calls_behind_text(tool_format: ToolFormat) -> None:
    """A marker behind text begins a call as well, and at most one where calls may not be parallel."""
    tools, good, bad = [STRICT], tool_format.spell(RIGHT[0]), tool_format.spell(WRONG[1])
    grammar = tool_format.grammar(tools, ToolChoice())
    assert accepts(grammar, f"So: {good}")
    assert accepts(grammar, f"So: {good} and {good}.")
    assert not accepts(grammar, f"So: {bad}")
    assert not accepts(grammar, f"So: {good} and {bad}")
    grammar = tool_format.grammar(tools, ToolChoice(parallel=False))
    assert accepts(grammar, f"So: {good}.")
    assert not accepts(grammar, f"So: {good} and {good}.")


@pytest.mark.parametrize("answer", ['  {"name": "x"}', "```json\n{}\n```", "```\n[]\n```", "\n[1]"])
def test_text_cannot_pass_for_a_bare_call(answer: str) -> None:
    """Where a call needs no marker, text that begins as one is not free."""
    assert not accepts(Generic().grammar([STRICT], ToolChoice()), answer)
    assert accepts(Generic().grammar([STRICT], ToolChoice()), f"So: {answer}")


@pytest.mark.parametrize("kind", [Hermes, Mistral, Llama3])
def test_special_tokens_are_spelled_by_id(kind: type[Hermes | Mistral | Llama3]) -> None:
    """A marker that is one token of the tokenizer is that token in the grammar."""
    tool_format = kind(special_ids())
    for choice in (REQUIRED, ToolChoice()):
        grammar = tool_format.grammar([STRICT, TIME], choice)
        assert [accepts(grammar, tool_format.spell(calls), special=True) for calls in RIGHT] == [True] * len(RIGHT)
        assert [accepts(grammar, tool_format.spell(calls), special=True) for calls in WRONG] == [False] * len(WRONG)


@pytest.mark.parametrize("kind", [Hermes, Mistral, Llama3])
def test_a_marker_cannot_be_spelled_out(kind: type[Hermes | Mistral | Llama3]) -> None:
    """Where a marker is a special token, free text does not spell it with others."""
    grammar = kind(special_ids()).grammar([STRICT], ToolChoice())
    matcher = LLMatcher(_guide(special=True), grammar, log_level=0)
    letters = _tokenizer(special=False).encode(f"So: {kind.markers[0]}", add_special_tokens=False)
    assert matcher.try_consume_tokens(letters) == len(letters) - 1


def test_a_named_call_of_special_tokens() -> None:
    """Mistral's newer spelling takes the ids of both its markers."""
    tool_format = Mistral(special_ids(), named=True)
    grammar = tool_format.grammar([STRICT], ToolChoice())
    assert accepts(grammar, f"So: {tool_format.spell(RIGHT[0])}", special=True)
    assert not accepts(grammar, f"So: {tool_format.spell(WRONG[0])}", special=True)


def test_llamas_tag_announces_calls_behind_text() -> None:
    """`<|python_tag|>` may stand before a call where the model may choose, and nothing but a call may follow."""
    grammar = Llama3(special_ids()).grammar([STRICT], ToolChoice())
    good, bad = Llama3().spell(RIGHT[0]), Llama3().spell(WRONG[0])
    assert accepts(grammar, f"<|python_tag|>{good}", special=True)
    assert accepts(grammar, f"So: <|python_tag|>{good}", special=True)
    assert not accepts(grammar, f"<|python_tag|>{bad}", special=True)
    assert not accepts(Llama3().grammar([STRICT], ToolChoice()), f"So: <|python_tag|>{bad}")


def test_a_schema_beyond_the_grammar_still_forces_a_call() -> None:
    """What llguidance does not know of a schema is passed over, unless the tool is strict."""
    odd = Tool(name="odd", parameters={"type": "object", "not": {"required": ["a"]}})
    assert accepts(Hermes().grammar([odd], REQUIRED), Hermes().spell([call("odd", b=1)]))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tools></tools><tool_call>{% endif %}", "hermes"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama3"),
        ("{% if tools %}Environment: ipython{% endif %}{{ '\"parameters\": ' }}", "llama3"),
        ("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", "json"),
        (CHATML, "hermes"),
    ],
)
def test_the_template_tells_the_convention(template: str, name: str) -> None:
    """The convention is read from what the template spells; one that knows no tools gets ours."""
    assert format_of(template).name == name


def test_the_operator_decides() -> None:
    """A setting overrules the template, and one that does not exist is refused with those that do."""
    for name in ("hermes", "llama3", "mistral", "json"):
        assert format_of("<tool_call>", name).name == name
    with pytest.raises(ConfigError, match="hermes, llama3, mistral, json"):
        format_of("", "openai")


def test_mistrals_template_tells_which_spelling() -> None:
    """A template with `[ARGS]` calls by name before the arguments."""
    calls = [call("get", b=1, a=2)]
    assert format_of("[TOOL_CALLS][ARGS]").spell(calls) == '[TOOL_CALLS]get[ARGS]{"b": 1, "a": 2}'
    assert format_of("[TOOL_CALLS]").spell(calls) == '[TOOL_CALLS][{"name": "get", "arguments": {"b": 1, "a": 2}}]'


def test_calls_are_spelled() -> None:
    """Each convention writes calls in its own way, arguments in the order they have."""
    two = [call("get", a=1, b="é"), ToolCall(id="y", name="get", arguments="{broken")]
    assert Hermes().spell(two) == (
        '<tool_call>\n{"name": "get", "arguments": {"a": 1, "b": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get", "arguments": "{broken"}\n</tool_call>'
    )
    assert Llama3().spell(two[:1] * 2) == "; ".join(['{"name": "get", "parameters": {"a": 1, "b": "é"}}'] * 2)
    assert Generic().spell(two[:1]) == '{"name": "get", "arguments": {"a": 1, "b": "é"}}'
    assert all(tool_format.spell([]) == "" for tool_format in FORMATS)


@named
def test_the_prompt_holds_the_definitions_as_given(tool_format: ToolFormat) -> None:
    """The built-in prompt has one definition a line, letter for letter, and says how to call."""
    definitions = ['{"name":  "a{how}"}', '{"name": "b"}']
    prompt = tool_format.prompt(definitions)
    assert "<tools>\n" + "\n".join(definitions) + "\n</tools>" in prompt
    assert "<function-name>" in prompt.partition("</tools>\n\n")[2]
    assert all(
        marker in prompt for marker in tool_format.markers if marker not in {"[CALL_ID]", "[ARGS]", "<|python_tag|>"}
    )


def test_call_ids() -> None:
    """Mistral's templates get nine letters and digits, equal for equal ids; others get the id."""
    assert Mistral().call_id("abcdefghi") == "abcdefghi"
    digest = Mistral().call_id("call_0123")
    assert digest == Mistral().call_id("call_0123") != Mistral().call_id("call_0124")
    assert len(digest) == 9 and digest.isalnum() and digest.isascii()
    assert {form.call_id("call_1") for form in (Hermes(), Llama3(), Generic())} == {"call_1"}
