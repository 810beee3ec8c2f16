"""Where a request parts from an earlier one, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.ask import Tool, Turn
from gateway.compare import Divergence, compare
from gateway.prompt import Renderer
from tests.gateway.memories import Remembered, first_difference, remember, with_answer
from tests.tiny_model import CHATML, save_tiny_tokenizer

SYSTEM = Turn(role="system", text="You are the clerk of a small library. Be brief.")
TOOLS = tuple(Tool(name=name, description=f"Tells the {name} of a place.") for name in ("weather", "time", "way"))
TALK = (
    Turn(role="user", text="Where do you keep the atlases?"),
    Turn(role="assistant", text="On the upper floor."),
    Turn(role="user", text="And the novels?"),
    Turn(role="assistant", text="Right here, by the door."),
    Turn(role="user", text="Thank you. Who wrote this one?"),
)
# The last user turn is told the language; once it is history it is not.
LANGUAGE = "{% if loop.last %} (in English) {% endif %}"
TEXT = "{{ message['content'] }}"
BEFORE, BEHIND = (CHATML.replace(TEXT, told) for told in (LANGUAGE + TEXT, TEXT + LANGUAGE))
# An answer begins with empty thoughts; in history there are none.
THOUGHTFUL = CHATML.replace("assistant\n{% endif %}", "assistant\n<think></think>\n{% endif %}")

MakeRenderer = Callable[[str], Renderer]


@pytest.fixture
def speaking(tmp_path: Path) -> MakeRenderer:
    """Make the renderer of another template."""
    return lambda template: Renderer.load(save_tiny_tokenizer(tmp_path, template))


def told(current: Remembered, earlier: Remembered) -> Divergence:
    """Compare two requests."""
    return compare(current.made, earlier.made, {**earlier.hashes, **current.hashes})


def part_end(request: Remembered, kind: str, index: int) -> int:
    """Where a part ends."""
    return next(part.end for part in request.made.parts if (part.kind, part.index) == (kind, index))


def ids_of(renderer: Renderer, text: str) -> list[int]:
    """Ids of a plain text."""
    return list(renderer.spelling._tokenizer.encode(text, add_special_tokens=False).ids)


def test_the_same_request_differs_nowhere(renderer: Renderer) -> None:
    """Nothing differs, so the place is the prompt's end."""
    one = remember(renderer, [SYSTEM, *TALK], TOOLS)
    end = len(one.prompt)
    assert told(one, one) == Divergence(reason="none", token=end, until=end)


def test_an_extended_conversation_is_new_from_where_the_earlier_one_ends(renderer: Renderer) -> None:
    """What was appended is new, from the first token that the earlier prompt did not have."""
    earlier, current = (remember(renderer, [SYSTEM, *TALK[:count]]) for count in (3, 5))
    found = told(current, earlier)
    assert (found.reason, found.token, found.until) == ("new", len(earlier.prompt), len(earlier.prompt))


def test_another_last_question_is_a_changed_message(renderer: Renderer) -> None:
    """The last message was replaced, so it and nothing behind it was lost."""
    earlier = remember(renderer, [SYSTEM, TALK[0]])
    current = remember(renderer, [SYSTEM, TALK[2]])
    found = told(current, earlier)
    assert (found.reason, found.token) == ("messages", first_difference(current, earlier))
    assert (found.part, found.until) == (current.made.parts[1], current.made.parts[1].end)


def test_a_changed_system_text_costs_all_that_was_said_since(renderer: Renderer) -> None:
    """The first differing token is told exactly, and the loss reaches to the last message that was there before."""
    earlier = remember(renderer, [SYSTEM, *TALK[:3]])
    current = remember(renderer, [replace(SYSTEM, text=SYSTEM.text.replace("small", "smart")), *TALK])
    found = told(current, earlier)
    assert (found.reason, found.token) == ("system", first_difference(current, earlier))
    assert found.part is not None
    assert (found.part.kind, found.part.begin + found.offset) == ("system", found.token)
    assert found.until == part_end(current, "user", 3)


@pytest.mark.parametrize("swapped", [False, True], ids=["added", "removed"])
def test_a_system_text_that_came_or_went_is_a_changed_system(renderer: Renderer, *, swapped: bool) -> None:
    """A prompt with a system text and one without part at the system."""
    pair = remember(renderer, [SYSTEM, *TALK]), remember(renderer, TALK)
    current, earlier = reversed(pair) if swapped else pair
    found = told(current, earlier)
    assert (found.reason, found.token) == ("system", first_difference(current, earlier))


def test_a_system_text_amid_the_messages_is_a_message(renderer: Renderer) -> None:
    """What a developer says in mid-conversation belongs to the messages."""
    late = Turn(role="system", text="Speak up now.")
    earlier = remember(renderer, [*TALK[:2], late, TALK[2]])
    current = remember(renderer, [*TALK[:2], replace(late, text="Speak low now."), TALK[2]])
    assert told(current, earlier).reason == "messages"


@pytest.mark.parametrize("order", [order for order in permutations(range(3)) if order != (0, 1, 2)], ids=str)
def test_shuffled_tools_are_told(renderer: Renderer, order: tuple[int, ...]) -> None:
    """The same tools in any other order are changed tools, and said to be shuffled."""
    earlier = remember(renderer, [SYSTEM, *TALK], TOOLS)
    current = remember(renderer, [SYSTEM, *TALK], [TOOLS[place] for place in order])
    found = told(current, earlier)
    assert (found.reason, found.shuffled, found.token) == ("tools", True, first_difference(current, earlier))
    assert (found.added, found.removed, found.edited) == (0, 0, 0)
    assert found.until == part_end(current, "user", 5)


@pytest.mark.parametrize(
    ("tools", "counts"),
    [
        ((*TOOLS, Tool(name="price")), (1, 0, 0)),
        (TOOLS[1:], (0, 1, 0)),
        ((), (0, 3, 0)),
        ((replace(TOOLS[0], description="Tells no weather."), *TOOLS[1:]), (0, 0, 1)),
        ((replace(TOOLS[0], description="New."), *TOOLS[1:], Tool(name="price")), (1, 0, 1)),
    ],
    ids=["added", "removed", "all removed", "edited", "edited and added"],
)
def test_changed_tools_are_counted(renderer: Renderer, tools: Any, counts: tuple[int, int, int]) -> None:
    """How many tools came, went and were edited is told, at the exact token."""
    earlier, current = remember(renderer, [SYSTEM, *TALK], TOOLS), remember(renderer, [SYSTEM, *TALK], tools)
    found = told(current, earlier)
    assert (found.reason, found.shuffled, found.token) == ("tools", False, first_difference(current, earlier))
    assert (found.added, found.removed, found.edited) == counts


def test_an_edited_message_costs_what_follows_it(renderer: Renderer) -> None:
    """An early message that was rewritten loses itself and the later ones; the newest is new."""
    earlier = remember(renderer, [SYSTEM, *TALK[:3]])
    edited = replace(TALK[0], text="Where do you hide the atlases?")
    current = remember(renderer, [SYSTEM, edited, *TALK[1:]])
    found = told(current, earlier)
    assert (found.reason, found.token, found.compacted) == ("messages", first_difference(current, earlier), False)
    assert found.until == part_end(current, "user", 3)


def test_white_space_alone_is_told(renderer: Renderer) -> None:
    """A message with another line break is said to differ in white space."""
    earlier = remember(renderer, [SYSTEM, *TALK])
    current = remember(renderer, [SYSTEM, replace(TALK[0], text=TALK[0].text.replace(" the ", "\nthe ")), *TALK[1:]])
    found = told(current, earlier)
    assert (found.reason, found.whitespace, found.token) == ("messages", True, first_difference(current, earlier))


def test_a_rewritten_summary_is_told(renderer: Renderer) -> None:
    """Early messages that became one summary while later ones still follow are said to be compacted."""
    summary = Turn(role="user", text="So far we spoke of atlases on the upper floor.")
    earlier, current = remember(renderer, [SYSTEM, *TALK[:4]]), remember(renderer, [SYSTEM, summary, *TALK[3:]])
    found = told(current, earlier)
    assert (found.reason, found.compacted) == ("messages", True)
    assert found.until == part_end(current, "assistant", 2)


def test_one_message_for_another_is_no_summary(renderer: Renderer) -> None:
    """A replaced message before others that stay is an edit."""
    earlier = remember(renderer, [SYSTEM, *TALK])
    current = remember(renderer, [SYSTEM, replace(TALK[0], text="Quite another opening."), *TALK[1:]])
    assert not told(current, earlier).compacted


def test_another_model_is_told_first(renderer: Renderer) -> None:
    """With another model nothing is shared from the first token on, whatever else changed."""
    earlier = remember(renderer, [SYSTEM, *TALK[:3]], model="older")
    current = remember(renderer, [SYSTEM, *TALK])
    assert told(current, earlier) == Divergence(reason="model", token=0, until=part_end(current, "user", 3))


@pytest.mark.parametrize("template", [BEFORE, BEHIND], ids=["before", "behind"])
def test_a_last_turn_that_renders_otherwise_as_history_is_the_templates_doing(
    speaking: MakeRenderer, template: str
) -> None:
    """The content is the same and the tokens are not: the reason is the template, to the token."""
    renderer = speaking(template)
    earlier, current = (remember(renderer, [SYSTEM, *TALK[:count]]) for count in (1, 3))
    found = told(current, earlier)
    assert (found.reason, found.token, found.whitespace) == ("template", first_difference(current, earlier), False)
    assert found.token < found.until < part_end(current, "assistant", 2)


def test_an_opening_that_is_not_in_history_is_the_templates_doing(speaking: MakeRenderer) -> None:
    """Empty thoughts that open an answer and are gone once it is history break the prefix there."""
    renderer = speaking(THOUGHTFUL)
    request = remember(renderer, TALK[:1])
    earlier = with_answer(renderer, request, TALK[1], ids_of(renderer, TALK[1].text))
    current = remember(renderer, TALK[:3])
    found = told(current, earlier)
    assert (found.reason, found.token) == ("template", first_difference(current, earlier))
    assert found.until == part_end(current, "assistant", 1)


def test_an_answer_that_comes_back_as_generated_is_all_known(renderer: Renderer) -> None:
    """What is new begins behind the generated tokens."""
    request = remember(renderer, TALK[:1])
    generated = ids_of(renderer, TALK[1].text)
    earlier = with_answer(renderer, request, TALK[1], generated)
    current = remember(renderer, TALK[:3])
    place = len(request.prompt) + len(generated)
    found = told(current, earlier)
    assert (found.reason, found.token, found.until) == ("new", place, place)


@pytest.mark.parametrize("at", [0, 5, 14])
def test_an_answer_that_encodes_otherwise_is_told_at_its_token(renderer: Renderer, at: int) -> None:
    """The text came back, its tokens are not those that were generated: retokenised, from the first that differs."""
    request = remember(renderer, TALK[:1])
    generated = ids_of(renderer, TALK[1].text)
    generated[at] += 1
    current = remember(renderer, TALK[:3])
    found = told(current, with_answer(renderer, request, TALK[1], generated))
    assert (found.reason, found.token) == ("retokenised", len(request.prompt) + at)
    assert found.until == part_end(current, "assistant", 1)


def test_an_edited_answer_is_new_text(renderer: Renderer) -> None:
    """An answer that the client rewrote extends the earlier request."""
    request = remember(renderer, TALK[:1])
    earlier = with_answer(renderer, request, replace(TALK[1], text="Nowhere."), ids_of(renderer, "Nowhere."))
    found = told(remember(renderer, TALK[:3]), earlier)
    assert (found.reason, found.token) == ("new", len(request.prompt))


def test_an_answer_behind_a_change_is_known_text(renderer: Renderer) -> None:
    """What a change cost includes the answer that was generated before it."""
    earlier = with_answer(renderer, remember(renderer, [SYSTEM, *TALK[:1]]), TALK[1], ids_of(renderer, TALK[1].text))
    current = remember(renderer, [replace(SYSTEM, text="Be long."), *TALK[:3]])
    assert told(current, earlier).until == part_end(current, "assistant", 2)


def test_another_rendering_is_compared_by_content(renderer: Renderer, speaking: MakeRenderer) -> None:
    """Under another template the texts alone count: the same ones differ nowhere, a changed one at its first token."""
    earlier = remember(speaking(THOUGHTFUL), [SYSTEM, *TALK[:1]])
    same, changed = remember(renderer, [SYSTEM, *TALK[:1]]), remember(renderer, [SYSTEM, TALK[2]])
    assert told(same, earlier).reason == "none"
    found = told(changed, earlier)
    assert (found.reason, found.token) == ("messages", part_end(changed, "system", 0))


def test_without_hashes_a_parts_first_token_stands_for_it(renderer: Renderer) -> None:
    """Forgotten token hashes cost the exact place, not the reason."""
    earlier = remember(renderer, [SYSTEM, *TALK])
    current = remember(renderer, [SYSTEM, replace(TALK[0], text="Where is it?"), *TALK[1:]])
    found = compare(current.made, earlier.made, {})
    assert (found.reason, found.token, found.offset) == ("messages", part_end(current, "system", 0), 0)


def test_a_conversation_cut_short_differs_nowhere(renderer: Renderer) -> None:
    """Asking again from an earlier turn finds all of its prompt."""
    current = remember(renderer, [SYSTEM, *TALK[:3]])
    found = told(current, remember(renderer, [SYSTEM, *TALK]))
    assert (found.reason, found.token) == ("none", len(current.prompt))


def test_a_word_said_again_is_counted_once(renderer: Renderer) -> None:
    """A new turn that repeats an older one's text does not stretch what a change cost."""
    yes = Turn(role="user", text="yes")
    earlier = remember(renderer, [SYSTEM, yes, TALK[1]])
    current = remember(renderer, [replace(SYSTEM, text="Other."), yes, TALK[1], yes])
    assert told(current, earlier).until == part_end(current, "assistant", 2)


texts = st.text("ab \n", min_size=1, max_size=6)
turns = st.lists(st.builds(Turn, role=st.sampled_from(["user", "assistant"]), text=texts), min_size=1, max_size=5)
systems = st.lists(st.builds(Turn, role=st.just("system"), text=texts), max_size=1)
tool_lists = st.lists(
    st.builds(Tool, name=st.sampled_from(["f", "g", "h"])), max_size=3, unique_by=lambda one: one.name
)
requests = st.tuples(systems, turns, tool_lists)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(one=requests, other=requests)
def test_the_place_is_where_the_tokens_differ(renderer: Renderer, one: Any, other: Any) -> None:
    """Whatever two requests are, the token told is the first that differs, or the end of a part."""
    current, earlier = (remember(renderer, [*system, *talk], tools) for system, talk, tools in (one, other))
    found = told(current, earlier)
    slow = first_difference(current, earlier)
    assert found.token <= slow
    assert found.token == slow or found.token in {part.end for part in (*current.made.parts, *earlier.made.parts)}
    assert found.token <= found.until <= len(current.prompt)
    assert (found.reason == "none") == (found.token == len(current.prompt))
