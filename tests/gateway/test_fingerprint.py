"""What is remembered of a request."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ask import Tool, ToolCall, Turn
from gateway.fingerprint import token_hashes
from gateway.prompt import Renderer
from prefix_store.fingerprints import Fingerprint, Keyed, Part, decode, encode
from tests.gateway.memories import KEYED, remember, with_answer

SYSTEM = Turn(role="system", text="Answer in one word.")
USER = Turn(role="user", text="What is the capital of France?")
CALLING = Turn(
    role="assistant",
    text="Let me see.",
    thinking="hm",
    name="ann",
    tool_calls=(ToolCall(id="call_1", name="find", arguments={"q": "Paris", "n": 1}),),
)
RESULT = Turn(role="tool", text="Paris", tool_call_id="call_1")
TOOL = Tool(
    name="find", description="Looks up.", parameters={"type": "object", "properties": {"q": {"type": "string"}}}
)


def packed(*ids: int) -> bytes:
    """Token ids as a prompt has them."""
    return struct.pack(f"<{len(ids)}I", *ids)


def parts(made: Fingerprint, kind: str) -> list[Part]:
    """The parts of one kind."""
    return [part for part in made.parts if part.kind == kind]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.integers(0, 2**64 - 1))
def test_a_token_hash_is_two_bytes_of_seed_id_and_place(ids: list[int], seed: int) -> None:
    """A token hashed among others is hashed as at that place alone, so equal beginnings have equal hashes."""
    hashed = token_hashes(packed(*ids), seed)
    assert len(hashed) == 2 * len(ids)
    assert [token_hashes(packed(*ids[:end]), seed) for end in range(len(ids))] == [
        hashed[: 2 * end] for end in range(len(ids))
    ]


def test_token_hashes_tell_ids_places_and_seeds_apart() -> None:
    """Over 60,000 tokens nearly as many hashes come out as chance allows, and another seed shares next to none."""
    ids = packed(*range(60_000))
    one, same_id, other = token_hashes(ids, 1), token_hashes(packed(*[7] * 60_000), 1), token_hashes(ids, 2)
    by_chance = 65_536 * (1 - (1 - 1 / 65_536) ** 60_000)
    for hashed in (one, same_id, other):
        assert len(set(struct.unpack("<60000H", hashed))) == pytest.approx(by_chance, rel=0.02)
    equal = sum(a == b for a, b in zip(memoryview(one).cast("H"), memoryview(other).cast("H"), strict=True))
    assert equal < 10


def test_parts_cover_the_prompt(renderer: Renderer) -> None:
    """Tool, system, turns and opening follow one another without gaps, each with hashes of its tokens."""
    request = remember(renderer, [SYSTEM, USER, CALLING, RESULT], [TOOL])
    made = request.made
    assert [(part.kind, part.index) for part in made.parts] == [
        ("tool", 0),
        ("system", 0),
        ("user", 1),
        ("assistant", 2),
        ("result", 3),
        ("opening", 0),
    ]
    assert [part.begin for part in made.parts] == [0, *(part.end for part in made.parts[:-1])]
    assert made.tokens == len(request.prompt)
    for part in made.parts:
        tokens = request.prompt.tokens[part.begin * 4 : part.end * 4]
        assert request.hashes[part.rendered] == token_hashes(tokens, KEYED.seed)


def test_a_part_is_the_same_wherever_it_stands(renderer: Renderer) -> None:
    """The same turn behind another one has the same digests and so is stored once."""
    again = Turn(role="user", text="Once more, please.")
    request = remember(renderer, [SYSTEM, again, again])
    first, second = parts(request.made, "user")
    assert (first.content, first.loose, first.rendered) == (second.content, second.loose, second.rendered)
    assert len(request.hashes) == len(request.made.parts) - 1


@pytest.mark.parametrize(
    "other",
    [
        replace(CALLING, text="Let me see!"),
        replace(CALLING, thinking=""),
        replace(CALLING, name="bob"),
        replace(CALLING, name="an", thinking="nhm"),
        replace(CALLING, tool_calls=()),
        replace(CALLING, tool_calls=(replace(CALLING.tool_calls[0], id="call_2"),)),
        replace(CALLING, tool_calls=(replace(CALLING.tool_calls[0], arguments={"q": "Rome", "n": 1}),)),
        replace(CALLING, tool_calls=CALLING.tool_calls * 2),
    ],
)
def test_each_field_of_a_turn_is_content(renderer: Renderer, other: Turn) -> None:
    """Turns that differ in one field, or in where one ends, have different contents."""
    one, two = (parts(remember(renderer, [USER, turn]).made, "assistant")[0] for turn in (CALLING, other))
    assert one.content != two.content


@pytest.mark.parametrize("arguments", [{"n": 1.0, "q": "Paris"}, {"n": 1, "q": "Paris"}], ids=["numbers", "order"])
def test_the_spelling_of_arguments_is_no_content(renderer: Renderer, arguments: dict[str, Any]) -> None:
    """Key order and the way a number is written do not count, nor do a mark and a path."""
    call = replace(CALLING.tool_calls[0], arguments=arguments, marked=True)
    other = replace(CALLING, tool_calls=(call,), breaks=(3,), path="messages[7]")
    one, two = (parts(remember(renderer, [USER, turn]).made, "assistant")[0].content for turn in (CALLING, other))
    assert one == two


def test_the_order_of_a_schemas_keys_is_no_content(renderer: Renderer) -> None:
    """A tool whose schema was written in another order is the same tool; one with another description is not."""
    turned = replace(TOOL, parameters=dict(reversed([*TOOL.parameters.items()])), path="tools[3]", marked=True)
    edited = replace(TOOL, description="Looks down.")
    one, same, other = (parts(remember(renderer, [USER], [tool]).made, "tool")[0] for tool in (TOOL, turned, edited))
    assert (one.content == same.content, one.content == other.content) == (True, False)


def test_white_space_is_content_but_not_loose_content(renderer: Renderer) -> None:
    """Two texts that differ in blanks and line breaks only have one loose digest."""
    blank = replace(USER, text=USER.text.replace(" ", "\n\t ") + "  ")
    one, two = (parts(remember(renderer, [turn]).made, "user")[0] for turn in (USER, blank))
    assert (one.content == two.content, one.loose == two.loose) == (False, True)


def test_an_answer_is_known_again_in_history(renderer: Renderer) -> None:
    """What was answered has the content of the turn that comes back and, with the opening, hashes of its tokens."""
    turn = Turn(role="assistant", text="Paris")
    request = with_answer(renderer, remember(renderer, [USER]), turn, [9, 8, 7])
    later = remember(renderer, [USER, turn])
    answer, opening = request.made.answer, request.made.parts[-1]
    assert answer is not None
    assert (answer.content, answer.tokens) == (parts(later.made, "assistant")[0].content, 3)
    before = request.prompt.tokens[opening.begin * 4 :]
    assert request.hashes[answer.rendered] == token_hashes(before + packed(9, 8, 7), KEYED.seed)


def test_two_tenants_have_nothing_in_common(renderer: Renderer) -> None:
    """Equal requests of two tenants share no digest and no hashes."""
    mine = remember(renderer, [SYSTEM, USER], partition="p", settings={"effort": "low"})
    theirs = remember(
        renderer, [SYSTEM, USER], partition="p", settings={"effort": "low"}, keyed=Keyed(b"secret", "other")
    )

    def digests(made: Fingerprint) -> set[bytes]:
        own = {digest for part in made.parts for digest in (part.content, part.loose, part.rendered)}
        return {*own, made.partition, *made.settings.values()}

    assert digests(mine.made).isdisjoint(digests(theirs.made))
    assert set(mine.hashes.values()).isdisjoint(theirs.hashes.values())


def test_no_text_is_kept(renderer: Renderer) -> None:
    """Neither the stored fingerprint nor the hashes hold a word of the prompt, and it reads back as it was."""
    request = remember(renderer, [SYSTEM, USER, CALLING, RESULT], [TOOL], partition="my key")
    stored = encode(request.made) + b"".join([*request.hashes, *request.hashes.values()])
    assert not any(word in stored for word in (b"Paris", b"France", b"find", b"Answer", b"my key"))
    assert decode(encode(request.made)) == request.made
