"""What OpenAI's cache fields do, models and errors, through the SDK."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.conftest import Server
from tests.e2e.talk import BLOCK, CHAT_TOOLS, cached, extension, handbook, messages, whole_blocks


def written(answer: Any) -> int:
    """Written tokens of an answer."""
    tokens: int = answer.usage.prompt_tokens_details.cache_write_tokens
    return tokens


def marked(name: str, spelling: str = "prompt_cache_breakpoint", **fields: Any) -> dict[str, Any]:
    """A text part with a mark at its end."""
    mark = {"mode": "explicit"} if spelling == "prompt_cache_breakpoint" else {"type": "ephemeral"}
    return {"type": "text", "text": handbook(name, 1), spelling: mark | fields}


def test_a_cache_key_is_a_partition(openai_client: OpenAI, server: Server):
    """Under another key the same prompt is cold; under the same it hits."""
    ask: Any = {"model": server.model, "messages": messages(handbook("key", 3)), "max_tokens": 2}
    reads = [cached(openai_client.chat.completions.create(**ask, prompt_cache_key=key)) > 0 for key in ("a", "b", "a")]
    assert reads == [False, False, True]


def test_explicit_mode_without_marks_caches_nothing(openai_client: OpenAI, server: Server):
    """No read and no write, though the prompt is warm, and the next request finds nothing of it."""
    ask: Any = {"model": server.model, "messages": messages(handbook("off", 3)), "max_tokens": 2}
    off: Any = {"prompt_cache_options": {"mode": "explicit"}}
    first = openai_client.chat.completions.create(**ask, **off)
    assert (cached(first), written(first)) == (0, 0)
    assert {miss["fate"] for miss in extension(first)["miss"]} == {"no_cache"}
    warm = openai_client.chat.completions.create(**ask)
    assert cached(warm) < 2 * BLOCK
    second = openai_client.chat.completions.create(**ask, **off)
    assert (cached(second), written(second)) == (0, 0)


def test_explicit_mode_writes_up_to_its_mark(openai_client: OpenAI, server: Server):
    """With a mark, the whole blocks before it are written, the rest is uncached, and the next request reads them."""
    ask: Any = {"model": server.model, "max_tokens": 2, "prompt_cache_options": {"mode": "explicit"}}
    ask["messages"] = [{"role": "user", "content": [marked("explicit"), {"type": "text", "text": "Go on, then. " * 9}]}]
    first = openai_client.chat.completions.create(**ask)
    (mark,) = extension(first)["retention"]
    assert written(first) + cached(first) == whole_blocks(mark["tokens"])
    second = openai_client.chat.completions.create(**ask)
    assert written(second) == 0
    assert cached(second) >= whole_blocks(mark["tokens"])


def test_implicit_mode_hits_a_shared_beginning_without_marks(openai_client: OpenAI, server: Server):
    """Only the last user message differs, nothing is marked: the static beginning is read all the same."""
    text = handbook("implicit", 3)
    first, second = (
        openai_client.chat.completions.create(model=server.model, messages=messages(text, question), max_tokens=2)
        for question in ("Who?", "When?")
    )
    assert first.usage is not None
    assert written(first) + cached(first) > first.usage.prompt_tokens - BLOCK
    assert cached(second) >= cached(first) + written(first) - 2 * BLOCK


@pytest.mark.parametrize("spelling", ["prompt_cache_breakpoint", "cache_control"])
def test_five_marks_are_answered_and_the_latest_four_count(openai_client: OpenAI, server: Server, spelling: str):
    """One mark too many is no error: the first is dropped."""
    parts: Any = [marked(f"five {spelling} {number}", spelling) for number in range(5)]
    answer = openai_client.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": parts}], max_tokens=2
    )
    tokens = [mark["tokens"] for mark in extension(answer)["retention"]]
    assert len(tokens) == 4
    assert tokens == sorted(tokens)
    assert answer.usage is not None
    assert tokens[-1] == whole_blocks(answer.usage.prompt_tokens - 12)  # the turn's end, and the answer's opening


def test_cache_control_as_litellm_sends_it(openai_client: OpenAI, server: Server):
    """On a part, on a message and on a tool the mark counts, with the TTL it asks for."""
    tools: Any = [CHAT_TOOLS[0], {**CHAT_TOOLS[1], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    turns: Any = [
        {"role": "system", "content": [marked("litellm", "cache_control")]},
        {"role": "user", "content": "Hold on to this.", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": "Go."},
    ]
    answer = openai_client.chat.completions.create(model=server.model, messages=turns, tools=tools, max_tokens=2)
    marks = extension(answer)["retention"]
    assert [mark["asked"] for mark in marks] == ["1h", None, None]
    assert [mark["kept"] for mark in marks] == ["promised"] * 3
    assert marks[0]["applied"] == "1h"


def test_unknown_and_older_cache_fields_are_accepted(openai_client: OpenAI, server: Server):
    """Fields of other times and servers change nothing."""
    older: Any = {"prompt_cache_retention": "24h", "user": "u", "safety_identifier": "s"}
    answer = openai_client.chat.completions.create(
        model=server.model, messages=messages("Older."), max_tokens=2, extra_body={"cache_salt": "x"}, **older
    )
    assert answer.choices[0].finish_reason in {"stop", "length"}


def test_writes_are_split_by_ttl_only_where_the_field_has_words(openai_client: OpenAI, server: Server):
    """Written for 30m the split says so and sums; under a class that the field does not know it is left out."""

    def details(name: str, ttl: str) -> Any:
        turns: Any = [{"role": "user", "content": [marked(name, ttl=ttl), {"type": "text", "text": "Go."}]}]
        options: Any = {"mode": "explicit"}
        answer: Any = openai_client.chat.completions.create(
            model=server.model, messages=turns, max_tokens=2, prompt_cache_options=options
        )
        return answer.usage.prompt_tokens_details.model_dump()

    half_hour = details("split 30m", "30m")
    assert half_hour["cache_write_tokens_details"] == {
        "ttl_30m_tokens": half_hour["cache_write_tokens"],
        "ttl_12h_tokens": 0,
    }
    assert "cache_write_tokens_details" not in details("split 5m", "5m")


def test_the_model_can_be_retrieved_and_another_is_not_found(openai_client: OpenAI, server: Server):
    """Models are listed and retrieved by id; one that is not here is the SDK's NotFoundError in every API."""
    assert [model.id for model in openai_client.models.list()] == [server.model]
    assert openai_client.models.retrieve(server.model).id == server.model
    calls: tuple[Any, ...] = (
        lambda: openai_client.models.retrieve("other"),
        lambda: openai_client.chat.completions.create(model="other", messages=messages("x")),
        lambda: openai_client.completions.create(model="other", prompt="x"),
        lambda: openai_client.responses.create(model="other", input="x"),
    )
    for call in calls:
        with pytest.raises(openai.NotFoundError) as unknown:
            call()
        assert unknown.value.code == "model_not_found"


async def test_errors_are_the_async_sdks_own_classes(async_openai_client: AsyncOpenAI, server: Server):
    """Refusals name their field, streamed or not, and carry the request's id."""
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            await async_openai_client.chat.completions.create(model=server.model, messages=image, stream=stream)
        assert refused.value.param == "messages[0].content[0]"
        assert refused.value.request_id
    with pytest.raises(openai.BadRequestError) as unasked:
        await async_openai_client.chat.completions.create(
            model=server.model, messages=messages("x"), stream_options={"include_usage": True}
        )
    assert unasked.value.param == "stream_options"
