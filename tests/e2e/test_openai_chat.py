"""Chat completions through OpenAI's SDK: every field that shapes an answer, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.e2e.answers import Answers
from tests.e2e.conftest import Server
from tests.e2e.talk import CHAT_TOOLS, cached, calls_of, extension, handbook, messages, whole_blocks

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


class Berth(BaseModel):
    """A form that an answer must have."""

    model_config = ConfigDict(extra="forbid")
    side: Literal["north", "south"]
    depth: int = Field(ge=0, le=99)
    free: bool


def prompt_tokens(client: OpenAI, model: str, turns: Any, **fields: Any) -> int:
    """Size of a prompt as an answer tells it."""
    answer: Any = client.chat.completions.create(model=model, messages=turns, **GREEDY, **fields)
    tokens: int = answer.usage.prompt_tokens
    return tokens


def test_parts_are_the_same_prompt_as_their_text(openai_client: OpenAI, server: Server, answers: Answers):
    """Text in parts and the same text in one string are one prompt, as are developer and system."""
    parts = [{"type": "text", "text": handbook("parts", 2)}, {"type": "text", "text": "Why?"}]
    split: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    joined = messages("Be brief.", handbook("parts", 2) + "Why?")
    first = openai_client.chat.completions.create(model=server.model, messages=split, **GREEDY)
    second = openai_client.chat.completions.create(model=server.model, messages=joined, **GREEDY)
    assert first.choices == second.choices
    assert first.usage is not None
    assert cached(second) >= whole_blocks(first.usage.prompt_tokens)
    assert answers.checked == {"/v1/chat/completions": 2}


def test_null_empty_and_missing_content_are_one_prompt(openai_client: OpenAI, server: Server):
    """An assistant's turn without content is the empty text, never a word."""
    before = prompt_tokens(openai_client, server.model, messages("Null.", "Go."))
    for said in ({"content": None}, {"content": ""}, {}):
        turns = [*messages("Null.", "Go."), {"role": "assistant", **said}, {"role": "user", "content": "?"}]
        after = prompt_tokens(openai_client, server.model, turns)
        assert after - before == 21  # the assistant's end, the user's turn of one character, the next opening


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"look", "wait"}), ({"type": "function", "function": {"name": "wait"}}, {"wait"})],
)
def test_forced_calls_are_read_by_the_sdk(openai_client: OpenAI, server: Server, choice: Any, names: set[str]):
    """A required or named call comes, is one of the tools, and its arguments obey the schema."""
    answer = openai_client.chat.completions.create(
        model=server.model,
        messages=messages("Pilots.", "Where?"),
        tools=CHAT_TOOLS,
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=400,
        temperature=0,
    )
    (only,) = answer.choices
    assert only.finish_reason == "tool_calls"
    assert only.message.content is None
    (called,) = calls_of(only.message)
    assert called.function.name in names
    assert sorted(json.loads(called.function.arguments)) in (["depth", "side"], ["hours"])


def test_streamed_calls_are_the_whole_answers(openai_client: OpenAI, server: Server):
    """The SDK's own accumulator reads the same call, name and arguments, from the stream."""
    ask: Any = {
        "model": server.model,
        "messages": messages("Pilots.", "Where to?"),
        "tools": CHAT_TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 400,
        "temperature": 0,
    }
    whole = openai_client.chat.completions.create(**ask)
    with openai_client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
        final = stream.get_final_completion()
    (one,), (other,) = calls_of(whole.choices[0].message), calls_of(final.choices[0].message)
    assert (one.function.name, one.function.arguments) == (other.function.name, other.function.arguments)
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_call_and_result_come_back_as_history(openai_client: OpenAI, server: Server):
    """A call that was made and its result are part of the next prompt, which reads the whole one before it."""
    ask: Any = {"model": server.model, "tools": CHAT_TOOLS, "max_tokens": 400, "temperature": 0}
    talk = messages("Round trip.", "Where?")
    first = openai_client.chat.completions.create(**ask, messages=talk, tool_choice="required")
    calls = calls_of(first.choices[0].message)
    talk = [*talk, first.choices[0].message.model_dump(exclude_none=True)]
    talk += [{"role": "tool", "tool_call_id": call.id, "content": "Clear."} for call in calls]
    second = openai_client.chat.completions.create(**ask, messages=talk, tool_choice="none")
    assert second.choices[0].message.tool_calls is None
    assert first.usage is not None
    assert cached(second) >= whole_blocks(first.usage.prompt_tokens)


def test_tool_choice_changes_no_token_of_the_prompt(openai_client: OpenAI, server: Server):
    """Whatever the choice, the prompt with tools is the same and hits."""
    ask: Any = {"model": server.model, "messages": messages("Choices.", "So?"), "tools": CHAT_TOOLS, "max_tokens": 1}
    sizes = []
    for choice in ("auto", "none", "required"):
        answer = openai_client.chat.completions.create(**ask, tool_choice=choice)
        assert answer.usage is not None
        sizes.append((answer.usage.prompt_tokens, cached(answer) >= whole_blocks(answer.usage.prompt_tokens - 1)))
    assert len({size for size, _ in sizes}) == 1
    assert [hit for _, hit in sizes[1:]] == [True, True]


def test_parse_reads_a_pydantic_model(openai_client: OpenAI, server: Server):
    """An answer confined to a model's schema is an instance of it."""
    answer = openai_client.chat.completions.parse(
        model=server.model,
        messages=messages("Berths.", "Which?"),
        response_format=Berth,
        max_tokens=500,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, Berth)
    assert answer.choices[0].finish_reason == "stop"


async def test_streamed_form_is_parsed_by_the_async_sdk(async_openai_client: AsyncOpenAI, server: Server):
    """The asynchronous stream helper ends with the parsed instance."""
    async with async_openai_client.chat.completions.stream(
        model=server.model,
        messages=messages("Berths.", "Which one?"),
        response_format=Berth,
        max_tokens=500,
        temperature=0,
    ) as stream:
        final = await stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Berth)


def test_three_choices_share_one_prompt(openai_client: OpenAI, server: Server):
    """With n the choices differ, each as its own seed would have it, and the prompt counts once."""
    ask: Any = {"model": server.model, "messages": messages("Three.", "Say."), "max_tokens": 8, "temperature": 1.0}
    answer = openai_client.chat.completions.create(**ask, n=3, seed=5)
    alone = openai_client.chat.completions.create(**ask, seed=5)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == alone.choices[0].message.content
    assert answer.usage is not None
    assert alone.usage is not None
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    again = openai_client.chat.completions.create(**ask, n=3, seed=5)
    assert [choice.message.content for choice in again.choices] == texts


def test_streamed_choices_are_the_whole_answers(openai_client: OpenAI, server: Server):
    """Streamed with n, each choice's pieces join to its text, and usage comes once."""
    ask: Any = {"model": server.model, "messages": messages("N.", "Say."), "max_tokens": 8, "seed": 3, "n": 2}
    whole = openai_client.chat.completions.create(**ask)
    chunks = list(openai_client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_a_seed_does_not_depend_on_neighbours(async_openai_client: AsyncOpenAI, server: Server):
    """One seed is one answer: cold, warm, and beside other requests."""
    create = async_openai_client.chat.completions.create
    ask: Any = {"model": server.model, "messages": messages(handbook("seed", 3)), "max_tokens": 24, "temperature": 1.0}
    cold = await create(**ask, seed=7)
    together = await asyncio.gather(*(create(**ask, seed=seed) for seed in (8, 7, 9, 10)))
    assert together[1].choices[0].message.content == cold.choices[0].message.content
    assert len({answer.choices[0].message.content for answer in together}) == 4


def test_logprobs_are_the_same_cold_and_warm(openai_client: OpenAI, server: Server):
    """Each token of the answer has its own log-probability, the likeliest rivals first, whatever was cached."""
    ask: Any = {"model": server.model, "messages": messages(handbook("likely", 3)), **GREEDY}
    told = []
    for _ in range(2):
        answer = openai_client.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
        assert answer.choices[0].logprobs is not None
        rows = answer.choices[0].logprobs.content or []
        assert answer.usage is not None
        assert len(rows) in {answer.usage.completion_tokens, answer.usage.completion_tokens - 1}
        for row in rows:
            assert [top.logprob for top in row.top_logprobs] == sorted(t.logprob for t in row.top_logprobs)[::-1]
            assert row.top_logprobs[0].token == row.token
        told.append([row.logprob for row in rows])
    assert told[1] == pytest.approx(told[0], abs=1e-4)


def test_stop_strings_end_an_answer(openai_client: OpenAI, server: Server):
    """An answer ends before the stop string, whole or streamed, and five of them are refused."""
    ask: Any = {"model": server.model, "messages": messages("Stop."), "temperature": 0, "max_tokens": 12}
    text = openai_client.chat.completions.create(**ask).choices[0].message.content or ""
    stop = text[3:6]
    expected = text[: text.index(stop)]
    answer = openai_client.chat.completions.create(**ask, stop=[stop])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (expected, "stop")
    chunks = list(openai_client.chat.completions.create(**ask, stop=stop, stream=True))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == expected
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.chat.completions.create(**ask, stop=list("abcde"))
    assert refused.value.param == "stop"


def test_bias_and_penalties_change_the_draw(openai_client: OpenAI, server: Server):
    """A bias of 100 makes every token that one; a penalty for what was said makes the answer another."""
    ask: Any = {"model": server.model, "messages": messages("Bias."), "temperature": 0, "max_tokens": 12}
    biased = openai_client.chat.completions.create(**ask, logit_bias={"70": 100})
    text = biased.choices[0].message.content or ""
    assert len(text) == 12
    assert len(set(text)) == 1
    held = openai_client.chat.completions.create(
        **ask, logit_bias={"70": 3, "71": 2}, frequency_penalty=2, presence_penalty=2
    )
    free = openai_client.chat.completions.create(**ask, logit_bias={"70": 3, "71": 2})
    assert held.choices[0].message.content != free.choices[0].message.content


def test_the_extension_tells_what_was_computed(openai_client: OpenAI, server: Server):
    """Projections done are the prompt tokens that were not read, and the generated ones that were fed back."""
    answer = openai_client.chat.completions.create(model=server.model, messages=messages("Cost."), **GREEDY)
    assert answer.usage is not None
    computed, generated = answer.usage.prompt_tokens - cached(answer), answer.usage.completion_tokens
    assert extension(answer)["projections"]["done"] == computed + generated - 1
