"""Anthropic's Messages API through its SDK: answers, streams, tools, counting, refusals."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.e2e.answers import Answers
from tests.e2e.conftest import Server
from tests.e2e.talk import ANTHROPIC_TOOLS, handbook, whole_blocks

GREEDY: dict[str, Any] = {"temperature": 0}  # the SDK has no parameter for it any more


def ask(server: Server, text: str = "Why?", **fields: Any) -> Any:
    """The arguments of a short question."""
    asked = {"model": server.model, "max_tokens": 8, "messages": [{"role": "user", "content": text}]}
    return {**asked, "extra_body": GREEDY, **fields}


def text_of(message: Any) -> str:
    """All text of an answer."""
    return "".join(block.text for block in message.content if block.type == "text")


def calls_of(message: Any) -> list[Any]:
    """Name and input of each call of an answer."""
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


def totals(message: Any) -> tuple[int, int]:
    """Tokens of the prompt, whoever paid for them, and of the answer."""
    usage = message.usage
    prompt = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    return prompt, usage.output_tokens


def test_system_as_string_and_as_blocks_is_one_prompt(anthropic_client: Anthropic, server: Server, answers: Answers):
    """A system text and the same in a block answer alike, and the second reads the first."""
    text = handbook("blocks", 3)
    first = anthropic_client.messages.create(**ask(server, system=text))
    second = anthropic_client.messages.create(**ask(server, system=[{"type": "text", "text": text}]))
    assert text_of(first) == text_of(second)
    assert second.usage.cache_read_input_tokens >= whole_blocks(totals(first)[0])
    assert answers.checked == {"/v1/messages": 2}


def test_stream_is_the_whole_answer(anthropic_client: Anthropic, server: Server):
    """The SDK gathers the same text, stop reason and totals from a stream as from a whole answer."""
    asked = ask(server, system=handbook("ant stream", 2))
    whole = anthropic_client.messages.create(**asked)
    with anthropic_client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == text_of(whole)
    assert (final.stop_reason, totals(final)) == (whole.stop_reason, totals(whole))


async def test_async_stream_and_answer_agree(async_anthropic_client: AsyncAnthropic, server: Server):
    """Event by event: one start, deltas, one end, and the same totals as the whole answer."""
    asked = ask(server, "Async, then?")
    whole = await async_anthropic_client.messages.create(**asked)
    events = [event async for event in await async_anthropic_client.messages.create(**asked, stream=True)]
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert (kinds.count("message_start"), kinds.count("message_delta")) == (1, 1)
    async with async_anthropic_client.messages.stream(**asked) as stream:
        final = await stream.get_final_message()
    assert (text_of(final), totals(final)) == (text_of(whole), totals(whole))


@pytest.mark.parametrize(
    ("choice", "names"), [({"type": "any"}, {"look", "wait"}), ({"type": "tool", "name": "wait"}, {"wait"})]
)
def test_forced_call_goes_round(anthropic_client: Anthropic, server: Server, choice: Any, names: set[str]):
    """A forced tool_use obeys its schema; its tool_result is answered, and the whole earlier prompt is read."""
    choice = choice | {"disable_parallel_tool_use": True}
    talk: Any = [{"role": "user", "content": f"Where? {sorted(names)}"}]
    asked = ask(server, tools=ANTHROPIC_TOOLS, max_tokens=400) | {"messages": talk}
    first = anthropic_client.messages.create(**asked, tool_choice=choice)
    (call,) = first.content
    assert first.stop_reason == "tool_use"
    assert call.type == "tool_use"
    assert call.name in names
    assert sorted(call.input) in (["depth", "side"], ["hours"])
    talk += [
        {"role": "assistant", "content": [call.model_dump(include={"type", "id", "name", "input"})]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Clear."}]},
    ]
    second = anthropic_client.messages.create(**asked | {"max_tokens": 8}, tool_choice={"type": "none"})
    assert second.usage.cache_read_input_tokens >= whole_blocks(totals(first)[0])
    assert {block.type for block in second.content} <= {"text"}


def test_streamed_call_is_the_whole_answers(anthropic_client: Anthropic, server: Server):
    """The SDK joins a call's partial JSON to the same input."""
    asked = ask(server, "Where to?", tools=ANTHROPIC_TOOLS, max_tokens=400)
    asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    whole = anthropic_client.messages.create(**asked)
    with anthropic_client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    calls = [calls_of(message) for message in (whole, final)]
    assert calls[0] == calls[1]
    assert len(calls[0]) == 1
    assert final.stop_reason == "tool_use"


def test_the_last_assistant_message_is_gone_on_from(anthropic_client: Anthropic, server: Server):
    """An answer begun by the client is continued, without an end or a new beginning between."""
    talk: Any = [{"role": "user", "content": "Begin."}]
    whole = anthropic_client.messages.create(**ask(server, max_tokens=16) | {"messages": talk})
    begun = text_of(whole)[:6]
    assert begun.isascii()
    talk = [*talk, {"role": "assistant", "content": begun}]
    rest = anthropic_client.messages.create(**ask(server, max_tokens=10) | {"messages": talk})
    assert totals(rest)[0] > totals(whole)[0]
    assert (begun + text_of(rest))[:12] == text_of(whole)[:12]


def test_stop_sequences_end_and_are_named(anthropic_client: Anthropic, server: Server):
    """An answer ends before a stop sequence, which is named; streamed alike."""
    text = text_of(anthropic_client.messages.create(**ask(server, "Stop.", max_tokens=12)))
    stop = text[3:6]
    asked = ask(server, "Stop.", max_tokens=12, stop_sequences=["never comes", stop])
    whole = anthropic_client.messages.create(**asked)
    with anthropic_client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
        assert text_of(message) == text[: text.index(stop)]


def test_output_format_confines_the_answer(anthropic_client: Anthropic, server: Server):
    """An output_config with a schema makes the text JSON that obeys it."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    answer = anthropic_client.messages.create(**ask(server, "Form?", max_tokens=300, output_config=config))
    assert "".join(text_of(answer).split()) in {'{"a":"x"}', '{"a":"y"}'}


def test_count_is_the_whole_prompt(anthropic_client: Anthropic, server: Server):
    """The count is uncached, written and read tokens together, with system, tools and marks."""
    mark = {"type": "ephemeral"}
    asked = ask(server, tools=ANTHROPIC_TOOLS, system=[{"type": "text", "text": "Count.", "cache_control": mark}])
    counted = anthropic_client.messages.count_tokens(
        **{name: asked[name] for name in ("model", "messages", "tools", "system")}
    )
    assert counted.input_tokens == totals(anthropic_client.messages.create(**asked))[0]


async def test_count_is_the_same_for_the_async_sdk(async_anthropic_client: AsyncAnthropic, server: Server):
    """The asynchronous SDK counts a conversation as an answer's usage does."""
    asked = ask(server, "Count me.")
    counted = await async_anthropic_client.messages.count_tokens(model=server.model, messages=asked["messages"])
    assert counted.input_tokens == totals(await async_anthropic_client.messages.create(**asked))[0]


def test_models_have_the_apis_shape(anthropic_client: Anthropic, server: Server):
    """The SDK lists and retrieves the model; another is its NotFoundError."""
    assert [model.id for model in anthropic_client.models.list()] == [server.model]
    assert anthropic_client.models.retrieve(server.model).type == "model"
    for call in (
        lambda: anthropic_client.models.retrieve("other"),
        lambda: anthropic_client.messages.create(**ask(server) | {"model": "other"}),
    ):
        with pytest.raises(anthropic.NotFoundError) as unknown:
            call()
        assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


async def test_errors_are_the_async_sdks_own_classes(async_anthropic_client: AsyncAnthropic, server: Server):
    """Refusals name the block, streamed or not, in the API's envelope with the request's id."""
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as refused:
            await async_anthropic_client.messages.create(
                **ask(server) | {"messages": [{"role": "user", "content": [image]}], "stream": stream}
            )
        assert refused.value.body["error"]["message"].startswith("messages.0.content.0")  # type: ignore[index]
        assert refused.value.request_id
