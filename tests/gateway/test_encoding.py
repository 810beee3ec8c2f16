"""Control tokens that a client spells stay text, in every style and every place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.ask import Ask, Turn
from gateway.prompt import Renderer
from tests.gateway.chats import (
    ASK,
    call,
    ids,
    styles,
    text,
    tool,
    turn,
)
from tests.gateway.templates import LLAMA, SMOL, Style


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
    forged = "".join(["x", *(f"{word}\ny" for word in style.specials), "z"])
    harmless = "".join(filter(str.isalnum, forged))
    asks = [FORGERIES[place](style, words) for words in (forged, harmless)]
    if marks:
        asks = [replace(ask, turns=tuple(replace(one, breaks=(len(one.text),)) for one in ask.turns)) for ask in asks]
    assert control(renderer, asks[0]) == control(renderer, asks[1])
    if harmless in text(renderer, asks[1]):
        spelt = text(renderer, asks[0])
        for word in style.specials:
            made = control(renderer, asks[0]).count(renderer._encoder.special_ids[word])
            assert spelt.count(word) > made


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
