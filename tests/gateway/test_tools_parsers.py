"""Tool calls read out of answers, in every convention."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.ask import Tool, ToolCall
from gateway.events import CallArguments, CallBegan, Text
from gateway.tools import ToolFormat, fresh_id
from gateway.tools.generic import Generic
from gateway.tools.hermes import Hermes
from gateway.tools.json_scan import Json, object_text
from gateway.tools.llama3 import Llama3
from gateway.tools.mistral import Mistral
from tests.gateway.tool_outputs import HERMES, JSON, LLAMA3, MISTRAL, Row

TOOLS = tuple(Tool(name=name) for name in ("get_weather", "get_time", "search", "add_stock"))
FORMATS: tuple[ToolFormat, ...] = (Hermes(), Llama3(), Mistral(), Mistral(named=True), Generic())
TABLES: tuple[tuple[ToolFormat, list[Row]], ...] = (
    (Hermes(), HERMES),
    (Llama3(), LLAMA3),
    (Mistral(), MISTRAL),
    (Generic(), JSON),
)
WRITTEN = [(tool_format, row) for tool_format, rows in TABLES for row in rows]


def stream(tool_format: ToolFormat, pieces: list[str]) -> Iterator[list[Text | CallBegan | CallArguments]]:
    """What each piece brings, and the end."""
    ids = itertools.count()
    parser = tool_format.parser(TOOLS, new_id=lambda: f"id{next(ids)}")
    for piece in pieces:
        yield parser.feed(piece)
    yield parser.finish()


def read(tool_format: ToolFormat, pieces: list[str]) -> list[Text | CallBegan | CallArguments]:
    """All of it, with neighbours of one kind joined."""
    joined: list[Text | CallBegan | CallArguments] = []
    for event in itertools.chain.from_iterable(stream(tool_format, pieces)):
        match joined[-1] if joined else None, event:
            case Text(before), Text(text):
                joined[-1] = Text(before + text)
            case CallArguments(index, before), CallArguments(_, text):
                joined[-1] = CallArguments(index, before + text)
            case _:
                joined.append(event)
    return joined


def told(events: list[Text | CallBegan | CallArguments]) -> tuple[str, list[tuple[str, Any]]]:
    """The text, and the calls with their arguments parsed."""
    text = "".join(event.text for event in events if isinstance(event, Text))
    names = [event.name for event in events if isinstance(event, CallBegan)]
    arguments = [json.loads(event.text) for event in events if isinstance(event, CallArguments)]
    return text, list(zip(names, arguments, strict=True))


@pytest.mark.parametrize(("tool_format", "row"), WRITTEN, ids=[f"{form.name}: {row[0]}" for form, row in WRITTEN])
def test_answers_as_models_write_them(tool_format: ToolFormat, row: Row) -> None:
    """Each answer gives its text and its calls, in one piece and letter by letter."""
    _, answer, text, calls = row
    whole = read(tool_format, [answer])
    assert told(whole) == (text, calls)
    assert read(tool_format, list(answer)) == whole


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<", "<tool", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "ab1", "<|python_tag|>", "```",
    "```json\n", ";", "\n", " ", "[", "]", ",", "{", "}", '{"name": "search", "arguments": {', '"a": "b\\"c"', "search",
    '{"name": "search"', '"name": "search"', '"arguments": ', '"parameters": {}', "null", ', "id": "x"', '"\\u00', "Hi",
    '{"name": "search", "arguments": {"q": [1, {"r": "}"}]}}', '{"arguments": "{}", "name": "get_time"}',
    '"function": ',
    '{"name": "nope", "arguments": {}}', "-1.5e", "tru", "\\", '"', ":", '{"type": "function", ', "\x01", "é",
]  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, list[str]]:
    """An answer of fragments, and the same cut somewhere else."""
    text = "".join(draw(st.lists(st.sampled_from(FRAGMENTS), max_size=12)))
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=8))})
    return text, [text[start:end] for start, end in itertools.pairwise(cuts)]


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda form: form.name)
@given(answers())
@example(("[TOOL_CALLS]search[[ARGS]", ["[TOOL_CALLS]search[", "[ARGS]"]))
def test_any_cut_gives_the_same(tool_format: ToolFormat, answer: tuple[str, list[str]]) -> None:
    """What is read depends on the answer alone, not on where it was cut."""
    text, pieces = answer
    letters = read(tool_format, list(text))
    assert read(tool_format, [text]) == letters
    assert read(tool_format, pieces) == letters


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda form: form.name)
@given(answers())
def test_an_answer_without_calls_is_its_text(tool_format: ToolFormat, answer: tuple[str, list[str]]) -> None:
    """Where no call is read, the text is the whole answer, letter for letter."""
    text, pieces = answer
    events = read(tool_format, pieces)
    if not any(isinstance(event, CallBegan) for event in events):
        assert "".join(event.text for event in events if isinstance(event, Text)) == text


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    ToolCall,
    id=st.just("x"),
    name=st.sampled_from([tool.name for tool in TOOLS]),
    arguments=st.dictionaries(st.text(max_size=5), values, max_size=4),
)


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda form: form.name)
@given(st.lists(calls, min_size=1, max_size=3))
def test_what_is_spelled_is_read(tool_format: ToolFormat, wanted: list[ToolCall]) -> None:
    """Calls that a convention spells, its parser reads: each with its name and arguments, and no text."""
    events = read(tool_format, [tool_format.spell(wanted)])
    assert told(events) == ("", [(call.name, call.arguments) for call in wanted])


@given(values)
def test_the_scanner_takes_what_is_json(value: Any) -> None:
    """Every JSON value that Python writes is taken whole."""
    scanner = Json()
    assert all(scanner.take(char) for char in json.dumps([value], indent=1))
    assert scanner.state == "end"


@given(st.text('{}[]",:0123-+.eE\\unltrasf \n', max_size=12), st.sampled_from(["", "{", '{"":']))
def test_the_scanner_takes_nothing_else(text: str, start: str) -> None:
    """What the scanner takes for an object, Python reads as one, and the other way round."""
    text = start + text
    try:
        is_object = isinstance(json.loads(text, strict=False), dict)
    except json.JSONDecodeError:
        is_object = False
    assert (object_text(text) is not None) == (is_object or text.strip() in {"", "null"})


def test_arguments_come_while_they_are_written() -> None:
    """A call begins with its name and arguments' first letter, and each piece of them goes out at once."""
    pieces = ['<tool_call>\n{"name": "search", "argu', 'ments": {"q', 'uery": "lo', "ng", ' text"}', "}\n</tool_call>"]
    sent = list(stream(Hermes(), pieces))
    assert sent[0] == []
    assert sent[1] == [CallBegan(0, "id0", "search"), CallArguments(0, '{"q')]
    assert sent[2:] == [[CallArguments(0, text)] for text in ('uery": "lo', "ng", ' text"}')] + [[], []]


def test_text_waits_only_while_it_may_announce_a_call() -> None:
    """Text goes out as soon as it is no marker; blanks wait, because they are dropped before a call."""
    pieces = ["One ", "two <to", "ol> three", "\n\n", "<tool_", "box>"]
    sent = list(stream(Hermes(), pieces))
    assert sent == [
        [Text(text)] if text else [] for text in ("One", " two", " <tool> three", "", "", "\n\n<tool_box>", "")
    ]


@pytest.mark.parametrize(
    ("answer", "at"),
    [('{"city": "Rome"}', 3), ('{"name": "Ada", "age": 36}', 11), ("[1, 2]", 2), ("```py\n```", 4), ("Hi {", 1)],
)
def test_a_bare_answer_waits_only_while_it_may_be_a_call(answer: str, at: int) -> None:
    """Where a call needs no marker, the beginning goes out at the first letter that no call has there."""
    sent = list(stream(Generic(), list(answer)))
    assert [bool(events) for events in sent[:at]] == [False] * (at - 1) + [True]
    assert sent[at - 1] == [Text(answer[:at])]


def test_a_call_cut_off_in_its_arguments_stays_a_call() -> None:
    """What was sent is not taken back: the arguments end where the answer does."""
    events = read(Hermes(), ['<tool_call>{"name": "search", "arguments": {"query": "x'])
    assert events == [CallBegan(0, "id0", "search"), CallArguments(0, '{"query": "x')]


def test_arguments_that_break_are_followed_by_text() -> None:
    """From the letter that no JSON can have there, the answer is text."""
    events = read(Hermes(), ['<tool_call>{"name": "search", "arguments": {"query": x}}</tool_call>'])
    assert events == [CallBegan(0, "id0", "search"), CallArguments(0, '{"query": '), Text("x}}</tool_call>")]


def test_a_call_waits_for_its_name() -> None:
    """Arguments that come before the name are held until it is known, and are text if it is not a tool's."""
    sent = list(stream(Hermes(), ['<tool_call>{"arguments": {"a": 1}, "name": ', '"search"', "}</tool_call>"]))
    assert sent == [[], [CallBegan(0, "id0", "search"), CallArguments(0, '{"a": 1}')], [], []]


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>{"name": "search", "arguments": ' + '{"a":' * 50_000,
        '<tool_call>{"arguments": ' + "[" * 200_000,
        '<tool_call>{"arguments": "' + "\\\\" * 100_000,
        "<tool_call>" * 20_000,
        " <" * 100_000,
        '<tool_call>{"' + "k" * 200_000,
    ],
    ids=["deep", "lists", "escapes", "markers", "blanks", "key"],
)
def test_a_long_answer_costs_its_length(answer: str) -> None:
    """Neither depth nor length nor many beginnings make a letter cost more."""
    began = time.process_time()
    for _ in stream(Hermes(), [answer[start : start + 4] for start in range(0, len(answer), 4)]):
        pass
    assert time.process_time() - began < 10


def test_fresh_ids() -> None:
    """An id is 24 letters and digits, another each time."""
    ids = {fresh_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(call_id) == 24 and call_id.isalnum() and call_id.isascii() for call_id in ids)
