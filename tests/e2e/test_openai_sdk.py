"""The official openai SDK against a live server: what a client sees on the first and on the second turn."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.answers import Answers, openai_sdk
from tests.e2e.conftest import Server, StartServer, is_ready, until
from tests.e2e.metrics import metric
from tests.e2e.talk import BLOCK, cached, handbook, messages


def test_second_turn_is_computed_from_where_the_first_ended(openai_client: OpenAI, server: Server) -> None:
    """The same long prompt again reads all but its end from the cache, and the answer is the same."""
    ask = {"model": server.model, "messages": messages(handbook("A")), "max_tokens": 8, "temperature": 0}
    cold, warm = (openai_client.chat.completions.create(**ask) for _ in range(2))
    assert cold.choices[0].message.content == warm.choices[0].message.content
    assert cached(cold) <= BLOCK  # the template's own opening, where another test came first
    assert cold.usage is not None
    assert cold.usage.prompt_tokens - BLOCK <= cached(warm) < cold.usage.prompt_tokens
    assert warm.model_extra is not None
    extension = warm.model_extra["keepwarm"]
    prompt, generated = cold.usage.prompt_tokens, cold.usage.completion_tokens
    assert extension["computed_tokens"] == prompt - cached(warm)
    assert extension["projections"] == {
        "done": prompt - cached(warm) + generated - 1,
        "without_prefix_cache": prompt + generated - 1,
        "without_kv_cache": sum(prompt + step for step in range(generated)),
    }
    assert all(value >= 0 for value in extension["timings"].values())


def test_stream_equals_the_whole_answer(openai_client: OpenAI, server: Server) -> None:
    """Streamed with usage, text, finish reason and counts are those of the whole answer."""
    ask = {"model": server.model, "messages": messages(handbook("B")), "max_tokens": 12, "temperature": 0}
    whole = openai_client.chat.completions.create(**ask)
    chunks = list(openai_client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert cached(last) > 0
    assert last.model_extra is not None
    assert last.model_extra["keepwarm"]["computed_tokens"] == last.usage.prompt_tokens - cached(last)


def test_stream_without_usage_says_none(openai_client: OpenAI, server: Server) -> None:
    """Unasked, a stream has no usage; the extension is on its last chunk."""
    ask = openai_client.chat.completions.create(
        model=server.model, messages=messages("short"), max_tokens=3, stream=True, temperature=0
    )
    chunks = list(ask)
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in {"stop", "length"}
    assert "keepwarm" in (chunks[-1].model_extra or {})


def test_seed_repeats_an_answer(openai_client: OpenAI, server: Server) -> None:
    """One seed is one answer, cold or warm."""
    ask = {"model": server.model, "messages": messages("seeds"), "max_tokens": 16, "temperature": 1.0, "seed": 11}
    first, second = (openai_client.chat.completions.create(**ask).choices[0].message.content for _ in range(2))
    assert first == second


def test_conversation_hits_its_own_history(openai_client: OpenAI, server: Server) -> None:
    """Each turn of a conversation reads at least what the turn before it had as its prompt, to whole blocks."""
    talk = messages(handbook("C"))
    before = 0
    for turn in range(4):
        answer = openai_client.chat.completions.create(model=server.model, messages=talk, max_tokens=6, temperature=0)
        assert answer.usage is not None
        assert cached(answer) >= before - BLOCK
        before = answer.usage.prompt_tokens
        content = answer.choices[0].message.content
        talk = [*talk, {"role": "assistant", "content": content}, {"role": "user", "content": f"And {turn}?"}]


async def test_clients_at_once_get_the_answers_they_get_alone(async_openai_client: AsyncOpenAI, server: Server) -> None:
    """Eight clients over two prefixes get what each would get alone."""

    async def ask(number: int) -> str | None:
        answer = await async_openai_client.chat.completions.create(
            model=server.model,
            messages=messages(handbook(f"D{number % 2}"), f"Question {number}?"),
            max_tokens=10,
            temperature=0,
        )
        return answer.choices[0].message.content

    together = await asyncio.gather(*map(ask, range(8)))
    assert [await ask(number) for number in range(8)] == together


def test_models_are_listed(openai_client: OpenAI, server: Server) -> None:
    """The SDK finds the model it then asks for."""
    assert [model.id for model in openai_client.models.list()] == [server.model]


def test_refusals_are_the_sdks_own_errors(openai_client: OpenAI, server: Server) -> None:
    """The SDK raises the class that fits, with code and field."""
    with pytest.raises(openai.NotFoundError) as unknown:
        openai_client.chat.completions.create(model="other", messages=messages("x"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        openai_client.chat.completions.create(model=server.model, messages=messages("x"), temperature=9)
    assert wrong.value.param == "temperature"


def test_prompt_beyond_the_window_is_refused_with_both_numbers(openai_client: OpenAI, server: Server) -> None:
    """A prompt is never cut: what does not fit is refused."""
    with pytest.raises(openai.BadRequestError) as refusal:
        openai_client.chat.completions.create(model=server.model, messages=messages("xy " * 2000), max_tokens=4)
    assert refusal.value.code == "context_length_exceeded"
    assert "2048 tokens" in refusal.value.message


async def test_client_that_leaves_is_noticed(async_openai_client: AsyncOpenAI, server: Server) -> None:
    """A stream left after its first chunks stops the engine; its blocks stay reusable."""
    stream = await async_openai_client.chat.completions.create(
        model=server.model, messages=messages(handbook("E")), max_tokens=1000, temperature=0, stream=True
    )
    async for _ in stream:
        break
    await stream.close()
    await asyncio.to_thread(until, lambda: metric(server, "keepwarm_engine_running") == 0)
    assert metric(server, 'keepwarm_requests_total{api="chat",code="499",model="tiny-llama",stream="true"}') >= 1


def test_counters_equal_the_answers(openai_client: OpenAI, server: Server) -> None:
    """Read tokens in the metrics grow by exactly what the answer says."""
    name = 'keepwarm_input_tokens_total{cache="read",model="tiny-llama",ttl="none"}'
    ask = {"model": server.model, "messages": messages(handbook("F")), "max_tokens": 2}
    openai_client.chat.completions.create(**ask)
    before = metric(server, name)
    answer = openai_client.chat.completions.create(**ask)
    assert metric(server, name) - before == cached(answer) > 0


def test_engine_that_dies_is_started_again(start_server: StartServer, answers: Answers) -> None:
    """Its requests hear of it, health stays, readiness comes back, and SIGTERM still ends everything in order."""
    server = start_server("--kv-bytes", "4MiB")
    engine = child_of(server.process.pid)
    with openai_sdk(server.url, answers) as client:
        ask = {"model": server.model, "messages": messages("again"), "temperature": 0}
        stream = client.chat.completions.create(**ask, max_tokens=1900, stream=True)
        next(stream)
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(openai.APIError) as lost:
            list(stream)
        assert lost.value.code == "engine_unavailable"
        with urllib.request.urlopen(f"{server.url}/health", timeout=5) as health:
            assert health.status == 200
        until(lambda: child_of(server.process.pid) not in {0, engine})
        until(lambda: is_ready(server))
        answer = client.chat.completions.create(**ask, max_tokens=2)
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert metric(server, "keepwarm_engine_restarts_total") == 1
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=20) == 0


def child_of(pid: int) -> int:
    """Process id of the engine, 0 while there is none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else 0
