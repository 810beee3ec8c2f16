"""What cost other caches their hits, and what the gateway makes of it: the same prompt, or the place named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.prompt import Renderer
from tests.gateway.conftest import Gateway
from tests.gateway.scripted import MODEL
from tests.gateway.templates import QWEN
from tests.gateway.wire import CHAT, MESSAGES

RULES = "You keep the books of a small library. Answer in one line, and say so when you do not know."
QUESTION = {"role": "user", "content": "Where are the atlases?"}
BILLING = "x-anthropic-billing-header: cc_version=2.1.37.{}; cc_entrypoint=cli; cch={};\n"
NAMES = ("find_book", "lend_book", "take_back", "list_loans")
PROPERTIES = {
    "title": {"type": "string", "description": "As it is printed.", "minLength": 1},
    "shelf": {"type": "integer", "minimum": 1, "maximum": 40},
    "dates": {"type": "object", "properties": {"from": {"type": "string"}, "to": {"type": "string"}}},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["title"]}
ARGUMENTS = {"title": "Atlas", "shelf": 3, "dates": {"from": "May", "to": "June"}}

PRINT_IDS = """
import json
from gateway.ask import Ask, Tool, ToolCall, Turn
from tests.gateway import templates
names = {"title", "shelf", "author", "year", "language", "binding", "reader"}
schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
call = ToolCall(id="1", name="find", arguments={name: "x" for name in names})
turns = (Turn(role="user", text="Go."), Turn(role="assistant", text="", tool_calls=(call,)))
made = [
    style.renderer().made(Ask(id="a", model="m", turns=turns, tools=(Tool(name="find", parameters=schema),)))
    for style in (templates.QWEN, templates.CODER)
]
print(json.dumps([list(names), [prompt.tokens.hex() for prompt in made]]))
"""


@pytest.fixture
def renderer() -> Renderer:
    """Prompts in a style that writes tools, and thoughts since the last question."""
    return QWEN.renderer()


def system(text: str) -> dict[str, Any]:
    """A system message."""
    return {"role": "system", "content": text}


def tool(name: str, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    """A tool in the shape of OpenAI."""
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}


def backwards(value: Any) -> Any:
    """The same JSON with the keys of every object the other way round."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(item) for item in value] if isinstance(value, list) else value


def called(arguments: str, **fields: Any) -> list[dict[str, Any]]:
    """A question, the call that it led to, and the call's result."""
    call = {"id": "call_1", "type": "function", "function": {"name": "find_book", "arguments": arguments}}
    return [
        system(RULES),
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": "call_1", "content": "Upstairs."},
    ]


async def ask(gateway: Gateway, messages: list[Any], **fields: Any) -> Any:
    """The answer to a conversation, compared with the one before it."""
    return await post(gateway, CHAT, {"model": MODEL, "messages": messages, "prompt_cache_key": "talk", **fields})


async def post(gateway: Gateway, path: str, body: dict[str, Any]) -> Any:
    """The answer to a body, sent with its keys in their order."""
    response = await gateway.serving.post(path, data=json.dumps(body), headers={"Content-Type": "application/json"})
    answer = await response.json()
    assert response.status == 200, answer
    return answer


def changes(answer: Any) -> list[tuple[str, str, str]]:
    """Reason, message and looks of each miss that has a place."""
    places = [(miss["reason"], miss["where"]) for miss in answer["keepwarm"]["miss"] if "where" in miss]
    return [(reason, where["message"], where["looks_like"]) for reason, where in places]


def prompts(gateway: Gateway) -> list[bytes]:
    """The ids of every prompt that went to the engine."""
    return [submit.tokens for submit in gateway.backend.submitted]


@pytest.mark.parametrize("rest", ["", RULES], ids=["alone", "before text"])
async def test_a_nonce_in_the_first_system_block_leaves_one_prompt(gateway: Gateway, rest: str) -> None:
    """Two billing lines give the prompt of none, whether alone in their block or before other text."""
    fields = {"model": MODEL, "max_tokens": 8, "messages": [QUESTION]}
    later = [{"type": "text", "text": "Be brief."}]
    for text in (BILLING.format("3a3", "fa690") + rest, BILLING.format("b2c", "00e1c") + rest, rest):
        block = [{"type": "text", "text": text}] if text else []
        answer = await post(gateway, MESSAGES, {**fields, "system": [*block, *later]})
        assert answer["keepwarm"]["normalised"] == (["claude-code-billing"] if text != rest else [])
    assert len(set(prompts(gateway))) == 1


async def test_text_beside_the_nonce_still_counts(gateway: Gateway) -> None:
    """Only the line is left out: other rules behind it are another prompt, and the change is said to be there."""
    fields = {"model": MODEL, "max_tokens": 8, "messages": [QUESTION]}
    first, other = (BILLING.format("3a3", "fa690") + text for text in (RULES, RULES.replace("small", "large")))
    await post(gateway, MESSAGES, {**fields, "system": first})
    answer = await post(gateway, MESSAGES, {**fields, "system": other})
    assert changes(answer) == [("system", "system", "text")]
    assert RULES.replace("small", "large") in gateway.renderer.spell(prompts(gateway)[1])


CLOCKS = [
    pytest.param("2027-03-03 10:31", "2027-03-03 10:32", "time", id="to the minute"),
    pytest.param("Wednesday, 3 March 2027, 10:31 AM", "Wednesday, 3 March 2027, 10:32 AM", "time", id="in words"),
    pytest.param("1804068900123", "1804068900871", "time", id="in milliseconds"),
    pytest.param("2027-03-03T10:31:07.123Z", "2027-03-03T10:31:07.871Z", "time", id="with milliseconds"),
    pytest.param("Wednesday, 3 March 2027", "Thursday, 4 March 2027", "date", id="at midnight"),
    pytest.param("2027-03-03", "2027-03-04", "date", id="at midnight in digits"),
]


@pytest.mark.parametrize(("before", "after", "looks_like"), CLOCKS)
async def test_a_clock_in_the_system_text_is_named(gateway: Gateway, before: str, after: str, looks_like: str) -> None:
    """The miss has the place where the clock's digits part, what they look like, and all behind them as its cost."""
    text = "It is {} now. " + RULES
    await ask(gateway, [system(text.format(before)), QUESTION])
    answer = await ask(gateway, [system(text.format(after)), QUESTION])
    (miss,) = [miss for miss in answer["keepwarm"]["miss"] if "where" in miss]
    assert (miss["reason"], miss["where"]["message"]) == ("system", "messages[0]")
    assert miss["where"]["looks_like"] == looks_like
    differing = next(at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other)
    assert miss["where"]["character"] == text.index("{") + differing
    assert miss["tokens"] > len(QUESTION["content"])


@pytest.mark.parametrize(("before", "after", "looks_like"), CLOCKS)
async def test_a_clock_behind_the_last_mark_keeps_what_is_marked(
    gateway: Gateway, before: str, after: str, looks_like: str
) -> None:
    """In a block behind the marked one the clock costs nothing before itself: the mark stands at the same token."""
    marked = {"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}
    answers = [
        await post(
            gateway,
            MESSAGES,
            {
                "model": MODEL,
                "max_tokens": 8,
                "system": [marked, {"type": "text", "text": f"It is {clock}."}],
                "messages": [QUESTION],
            },
        )
        for clock in (before, after)
    ]
    kept = {answer["keepwarm"]["retention"][0]["tokens"] for answer in answers}
    assert len(kept) == 1
    (miss,) = [miss for miss in answers[1]["keepwarm"]["miss"] if "where" in miss]
    assert (miss["reason"], miss["where"]["looks_like"]) == ("system", looks_like)
    assert miss["where"]["token"] >= kept.pop()


async def test_tools_in_another_order_each_turn_are_a_shuffled_list(gateway: Gateway) -> None:
    """Every turn whose tools come in a new order is told so, though none was added, removed or edited."""
    orders = [NAMES, NAMES[::-1], (NAMES[1], NAMES[0], *NAMES[2:]), (NAMES[1], NAMES[0], NAMES[3], NAMES[2])]
    talk: list[Any] = [system(RULES), QUESTION]
    told = []
    for order in orders:
        told.append(changes(await ask(gateway, talk, tools=[tool(name) for name in order])))
        talk += [{"role": "assistant", "content": "hi"}, QUESTION]
    parted = [
        next(at for at, (one, other) in enumerate(zip(*pair, strict=True)) if one != other) for pair in pairwise(orders)
    ]
    assert told == [[], *([("tools", f"tools[{at}]", "shuffled_list")] for at in parted)]


async def test_shuffled_schema_keys_are_the_same_tools(gateway: Gateway) -> None:
    """Tools whose schemas, and whose own fields, have their keys in another order are the same prompt."""
    tools = [tool(name) for name in NAMES]
    await ask(gateway, [system(RULES), QUESTION], tools=tools)
    answer = await ask(gateway, [system(RULES), QUESTION], tools=backwards(tools))
    assert changes(answer) == []
    assert prompts(gateway)[0] == prompts(gateway)[1]


async def test_history_that_was_serialised_again_is_the_same_history(gateway: Gateway) -> None:
    """A call's arguments in another key order, spacing, escaping or spelling of numbers are the same prompt."""
    tight = json.dumps(backwards(ARGUMENTS), separators=(",", ":"))
    texts = [json.dumps(ARGUMENTS), tight, json.dumps(ARGUMENTS, indent=2), tight.replace(":3", ":3.0")]
    texts.append(tight.replace("Atlas", "\\u0041tlas"))
    answers = [await ask(gateway, called(text), tools=[tool("find_book")]) for text in texts]
    assert [changes(answer) for answer in answers] == [[]] * len(texts)
    assert len(set(texts)) == len(texts)
    assert len(set(prompts(gateway))) == 1


async def test_equal_arguments_hit_whatever_their_key_order(gateway: Gateway) -> None:
    """Calls whose input is an object are the same prompt in any key order, and other values are not."""
    texts = []
    for given in (ARGUMENTS, backwards(ARGUMENTS), {**ARGUMENTS, "shelf": 4}):
        use = {"type": "tool_use", "id": "toolu_1", "name": "find_book", "input": given}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Upstairs."}
        talk = [QUESTION, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        texts.append(changes(await post(gateway, MESSAGES, {"model": MODEL, "max_tokens": 8, "messages": talk})))
    one, other, changed = prompts(gateway)
    assert one == other != changed
    assert [[reason for reason, _, _ in told] for told in texts] == [[], [], ["messages"]]


def test_order_seeded_per_process_never_reaches_the_prompt() -> None:
    """Clients whose dictionaries come in another order in each process make the same ids, in each of them."""
    printed = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PRINT_IDS],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        printed.append(json.loads(done.stdout))
    (one, ids), (other, same) = printed
    assert one != other
    assert ids == same


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_the_order_of_the_bodys_own_keys_is_nothing(gateway: Gateway, path: str) -> None:
    """A body with its messages before system text and tools is the prompt of one with them behind."""
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 8}
    if path == CHAT:
        body |= {"tools": [tool("find_book")], "messages": [system(RULES), QUESTION]}
    else:
        body |= {"system": RULES, "tools": [{"name": "find_book", "input_schema": SCHEMA}], "messages": [QUESTION]}
    await post(gateway, path, body)
    answer = await post(gateway, path, dict(reversed(body.items())))
    assert changes(answer) == []
    assert prompts(gateway)[0] == prompts(gateway)[1]


async def test_empty_thoughts_that_vanish_from_history_are_the_templates_doing(gateway: Gateway) -> None:
    """Where the template opens an answer with empty thoughts and later leaves them out, the miss names it and place."""
    fields = {"chat_template_kwargs": {"enable_thinking": False}}
    talk: list[Any] = [system(RULES), QUESTION]
    await ask(gateway, talk, **fields)
    answer = await ask(gateway, [*talk, {"role": "assistant", "content": "hi"}, QUESTION], **fields)
    (miss,) = [miss for miss in answer["keepwarm"]["miss"] if "where" in miss]
    assert (miss["reason"], miss["where"]["message"]) == ("template", "messages[2]")
    first, second = (np.frombuffer(tokens, dtype="<u4") for tokens in prompts(gateway))
    assert miss["where"]["token"] == int((first != second[: len(first)]).argmax())
    assert gateway.renderer.spell(first.tobytes()).endswith("assistant\n<think>\n\n</think>\n\n")
    assert gateway.renderer.spell(second.tobytes()).count("<think>") == 1


async def test_thinking_that_the_client_drops_is_a_changed_message(gateway: Gateway) -> None:
    """Thoughts that came with a call and are gone a step later cost all from that message on, and it is named."""
    arguments = json.dumps(ARGUMENTS)
    thoughtful = called(arguments, reasoning_content="Atlases are large, so they will be upstairs.")
    bare, tools = called(arguments), [tool("find_book")]
    told = [
        changes(await ask(gateway, talk, tools=tools))
        for talk in (thoughtful, [*thoughtful, *bare[2:]], [*bare, *bare[2:], *bare[2:]])
    ]
    assert told == [[], [], [("messages", "messages[2]", "text")]]


async def test_thinking_dropped_between_equal_results_is_no_summary(gateway: Gateway) -> None:
    """Where a tool says the same again and again, several thinned messages are not taken for a summary."""
    call = {"id": "call_1", "type": "function", "function": {"name": "find_book", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Nothing."}

    def talk(steps: int, **thoughts: str) -> list[Any]:
        step = {"role": "assistant", "content": "", "tool_calls": [call]}
        told = ({**step, **{name: f"{text} {number}" for name, text in thoughts.items()}} for number in range(steps))
        return [QUESTION, *(message for one in told for message in (one, result))]

    await ask(gateway, talk(2, reasoning_content="Try shelf"), tools=[tool("find_book")])
    answer = await ask(gateway, talk(3), tools=[tool("find_book")])
    assert changes(answer) == [("messages", "messages[1]", "text")]
