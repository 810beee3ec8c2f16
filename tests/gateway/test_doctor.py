"""What the doctor says of one request, and of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.doctor.bodies import Api, api_of, read
from gateway.doctor.errors import Unusable
from gateway.doctor.lint import lint
from gateway.doctor.pair import Break, broken
from gateway.doctor.rates import per_day
from gateway.doctor.seen import see
from gateway.prompt import Renderer
from tests.gateway.memories import first_difference, remember
from tests.gateway.test_compare import BEFORE, MakeRenderer, ids_of, speaking

__all__ = ["speaking"]

RULES = "You are the clerk of a library. " + " ".join(f"Put novels by author {n} on the shelf." for n in range(20))
NOW = "Current time: 2027-03-03T10:15:00Z"
UUID = "0b9f3c52-6c6e-4e1b-9d3e-3f0f0f0a1b2c"
SIGNED = "https://b.s3.amazonaws.com/cat.png?X-Amz-Signature=abc"
TALK = ("Where are the atlases?", "Upstairs.", "And the novels?")
MARK = {"type": "ephemeral"}

Json = dict[str, Any]


def function(name: str) -> Json:
    """A tool as chat completions take it."""
    return {"type": "function", "function": {"name": name, "description": f"Tells the {name} of a place."}}


def chat(system: str = RULES, talk: tuple[str, ...] = TALK, tools: Sequence[str | Json] = (), **fields: Any) -> Json:
    """A body of the chat completions API."""
    said = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(talk)]
    first = [{"role": "system", "content": system}] if system else []
    return {
        "model": "m",
        "messages": [*first, *said],
        "tools": [function(one) if isinstance(one, str) else one for one in tools],
        **fields,
    }


def anthropic(system: Any = RULES, talk: tuple[Any, ...] = TALK, **fields: Any) -> Json:
    """The same as a body of Anthropic's API."""
    said = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(talk)]
    return {"model": "m", "max_tokens": 9, "system": system, "messages": said, **fields}


def responses(system: str = RULES, talk: tuple[str, ...] = TALK, **fields: Any) -> Json:
    """The same as a body of the Responses API."""
    said = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(talk)]
    return {"model": "m", "instructions": system, "input": said, **fields}


def findings(renderer: Renderer, document: Json) -> list[tuple[str, str, str]]:
    """Level, kind and place of all that is found in one body."""
    return [(one.level, one.kind, one.where) for one in lint(see(renderer, read(document, "a")))]


def between(renderer: Renderer, earlier: Json, current: Json) -> Break:
    """Compare two bodies."""
    first, second = (see(renderer, read(document, name)) for document, name in ((earlier, "a"), (current, "b")))
    return broken(second, first)


@pytest.mark.parametrize(
    ("document", "api"),
    [
        (chat(), "chat"),
        (chat("", tools=("f",)), "chat"),
        (chat(""), "chat"),
        (responses(), "responses"),
        ({"input": "hi"}, "responses"),
        (anthropic(), "anthropic"),
        ({"messages": [], "tools": [{"name": "f", "input_schema": {}}]}, "anthropic"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "anthropic"),
        ({"model": "claude-next", "messages": [{"role": "user", "content": "hi"}]}, "anthropic"),
    ],
)
def test_a_body_is_known_by_its_fields(document: Json, api: Api) -> None:
    """No flag is needed to tell whose API a body is meant for."""
    assert api_of(document) == api


@pytest.mark.parametrize("make", [chat, anthropic, responses])
def test_a_clean_conversation_has_no_findings(renderer: Renderer, make: Any) -> None:
    """A fixed system text and a history that only grows break nothing, in any API."""
    assert findings(renderer, make()) == []
    found = between(renderer, make(talk=TALK[:1]), make())
    assert (found.reason, found.lost) == ("new", 0)


@pytest.mark.parametrize(("make", "where"), [(chat, "messages[0]"), (anthropic, "system"), (responses, "instructions")])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (NOW, "time"),
        ("Today is Monday, 3 March 2027.", "date"),
        (f"Conversation {UUID}.", "uuid"),
        ("This is request 1234.", "counter"),
        ("nonce: a1b2c3d4e5", "hash"),
        (f"Logo: {SIGNED}", "signed_url"),
    ],
)
def test_what_changes_before_what_stays_is_an_error(
    renderer: Renderer, make: Any, where: str, text: str, kind: str
) -> None:
    """A time, date, UUID, counter, nonce or signed URL at the head of the system text is found, in any API."""
    assert findings(renderer, make(f"{text}\n{RULES}")) == [("error", kind, where)]


def test_a_finding_tells_its_place_and_its_cost(renderer: Renderer) -> None:
    """Character, token, the tokens behind it, the text and what to do are told."""
    head = "You are kind. "
    seen = see(renderer, read(chat(f"{head}{NOW}\n{RULES}"), "a"))
    (found,) = lint(seen)
    assert found.character == len(head) + len("Current time: ")
    assert found.token is not None
    assert renderer.spell(seen.prompt.tokens[found.token * 4 :]).startswith("2027-03-03T10:15:00Z")
    assert found.tokens == seen.made.tokens - found.token
    assert "2027-03-03T10:15:00Z" in found.excerpt
    assert found.advice.startswith("Move the time")


@pytest.mark.parametrize(
    "text",
    [
        "The library is open from 9:00 to 17:00.",
        "It was founded on 3 March 1999.",
        "Step 1 is to greet. Step 2 is to help. Step 3 is to part.",
        "Answer in 20 words, and think 3 times.",
        "Rule #1 is commit 9f86d081884c7d659a2feaa0c55ad015.",
    ],
)
def test_what_may_well_be_fixed_is_no_error(renderer: Renderer, text: str) -> None:
    """Opening hours, a year of foundation, numbered steps and the like are advice at most."""
    assert [level for level, _, _ in findings(renderer, chat(f"{text}\n{RULES}")) if level == "error"] == []


def test_the_newest_message_may_hold_anything(renderer: Renderer) -> None:
    """A time and a UUID in the last user message break nothing, nor do those of the history."""
    assert findings(renderer, chat(talk=(f"{NOW}: hello", "Good day.", f"{NOW}, {UUID}: and now?"))) == []


def test_a_time_before_a_long_text_in_the_first_message_is_an_error(renderer: Renderer) -> None:
    """What stays may stand in the first user message; then what changes before it breaks the prefix."""
    assert findings(renderer, chat("", (f"{NOW}\n{RULES}", "Yes.", "Go."))) == [("error", "time", "messages[0]")]


def test_a_volatile_tool_is_an_error(renderer: Renderer) -> None:
    """A description that names the current time is found at its tool."""
    body = chat(tools=("find", "way"))
    body["tools"][1]["function"]["description"] = NOW
    assert findings(renderer, body) == [("error", "time", "tools[1]")]


def test_a_late_system_text_is_an_error(renderer: Renderer) -> None:
    """A long system text behind the user's first words is new with each first word."""
    body = chat("", TALK[:1])
    body["messages"].append({"role": "system", "content": RULES})
    assert findings(renderer, body) == [("error", "order", "messages[1]")]


def test_a_question_before_its_document_is_advice(renderer: Renderer) -> None:
    """A short line before a long text in the first message may be a question that changes."""
    body = chat(talk=(f"What is missing?\n{RULES * 3}",))
    assert findings(renderer, body) == [("advice", "order", "messages[1]")]


def test_unsorted_tools_are_advice(renderer: Renderer) -> None:
    """One body cannot tell whether the order is stable; only names that are not sorted are said."""
    assert findings(renderer, chat(tools=("way", "find"))) == [("advice", "tools", "tools")]
    assert findings(renderer, chat(tools=("find", "way"))) == []


def test_a_nonce_header_is_told(renderer: Renderer) -> None:
    """The listed telemetry is named once, by its rule, and its own nonce is not told again."""
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;\n"}
    assert findings(renderer, anthropic([header, {"type": "text", "text": RULES}])) == [("advice", "nonce", "system")]


@pytest.mark.parametrize(
    ("make", "part", "where"),
    [
        (chat, {"type": "image_url", "image_url": {"url": SIGNED}}, "messages[1]"),
        (anthropic, {"type": "image", "source": {"type": "url", "url": SIGNED}}, "messages.0"),
        (responses, {"type": "input_image", "image_url": SIGNED}, "input[0]"),
    ],
)
def test_an_image_by_signed_url_is_an_error(renderer: Renderer, make: Any, part: Json, where: str) -> None:
    """Though no image can be answered here, its URL is read where the history holds it."""
    body = make(talk=([part], "A cat.", "And now?"))
    assert findings(renderer, body) == [("error", "signed_url", where)]


def test_images_by_content_are_compared_by_content(renderer: Renderer) -> None:
    """The same picture is the same prompt, another one is a changed message at its place."""

    def pictured(data: str) -> Json:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        return anthropic(talk=([image], "A cat.", RULES))

    assert between(renderer, pictured("aaaa"), pictured("aaaa")).reason == "none"
    found = between(renderer, pictured("aaaa"), pictured("bbbb"))
    assert (found.reason, found.message, found.lost > 0) == ("messages", "messages.0", True)


@pytest.mark.parametrize(
    ("system", "talk", "says"),
    [
        ([{"type": "text", "text": f"{n}", "cache_control": MARK} for n in range(5)], TALK, "maximum of 4 blocks"),
        (
            [{"type": "text", "text": RULES, "cache_control": MARK}],
            ([{"type": "text", "text": "hi", "cache_control": {**MARK, "ttl": "1h"}}],),
            "must not come after",
        ),
        ([{"type": "text", "text": "", "cache_control": MARK}], TALK, "empty text"),
    ],
    ids=["five", "1h after 5m", "empty"],
)
def test_mistaken_marks_are_findings(renderer: Renderer, system: Any, talk: Any, says: str) -> None:
    """What Anthropic's API would refuse is said in its words, and the rest is looked at all the same."""
    (found,) = lint(see(renderer, read(anthropic(system, talk), "a")))
    assert (found.level, found.kind, says in found.says) == ("error", "marks", True)


def test_more_marks_than_count_are_told(renderer: Renderer) -> None:
    """OpenAI's API takes any number of marks; that only the last four count is said."""
    parts = [{"type": "text", "text": f"{n}", "prompt_cache_breakpoint": {"mode": "explicit"}} for n in range(5)]
    assert findings(renderer, chat(talk=(parts,))) == [("advice", "marks", "prompt_cache_breakpoint")]  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [chat, anthropic, responses])
def test_a_time_in_front_costs_what_stands_behind_it(renderer: Renderer, make: Any) -> None:
    """Where the prompts part is told to the character and the token, with what both said there."""
    old = make(f"{NOW}\n{RULES}", TALK[:1])
    new = make(f"{NOW.replace('15:00Z', '15:42Z')}\n{RULES}")
    found = between(renderer, old, new)
    ours, theirs = (see(renderer, read(body, "")) for body in (new, old))
    slow = first_difference(*(remember(renderer, one.ask.turns) for one in (ours, theirs)))
    assert (found.reason, found.looks_like, found.token) == ("system", "time", slow)
    assert found.character == NOW.index("00Z")
    assert (found.before[:34], found.after[:34]) == (NOW, NOW.replace("15:00Z", "15:42Z"))
    question = next(part for part in ours.made.parts if part.kind == "user")
    assert found.lost == question.end - found.token - len("42")


def test_shuffled_tools_cost_all_that_follows(renderer: Renderer) -> None:
    """The same tools in another order are told as such."""
    found = between(renderer, chat(tools=("find", "way")), chat(tools=("way", "find")))
    assert (found.reason, found.looks_like, found.message) == ("tools", "shuffled_list", "tools[0]")
    assert found.details == ("the same tools in another order",)
    assert found.lost > len(RULES) // 2


def test_two_questions_over_one_document_break_nothing(renderer: Renderer) -> None:
    """What differs at the end is no loss, however different it is."""
    found = between(renderer, chat(talk=TALK[:1]), chat(talk=TALK[2:]))
    assert (found.reason, found.lost, found.advice) == ("messages", 0, "")


def test_one_document_behind_two_questions_is_lost(renderer: Renderer) -> None:
    """The common ending of a changed message is what the change costs."""
    found = between(renderer, chat("", (f"Who?\n{RULES}",)), chat("", (f"When?\n{RULES}",)))
    assert (found.reason, found.lost) == ("messages", len(ids_of(renderer, f"?\n{RULES}")))


def test_a_text_that_was_put_in_front_costs_the_old_one(renderer: Renderer) -> None:
    """A new message before others that stay loses those."""
    found = between(renderer, chat(talk=(RULES, "Yes.", "Go.")), chat(talk=("Hear me.", "Well?", RULES, "Yes.", "Go.")))
    assert found.reason == "messages"
    assert (
        found.lost == between(renderer, chat(talk=(RULES, "Yes.", "Go.")), chat("Other.", (RULES, "Yes.", "Go."))).lost
    )


def test_another_model_loses_everything(renderer: Renderer) -> None:
    """What both requests hold is lost from the first token on."""
    found = between(renderer, chat(), chat(model="other"))
    assert (found.reason, found.token, found.before, found.after) == ("model", 0, "m", "other")
    assert found.lost == see(renderer, read(chat(), "")).made.parts[-1].begin


def test_a_drifting_template_is_told(speaking: MakeRenderer) -> None:
    """A last turn that renders otherwise as history is the template's doing, and named so."""
    found = between(speaking(BEFORE), chat(talk=TALK[:1]), chat())
    assert (found.reason, found.message, found.lost > 0) == ("template", "messages[1]", True)
    assert "template" in found.advice


@pytest.mark.parametrize(
    ("rate", "daily"), [("1/s", 86_400), ("2/m", 2880), ("1000/h", 24_000), ("0.5/d", 0.5), (" 3 / h ", 72)]
)
def test_rates_are_counted_by_the_day(rate: str, daily: float) -> None:
    """Requests per second, minute, hour and day are understood."""
    assert per_day(rate) == daily


@pytest.mark.parametrize("rate", ["", "5", "1/w", "-1/h", "x/h"])
def test_no_rate_is_refused_in_one_line(rate: str) -> None:
    """What is no rate is said with an example."""
    with pytest.raises(Unusable, match="1000/h"):
        per_day(rate)


@pytest.mark.parametrize(
    "document", [[], "text", None, {}, {"messages": []}, {"messages": [{"role": "nobody", "content": "x"}]}]
)
def test_what_is_no_body_is_refused(document: Any) -> None:
    """Anything but a request is named as unusable."""
    with pytest.raises(Unusable, match=r"^a "):
        read(document, "a")


@pytest.mark.parametrize(
    ("make", "tool"),
    [
        (anthropic, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}),
        (responses, {"type": "web_search"}),
        (chat, {"type": "custom", "custom": {"name": "web_search"}}),
    ],
)
def test_a_providers_own_tools_are_looked_at(renderer: Renderer, make: Any, tool: Json) -> None:
    """A tool that only the provider could run is part of the prompt, and a change of it is found."""
    found = between(renderer, make(tools=[tool]), make(tools=[{**tool, "max_uses": 5}]))
    assert (found.reason, found.details) == ("tools", ("1 tool edited",))


bits = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(["user", "text", "image", "function", "custom", "hi"])
)
fields = st.sampled_from(
    ["role", "content", "type", "text", "source", "url", "image_url", "function", "name", "tool_calls", "cache_control"]
)
values = st.recursive(bits, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner), max_leaves=12)
tops = st.sampled_from(["messages", "tools", "input", "instructions", "system", "model", "max_tokens", "stop"])


@settings(deadline=None)
@given(st.dictionaries(tops, values), st.sampled_from([None, "chat", "responses", "anthropic"]))
def test_any_json_is_a_body_or_unusable(document: Json, api: Api | None) -> None:
    """Whatever a file holds, there is a request to look at or one line that says why not."""
    outcome: object
    try:
        outcome = read(document, "a", api=api).ask.turns
    except Unusable as refusal:
        outcome = str(refusal).startswith("a ")
    assert outcome


def test_a_bottomless_body_is_unusable() -> None:
    """Nesting too deep to read is said like any other mistake."""
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Unusable, match=r"^a is nested too deeply$"):
        read({"messages": deep}, "a")
