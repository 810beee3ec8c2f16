"""Completions through OpenAI's SDK: several prompts, echo with log-probabilities, prompts as token ids."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.answers import Answers
from tests.e2e.conftest import Server
from tests.e2e.talk import BLOCK, cached


def test_prompts_are_answered_apart(openai_client: OpenAI, server: Server, answers: Answers):
    """Choice prompt × n + k is the k-th answer of a prompt, as if it had been asked alone."""
    ask: Any = {"model": server.model, "max_tokens": 6, "seed": 3}
    both = openai_client.completions.create(**ask, prompt=["One tide.", "Two tides are."], n=2)
    alone = [openai_client.completions.create(**ask, prompt=text, n=2) for text in ("One tide.", "Two tides are.")]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in both.choices] == [choice.text for one in alone for choice in one.choices]
    assert both.usage is not None
    assert both.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone if one.usage)
    assert answers.checked == {"/v1/completions": 3}


def test_streamed_prompts_are_the_whole_answers(openai_client: OpenAI, server: Server):
    """Streamed, each choice's pieces join to its text, and usage comes once, at the end, for all prompts."""
    ask: Any = {"model": server.model, "prompt": ["First light", "Last light"], "max_tokens": 6, "temperature": 0}
    whole = openai_client.completions.create(**ask)
    chunks = list(openai_client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    told = [chunk.usage for chunk in chunks if chunk.usage]
    assert whole.usage is not None
    assert [usage.total_tokens for usage in told] == [whole.usage.total_tokens]


async def test_token_ids_are_the_text_that_they_spell(async_openai_client: AsyncOpenAI, server: Server):
    """A prompt as token ids hits what its text wrote, and is answered alike."""
    text = "zyx wvu " * 6  # no merge of the vocabulary applies: one token a byte
    ask: Any = {"model": server.model, "max_tokens": 4, "temperature": 0, "logprobs": 0}
    spelled = await async_openai_client.completions.create(**ask, prompt=text, echo=True)
    ids = [token_id(character) for character in text]
    by_id = await async_openai_client.completions.create(**ask, prompt=ids)
    assert spelled.choices[0].text == text + by_id.choices[0].text
    assert by_id.usage is not None
    assert by_id.usage.prompt_tokens == len(text)
    assert cached(by_id) == len(text) - 1


def token_id(character: str) -> int:
    """Id of a character in the tiny tokenizer's byte-level alphabet."""
    from tests.tiny_model import tiny_tokenizer

    (one,) = tiny_tokenizer().encode(character, add_special_tokens=False)
    return int(one)


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK + 2])
def test_echoed_logprobs_are_the_same_cold_and_warm(openai_client: OpenAI, server: Server, length: int):
    """One log-probability per prompt token, the first null, equal cold and warm; computing again is said."""
    prompt = (f"{length:03}: so it is wrote, so it must be kept. " * 4)[:length]
    ask: Any = {"model": server.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    told = []
    for warm_first in (False, True, True):
        if warm_first:
            openai_client.completions.create(**ask)
        answer = openai_client.completions.create(**ask, echo=True, logprobs=1)
        (choice,) = answer.choices
        assert choice.logprobs is not None
        assert answer.usage is not None
        rows = (choice.logprobs.token_logprobs or [])[: answer.usage.prompt_tokens]
        assert len(rows) == answer.usage.prompt_tokens == len((choice.logprobs.tokens or [])[: len(rows)])
        assert rows[0] is None
        assert all(row is not None and math.isfinite(row) for row in rows[1:])
        assert choice.text.startswith(prompt)
        assert cached(answer) == 0
        told.append(rows[1:])
    assert told[1] == pytest.approx(told[0], abs=1e-4)
    assert told[2] == pytest.approx(told[0], abs=1e-4)


def test_offsets_find_each_token_in_the_text(openai_client: OpenAI, server: Server):
    """Each token of the echoed prompt, the first one too, stands at its text offset."""
    answer = openai_client.completions.create(
        model=server.model, prompt="the tide and the moon", max_tokens=0, echo=True, logprobs=0
    )
    (choice,) = answer.choices
    assert choice.text == "the tide and the moon"
    assert choice.logprobs is not None
    offsets, tokens = choice.logprobs.text_offset or [], choice.logprobs.tokens or []
    assert offsets == sorted(offsets)
    assert [choice.text[at : at + len(token)] for at, token in zip(offsets, tokens, strict=True)] == tokens


def test_bad_prompts_are_named(openai_client: OpenAI, server: Server):
    """An empty prompt and an id that the model does not have are the client's errors, by field."""
    for prompt, field in (("", "prompt"), ([], "prompt"), (["a", ""], "prompt[1]"), ([1, 999999], "prompt")):
        with pytest.raises(openai.BadRequestError) as refused:
            openai_client.completions.create(model=server.model, prompt=prompt, max_tokens=1)
        assert refused.value.param == field
