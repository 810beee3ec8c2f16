"""Marks on Anthropic's API: where they stand, how many there may be, and the exact words of each refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ask import Turn
from gateway.retention import AskedMark
from tests.gateway.test_anthropic_messages import CALL, WEATHER, ask, body, content, refusal, text, wire

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SHORT = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
ORDER = (
    "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
    "Note that blocks are processed in the following order: `tools`, `system`, `messages`."
)


def result(inner: Any, **fields: Any) -> dict[str, Any]:
    """A result with this content."""
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": inner, **fields}


def paths(**fields: Any) -> list[tuple[str | None, str]]:
    """The marks of a body: TTL and path of the block."""
    return [(mark.ttl, mark.path.removesuffix(".cache_control.ttl")) for mark in ask(**fields).wish.marks]


def test_without_marks_the_prompt_is_held() -> None:
    """A request without marks is cached all the same, and none of it counts as written."""
    wish = ask().wish
    assert (wish.mode, wish.write_all, wish.marks, wish.ttl) == ("implicit", False, (), None)


def test_marks_stand_behind_their_blocks_in_rendering_order() -> None:
    """Tools come first, then each turn, its text before its calls, whatever the order of keys and blocks."""
    fields = {
        "messages": [
            {"role": "user", "content": [text("abc", **MARK), text("de")]},
            {"role": "assistant", "content": [{**CALL, **MARK}, text("after", **MARK)]},
            {"role": "user", "content": [result("ok")]},
        ],
        "tools": [{**WEATHER, **HOUR}],
    }
    made = ask(**fields)
    assert made.wish.marks == (
        AskedMark("1h", "tools[0].cache_control.ttl"),
        AskedMark("5m", "messages[0].content[0].cache_control.ttl"),
        AskedMark("5m", "messages[1].content[1].cache_control.ttl"),
        AskedMark("5m", "messages[1].content[0].cache_control.ttl"),
    )
    assert made.tools[0].marked
    assert [(turn.breaks, [call.marked for call in turn.tool_calls]) for turn in made.turns] == [
        ((3,), []),
        ((5,), [True]),
        ((), []),
    ]


def test_marks_survive_the_merging_of_messages() -> None:
    """Two messages of one role are one turn with both marks, each named by the path that the client wrote."""
    messages = [{"role": "user", "content": [text("abc", **MARK)]}, {"role": "user", "content": [text("de", **MARK)]}]
    assert ask(messages=messages).turns == (Turn(role="user", text="abcde", breaks=(3, 5)),)
    assert [path for _, path in paths(messages=messages)] == ["messages[0].content[0]", "messages[1].content[0]"]


def test_a_result_is_marked_at_its_end() -> None:
    """A result's mark covers the words that stand for its error too, and an empty result may bear one."""
    made = ask(messages=content(result("no", is_error=True, **MARK), result([], **MARK)))
    assert [(turn.text, turn.breaks) for turn in made.turns] == [("Error: no", (9,)), ("", (0,))]


@pytest.mark.parametrize("outer", [{}, MARK])
def test_mark_on_the_last_block_inside_a_result_is_the_results(outer: dict[str, Any]) -> None:
    """It counts once, whether or not the result bears the same mark itself."""
    made = ask(messages=content(result([text("a"), text("bc", **MARK)], **outer)))
    assert (made.turns[0].breaks, len(made.wish.marks)) == ((3,), 1)


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (result([text("a", **MARK), text("b")]), "messages[0].content[0].content[0].cache_control"),
        (result([text("a", **MARK)], **HOUR), "messages[0].content[0].content[0].cache_control.ttl"),
        (result([text("", **MARK)]), "messages[0].content[0].content[0]"),
    ],
)
def test_other_marks_inside_a_result_are_refused(block: dict[str, Any], param: str) -> None:
    """Only the last block inside may bear a mark, and none that differs from the result's."""
    assert refusal(body(messages=content(block))).param == param


def test_null_is_no_mark() -> None:
    """A null mark is none, on an empty text and on thinking too."""
    null: dict[str, Any] = {"cache_control": None}
    blocks = [{"type": "thinking", "thinking": "t", **null}, text("", **null), text("a", **null)]
    assert (
        paths(messages=content(*blocks, role="assistant"), tools=[{**WEATHER, **null}], system=[text("", **null)]) == []
    )


@pytest.mark.parametrize(
    ("tools", "system", "messages"),
    [(1, 2, 2), (5, 0, 0), (0, 5, 0), (0, 0, 5), (2, 1, 2)],
)
def test_five_marks_are_refused_with_their_number(tools: int, system: int, messages: int) -> None:
    """Marks are counted over the whole request (P47)."""
    fields = {
        "tools": [{**WEATHER, "name": f"f{at}", **MARK} for at in range(tools)],
        "system": [text("s", **MARK)] * system,
        "messages": content(text("hi"), *[text("m", **MARK)] * messages),
    }
    expected = "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert wire(body(**fields)) == expected
    assert len(paths(**{**fields, "tools": [], "system": [], "messages": content(*[text("m", **MARK)] * 4)})) == 4


def test_marks_inside_results_are_counted() -> None:
    """Four marks and one inside a result are five."""
    blocks = [result([text("r", **MARK)]), *[text("m", **MARK)] * 4]
    assert wire(body(messages=content(*blocks))).endswith("Found 5.")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": [{**WEATHER, **SHORT}], "system": [text("s", **HOUR)]}, "system.0"),
        ({"system": [text("s", **SHORT), text("t", **HOUR)]}, "system.1"),
        ({"system": [text("s", **MARK)], "messages": content(text("a"), text("b", **HOUR))}, "messages.0.content.1"),
        ({"messages": content(text("b", **HOUR)), "system": [text("s", **MARK)]}, "messages.0.content.0"),
        ({"messages": content(text("b", **MARK), result([text("c", **HOUR)]))}, "messages.0.content.1.content.0"),
    ],
)
def test_longer_ttl_after_a_shorter_is_refused(fields: dict[str, Any], path: str) -> None:
    """The order is tools, system, messages whatever the order of keys, and the message names the mark (P13)."""
    assert wire(body(**fields)) == f"{path}.cache_control.ttl: {ORDER}"


def test_shorter_ttl_after_a_longer_is_fine() -> None:
    """TTLs may fall over the request (P13)."""
    assert paths(system=[text("s", **HOUR)], messages=content(text("a", **MARK))) == [
        ("1h", "system[0]"),
        ("5m", "messages[0].content[0]"),
    ]


@pytest.mark.parametrize(
    ("control", "param"),
    [
        ({"type": "ephemeral", "ttl": "2h"}, "ttl"),
        ({"type": "ephemeral", "ttl": 300}, "ttl"),
        ({"type": "lasting"}, "type"),
        ({}, "type"),
    ],
)
def test_a_mark_is_ephemeral_for_5m_or_1h(control: dict[str, Any], param: str) -> None:
    """Any other TTL is refused by its path, wherever the mark stands (P13)."""
    assert refusal(body(system=[text("s", cache_control=control)])).param == f"system[0].cache_control.{param}"
    assert refusal(body(tools=[{**WEATHER, "cache_control": control}])).param == f"tools[0].cache_control.{param}"
    assert refusal(body(cache_control=control)).param == f"cache_control.{param}"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": content(text("a"), text("", **MARK))}, "messages.0.content.1"),
        ({"system": [text("", **MARK)]}, "system.0"),
    ],
)
def test_mark_on_an_empty_text_is_refused(fields: dict[str, Any], path: str) -> None:
    """An empty block ends no prefix of its own (P48)."""
    assert wire(body(**fields)) == f"{path}: cache_control cannot be set for empty text blocks"


@pytest.mark.parametrize("kind", [{"type": "thinking", "thinking": "t"}, {"type": "redacted_thinking", "data": "d"}])
def test_mark_on_thinking_is_refused(kind: dict[str, Any]) -> None:
    """Thinking may stand inside a cached prefix but bears no mark."""
    expected = f"messages.0.content.0.{kind['type']}.cache_control: Extra inputs are not permitted"
    assert wire(body(messages=content({**kind, **MARK}, text("a"), role="assistant"))) == expected


def test_mark_on_a_deferred_tool_is_refused() -> None:
    """A tool that is not in the prompt ends no prefix."""
    tools = [WEATHER, {"name": "later", "input_schema": {}, "defer_loading": True, **MARK}]
    expected = "tools.1.cache_control: cache_control cannot be set for tools with defer_loading=true"
    assert wire(body(tools=tools)) == expected


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "messages[0].content"),
        ({"messages": content(text("a"), text("b"))}, "messages[0].content[1]"),
        ({"messages": content(text("a"), text(""))}, "messages[0].content[0]"),
        ({"messages": content(text("a"), result("r"))}, "messages[0].content[1]"),
        ({"messages": content(text("")), "system": "s"}, "system"),
        ({"messages": content(text("")), "tools": [WEATHER]}, "tools[0]"),
        ({"messages": content(text(""))}, None),
    ],
)
def test_automatic_mark_goes_to_the_last_place_that_may_bear_one(fields: dict[str, Any], place: str | None) -> None:
    """It walks back over what may not, and without any such place nothing is marked."""
    made = ask(**fields, **HOUR)
    by_hand = [f"system{turn.breaks}" for turn in made.turns if turn.breaks and turn.role == "system"]
    assert made.wish.marks == (() if place is None else (AskedMark("1h", "cache_control.ttl"),))
    assert made.turns[-1].breaks == ((len(made.turns[-1].text),) if (place or "").startswith("messages") else ())
    assert (bool(by_hand), [tool.marked for tool in made.tools]) == (place == "system", [True] * (place == "tools[0]"))


def test_automatic_mark_where_the_client_set_the_same_one() -> None:
    """The client's own mark stands, and four of them stay four."""
    blocks = content(*[text("m", **SHORT)] * 4)
    assert len(paths(messages=blocks, **MARK)) == 4


def test_automatic_mark_with_another_ttl_than_the_clients_is_refused() -> None:
    """One place cannot have two TTLs."""
    assert refusal(body(messages=content(text("m", **MARK)), **HOUR)).param == "cache_control.ttl"


def test_automatic_mark_counts() -> None:
    """Four marks and the automatic one are five."""
    assert wire(body(system=[text("s", **MARK)] * 4, **MARK)).endswith("Found 5.")


def test_automatic_mark_obeys_the_order() -> None:
    """An automatic hour after a five-minute mark is refused by the field that asked for it."""
    assert wire(body(system=[text("s", **MARK)], **HOUR)) == f"cache_control.ttl: {ORDER}"


def test_moving_a_mark_changes_no_turn() -> None:
    """Marks are no part of the prompt: without them the turns are equal."""
    marked = ask(messages=content(text("a", **MARK), text("b")), tools=[WEATHER])
    moved = ask(messages=content(text("a"), text("b", **MARK)), tools=[{**WEATHER, **MARK}])
    assert [turn.text for turn in marked.turns] == [turn.text for turn in moved.turns]


@given(
    st.lists(st.tuples(st.text(max_size=3), st.sampled_from([None, "5m", "1h"])), max_size=6),
    st.lists(st.tuples(st.text(max_size=3), st.sampled_from([None, "5m", "1h"])), max_size=6),
)
def test_each_mark_has_one_place(system: list[tuple[str, str | None]], user: list[tuple[str, str | None]]) -> None:
    """However blocks are marked, an accepted request has as many marks as places, in order, or it is refused."""

    def blocks(parts: list[tuple[str, str | None]]) -> list[dict[str, Any]]:
        return [text(words, cache_control=ttl and {"type": "ephemeral", "ttl": ttl}) for words, ttl in parts]

    ttls = [ttl for _, ttl in [*system, *user] if ttl is not None]
    empty = any(ttl is not None and not words for words, ttl in [*system, *user])
    raw = body(system=blocks(system), messages=content(*blocks(user)))
    if empty or len(ttls) > 4 or ttls != sorted(ttls):
        assert refusal(raw).param is not None or "Found" in str(refusal(raw))
        return
    made = ask(**json.loads(raw))
    assert [mark.ttl for mark in made.wish.marks] == ttls
    assert sum(len(turn.breaks) for turn in made.turns) == len(ttls)
    assert all(tuple(sorted(turn.breaks)) == turn.breaks for turn in made.turns)
