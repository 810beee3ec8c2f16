"""The Responses API through OpenAI's SDK: items, streams, what goes on from what, and counting."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.e2e.answers import Answers
from tests.e2e.conftest import Server
from tests.e2e.talk import RESPONSES_TOOLS, handbook, whole_blocks

GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 16}


class Watch(BaseModel):
    """A form that an answer must have."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog", "middle"]
    hours: int = Field(ge=0, le=9)


def read(response: Any) -> int:
    """Cached tokens of a response."""
    tokens: int = response.usage.input_tokens_details.cached_tokens
    return tokens


def test_string_and_items_are_one_prompt(openai_client: OpenAI, server: Server, answers: Answers):
    """A string is one user message, with instructions as its system text; the second reads the first."""
    ask: Any = {"model": server.model, "instructions": handbook("items", 2), **GREEDY}
    first = openai_client.responses.create(**ask, input="Why?")
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Why?"}]}]
    second = openai_client.responses.create(**ask, input=parts)
    assert first.output_text == second.output_text
    assert first.usage is not None
    assert read(second) >= whole_blocks(first.usage.input_tokens)
    assert answers.checked == {"/v1/responses": 2}


def test_stream_ends_with_the_whole_response(openai_client: OpenAI, server: Server):
    """Every event is numbered, the deltas join to the text, and the last event is the whole answer."""
    ask: Any = {"model": server.model, "input": handbook("stream", 2), **GREEDY}
    whole = openai_client.responses.create(**ask)
    events = list(openai_client.responses.create(**ask, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == ("response.completed" if whole.status == "completed" else "response.incomplete")
    assert text == last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.total_tokens == whole.usage.total_tokens
    assert openai_client.responses.retrieve(last.response.id).output_text == text


async def test_async_stream_helper_ends_with_the_response(async_openai_client: AsyncOpenAI, server: Server):
    """The asynchronous helper gathers the same response as a request without a stream."""
    ask: Any = {"model": server.model, "input": "Gather ye.", **GREEDY}
    whole = await async_openai_client.responses.create(**ask)
    async with async_openai_client.responses.stream(**ask) as stream:
        kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    final = await async_openai_client.responses.create(**ask)
    assert final.output_text == whole.output_text


def test_going_on_is_the_same_as_sending_all(openai_client: OpenAI, server: Server):
    """With previous_response_id the prompt is that of all items sent again, without the earlier instructions."""
    ask: Any = {"model": server.model, **GREEDY}
    first = openai_client.responses.create(**ask, input=handbook("on", 2), instructions="Be brief.")
    second = openai_client.responses.create(
        **ask, input="And?", previous_response_id=first.id, instructions="Be brief."
    )
    items: Any = [
        {"role": "user", "content": handbook("on", 2)},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"role": "user", "content": "And?"},
    ]
    third = openai_client.responses.create(**ask, input=items, instructions="Be brief.")
    assert second.output_text == third.output_text
    assert first.usage is not None
    assert second.usage is not None
    assert read(second) >= whole_blocks(first.usage.input_tokens)
    assert read(third) >= whole_blocks(second.usage.input_tokens)
    bare = openai_client.responses.create(**ask, input="And?", previous_response_id=first.id)
    assert bare.usage is not None
    assert bare.usage.input_tokens < second.usage.input_tokens


def test_what_is_not_stored_cannot_be_gone_on_from(openai_client: OpenAI, server: Server):
    """With store false, and after a deletion, an id is unknown to a later request and to a retrieval."""
    ask: Any = {"model": server.model, "input": "Burn this.", "max_output_tokens": 2}
    for stores in (False, True):
        first = openai_client.responses.create(**ask, store=stores)
        if stores:
            assert openai_client.responses.retrieve(first.id).id == first.id
            openai_client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            openai_client.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError) as gone:
            openai_client.responses.create(**ask, previous_response_id=first.id)
        assert gone.value.code == "previous_response_not_found"


def test_function_tools_go_round(openai_client: OpenAI, server: Server):
    """A required call is an item; its output goes on from it, and the whole earlier prompt is read."""
    ask: Any = {"model": server.model, "tools": RESPONSES_TOOLS, "temperature": 0, "max_output_tokens": 400}
    first = openai_client.responses.create(**ask, input="Where?", tool_choice="required", parallel_tool_calls=False)
    (call,) = first.output
    assert call.type == "function_call"
    assert call.name in {"look", "wait"}
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Clear."}]
    second = openai_client.responses.create(**ask, input=output, previous_response_id=first.id, tool_choice="none")
    assert first.usage is not None
    assert read(second) >= whole_blocks(first.usage.input_tokens)
    assert [item.type for item in second.output] == ["message"]


def test_streamed_call_is_the_whole_answers(openai_client: OpenAI, server: Server):
    """The deltas of a call's arguments join to what the finished item holds."""
    events = list(
        openai_client.responses.create(
            model=server.model,
            input="Where to?",
            tools=RESPONSES_TOOLS,
            tool_choice={"type": "function", "name": "wait"},
            parallel_tool_calls=False,
            temperature=0,
            max_output_tokens=400,
            stream=True,
        )
    )
    pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    (done,) = [event for event in events if event.type == "response.output_item.done"]
    assert done.item.type == "function_call"
    assert done.item.name == "wait"
    assert done.item.arguments == pieces


def test_parse_reads_a_pydantic_model(openai_client: OpenAI, server: Server):
    """An answer confined to a model's schema is an instance of it."""
    response = openai_client.responses.parse(
        model=server.model, input="Which watch?", text_format=Watch, temperature=0, max_output_tokens=400
    )
    assert isinstance(response.output_parsed, Watch)


def test_count_is_the_prompt_of_the_answer(openai_client: OpenAI, server: Server):
    """Counted input is what the same request's usage says, with instructions, tools and what it goes on from."""
    first = openai_client.responses.create(model=server.model, input="Once.", max_output_tokens=2)
    ask: Any = {
        "model": server.model,
        "input": "Twice.",
        "instructions": "Count.",
        "tools": RESPONSES_TOOLS,
        "previous_response_id": first.id,
    }
    counted = openai_client.responses.input_tokens.count(**ask)
    usage = openai_client.responses.create(**ask, max_output_tokens=2).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def test_prewarm_answers_nothing_and_warms(openai_client: OpenAI, server: Server):
    """A pre-warming request has no output, and the next one reads all that is kept of it."""
    ask: Any = {"model": server.model, "input": handbook("prewarm", 3)}
    warmed = openai_client.responses.create(**ask, extra_body={"prompt_cache_options": {"prewarm": True}})
    assert warmed.output_text == ""
    assert warmed.usage is not None
    assert warmed.usage.output_tokens == 0
    written = warmed.usage.input_tokens_details.cache_write_tokens
    then = openai_client.responses.create(**ask, max_output_tokens=2)
    assert read(then) >= written > warmed.usage.input_tokens - 32
