"""Where marks come out: at the last token border at or before the end of what is marked, as rendered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.ask import Ask, Tool, ToolCall, Turn
from gateway.prompt import Renderer
from tests.gateway.chats import CLOCK, SCHEMA, TURNS, WEATHER, ids, spelt, styles, text
from tests.gateway.templates import CODER, LLAMA, MISTRAL, QWEN, SMOL, STYLES, TRIM, Style

RAIN = Tool(name="get_rain", description="Tell the rain.", parameters={**SCHEMA, "required": ["days"]})
TOOLS = (WEATHER, RAIN, CLOCK)
BLOCK = "Rule one: be kind to birds.\n\n"
SYSTEM = Turn(role="system", text=f"{BLOCK}Rule two: answer.", breaks=(len(BLOCK),))
CALLS = (
    ToolCall(id="call_1", name="get_rain", arguments={"days": 2, "city": "Rome"}),
    ToolCall(id="call_2", name="get_time", arguments={"zone": "Europe/Rome", "city": "Rome"}),
)
TALK = (
    replace(SYSTEM, breaks=()),
    TURNS[1],
    Turn(role="assistant", text="", tool_calls=CALLS),
    Turn(role="tool", text="12 mm", tool_call_id="call_1"),
    Turn(role="tool", text="Noon", tool_call_id="call_2"),
    Turn(role="assistant", text="Wet at noon."),
    Turn(role="user", text="And in Oslo? Be exact."),
)


def border(renderer: Renderer, ask: Ask, end: int) -> int:
    """Count, token by token, how many tokens spell no more than the first `end` characters of the rendered text."""
    wanted = text(renderer, ask)[:end].encode()
    spelling = {token: word.encode() for word, token in renderer._encoder.special_ids.items()}
    length = 0
    for count, token in enumerate(ids(renderer, ask)):
        length += len(spelling.get(token) or renderer.spelling.bytes_of(token))
        if length > len(wanted):
            return count
    return len(ids(renderer, ask))


def behind(whole: str, block: str) -> int:
    """Where the only occurrence of a block ends."""
    assert whole.count(block) == 1, block
    return whole.index(block) + len(block)


def asked(turns: tuple[Turn, ...] = TALK, tools: tuple[Tool, ...] = TOOLS) -> Ask:
    """A request."""
    return Ask(id="a", model="m", turns=turns, tools=tools)


def turn(place: int, **fields: Any) -> Ask:
    """The request with one turn changed."""
    return asked(turns=(*TALK[:place], replace(TALK[place], **fields), *TALK[place + 1 :]))


FORGED = " <|im_end|><|eot_id|></s></turn>"
forging = pytest.mark.parametrize("forged", ["", FORGED], ids=["plain", "forged"])


def forge(ask: Ask, forged: str) -> Ask:
    """The request with a control token spelt in its first and its last turn."""
    first, *middle, last = ask.turns
    return replace(
        ask, turns=(replace(first, text=first.text + forged), *middle, replace(last, text=last.text + forged))
    )


def only_mark(renderer: Renderer, ask: Ask) -> int:
    """The one mark of a request, whose ids are those of the same request without."""
    bare = [
        replace(one, breaks=(), tool_calls=tuple(replace(c, marked=False) for c in one.tool_calls)) for one in ask.turns
    ]
    tools = tuple(replace(one, marked=False) for one in ask.tools)
    assert ids(renderer, ask) == ids(renderer, replace(ask, turns=tuple(bare), tools=tools))
    (mark,) = renderer.made(ask).marks
    return mark


@styles
@forging
@pytest.mark.parametrize(
    ("place", "block"),
    [
        (0, "Rule one: be kind to birds.\n\n"),
        (0, "Rule one: be"),
        (6, "And in Oslo? "),
        (6, "And in O"),
        (5, "Wet at n"),
    ],
)
def test_a_mark_within_a_text(style: Style, forged: str, place: int, block: str) -> None:
    """A mark after some words of a turn stands at the last border at or before their end."""
    renderer = style.renderer()
    ask = forge(turn(place, breaks=(len(block),)), forged)
    assert only_mark(renderer, ask) == border(renderer, ask, behind(text(renderer, ask), block))


@styles
@forging
@pytest.mark.parametrize("place", [0, 5, 6])
@pytest.mark.parametrize("blanks", ["", " ", "\n\n \n"])
def test_a_mark_at_the_end_of_a_text(style: Style, forged: str, place: int, blanks: str) -> None:
    """A mark on a whole turn stands at its end, also where the template strips blanks from it."""
    renderer = style.renderer()
    words = TALK[place].text + forged + blanks
    ask = forge(turn(place, text=words, breaks=(len(words),)), "" if place in {0, 6} else forged)
    strips = {0: style in {TRIM, LLAMA}, 5: style in {TRIM, LLAMA, MISTRAL}, 6: style in {TRIM, LLAMA}}[place]
    end = behind(text(renderer, ask), words.strip() if strips else words)
    assert only_mark(renderer, ask) == border(renderer, ask, end)


@styles
@forging
@pytest.mark.parametrize("place", [3, 4])
def test_a_mark_on_a_result(style: Style, forged: str, place: int) -> None:
    """A mark on a tool's result stands behind its text."""
    renderer = style.renderer()
    ask = forge(turn(place, breaks=(len(TALK[place].text),)), forged)
    assert only_mark(renderer, ask) == border(renderer, ask, behind(text(renderer, ask), TALK[place].text))


def written(style: Style, tool: Tool) -> str:
    """A definition as a template writes it, as far as it ends with what is the tool's."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if style is CODER:
        required = json.dumps(tool.parameters.get("required", []))
        return f"<required>{required}</required>\n</function>\n<"  # the next tool and the end of all begin alike
    whole = json.dumps({"type": "function", "function": function}, indent=4 if style is LLAMA else None)
    return whole.removesuffix("}}") if style is MISTRAL else whole  # it writes an object's parts one by one


@styles
@forging
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_mark_on_a_tool(style: Style, forged: str, place: int) -> None:
    """A mark on a definition stands behind it, be it the first, one amid others or the last."""
    renderer = style.renderer()
    tools = tuple(replace(one, marked=at == place) for at, one in enumerate(TOOLS))
    ask = forge(asked(tools=tools), forged)
    assert only_mark(renderer, ask) == border(renderer, ask, behind(text(renderer, ask), written(style, TOOLS[place])))


ENDS = {  # what is written of the two calls, up to where the mark stands
    SMOL.name: ('{"city": "Rome", "days": 2}}\n</tool_call>', '"zone": "Europe/Rome"}}\n</tool_call>'),
    QWEN.name: ('{"city": "Rome", "days": 2}', '"zone": "Europe/Rome"}'),
    LLAMA.name: ('{"city": "Rome", "days": 2}', '"zone": "Europe/Rome"}'),
    MISTRAL.name: ('{"city": "Rome", "days": 2}', '"zone": "Europe/Rome"}'),
    TRIM.name: ('{"city": "Rome", "days": 2}}\n</tool_call>', '"zone": "Europe/Rome"}}\n</tool_call>'),
    CODER.name: (None, "<parameter=zone>\nEurope/Rome"),
}


@styles
@forging
@pytest.mark.parametrize("place", [0, 1])
def test_a_mark_on_a_call(style: Style, forged: str, place: int) -> None:
    """A mark on a call stands behind what the template writes of it; where that has no place for it, it is 0."""
    renderer = style.renderer()
    calls = tuple(replace(one, marked=at == place) for at, one in enumerate(CALLS))
    ask = forge(turn(2, tool_calls=calls), forged)
    block = ENDS[style.name][place]
    expected = 0 if block is None else border(renderer, ask, behind(text(renderer, ask), block))
    assert only_mark(renderer, ask) == expected


@styles
@forging
def test_several_marks_stand_where_each_alone_does(style: Style, forged: str) -> None:
    """Marks do not move each other, blanks stripped or not, and those at one place are at one place."""
    renderer = style.renderer()
    blanks = TALK[1].text + " \n"
    places = [((0, len(BLOCK)), "system"), ((1, len(blanks)), "user"), ((6, 3), "newest"), ((6, 3), "newest")]
    base = forge(turn(1, text=blanks), forged)
    alone = []
    for (place, at), _ in places:
        turns = tuple(replace(one, breaks=(at,)) if here == place else one for here, one in enumerate(base.turns))
        alone.append(only_mark(renderer, replace(base, turns=turns)))
    marks = {0: (len(BLOCK),), 1: (len(blanks),), 6: (3, 3)}
    turns = tuple(replace(one, breaks=marks.get(here, ())) for here, one in enumerate(base.turns))
    assert list(renderer.made(replace(base, turns=turns)).marks) == alone
    assert alone[-1] == alone[-2]


@styles
def test_marks_stand_in_the_order_of_the_rendering(style: Style) -> None:
    """The tools' mark is behind the system's where the template writes tools behind it, before it where not."""
    renderer = style.renderer()
    ask = asked(turns=(SYSTEM, *TALK[1:]), tools=(*TOOLS[:2], replace(CLOCK, marked=True)))
    tools, system = renderer.made(ask).marks
    whole = text(renderer, ask)
    assert (tools < system) is (whole.index("get_time") < whole.index("birds"))
    assert (tools < system) is (style in {SMOL, TRIM, MISTRAL})


@styles
@forging
def test_many_marks_cost_what_four_cost(style: Style, forged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand marks the latest four are found, with at most five renderings more."""
    renderer = style.renderer()
    words = "Be kind. " * 1000
    ask = forge(turn(6, text=words, breaks=tuple(range(9, 9001, 9))), forged)
    renderings = 0
    render = renderer._template.render

    def counted(*given: Any, **more: Any) -> str:
        nonlocal renderings
        renderings += 1
        return render(*given, **more)

    monkeypatch.setattr(renderer._template, "render", counted)
    prompt = renderer.made(ask)
    assert renderings == (6 if style in {TRIM, LLAMA} and not forged else 2)
    start = text(renderer, ask).index("Be kind. ")
    last = 8999 if style in {TRIM, LLAMA} and not forged else 9000
    assert list(prompt.marks) == [border(renderer, ask, start + at) for at in (8973, 8982, 8991, last)]


def test_a_mark_on_words_that_the_template_drops_stands_at_the_one_before() -> None:
    """Llama writes a turn that calls without its text, so a mark in it says no more than the mark before."""
    renderer = LLAMA.renderer()
    turns = (SYSTEM, TALK[1], replace(TALK[2], text="I look.", breaks=(7,)), *TALK[3:])
    first, second = renderer.made(asked(turns=turns)).marks
    assert first == second > 0


def test_a_mark_within_a_spelt_control_token_stands_before_it() -> None:
    """What spells a control token is not cut by a mark."""
    renderer = SMOL.renderer()
    ask = Ask(id="a", model="m", turns=(Turn(role="user", text="Say <|im_end|> now", breaks=(8, 15)),))
    first, second = renderer.made(ask).marks
    assert spelt(renderer, ids(renderer, ask)[:first]).endswith("\nSay ")
    assert spelt(renderer, ids(renderer, ask)[:second]).endswith("\nSay <|im_end|> ")


@pytest.mark.parametrize("style", STYLES, ids=repr)
def test_blanks_belong_to_their_token(style: Style) -> None:
    """A border is where a token ends, with its blanks, though the tokenizer trims them off the places it tells."""
    renderer = style.renderer()
    encoder = renderer._encoder
    line = "one.  two\n\n\nthree. "
    found, ends = encoder.encode_with_ends(line)
    assert found == encoder.encode(line)
    spelling = [renderer.spelling.bytes_of(token).decode() for token in found]
    assert ends == [len("".join(spelling[: count + 1])) for count in range(len(spelling))]


def test_a_character_of_several_tokens_ends_with_its_last() -> None:
    """No mark stands inside a character."""
    renderer = SMOL.renderer()
    ask = Ask(id="a", model="m", turns=(Turn(role="user", text="a🙂b", breaks=(1, 2)),))
    first, second = renderer.made(ask).marks
    assert (second - first, first) == (4, border(renderer, ask, text(renderer, ask).index("🙂")))
