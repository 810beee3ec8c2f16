"""Sampling over HTTP, with vLLM's names beside OpenAI's: what it costs, what it counts, when an answer may end."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.answers import Answers, openai_sdk
from tests.e2e.conftest import Server, StartServer
from tests.e2e.metrics import metric
from tests.e2e.talk import BLOCK, cached, extension, handbook, messages
from tests.tiny_model import save_tiny_model

PROJECTED = "keepwarm_engine_projected_tokens_total"
FIGS = " fig" * 40
NEVER = {"ignore_eos": True}


@pytest.mark.parametrize("more", range(3))
def test_four_choices_cost_one_prefill(openai_client: OpenAI, server: Server, more: int):
    """Beyond one prompt and what was generated, each further choice computes no more than a part of a block."""
    before = metric(server, PROJECTED)
    answer = openai_client.chat.completions.create(
        model=server.model,
        messages=messages(handbook(f"four {more}"), "Why?" + "!" * more),
        n=4,
        max_tokens=6,
        extra_body=NEVER | {"prompt_cache_key": f"four {more}"},
    )
    assert answer.usage is not None
    prompt, generated = answer.usage.prompt_tokens, answer.usage.completion_tokens
    assert (generated, cached(answer)) == (24, 0)
    computed = metric(server, PROJECTED) - before
    further = computed - prompt - 4 * (6 - 1)
    assert 3 <= further <= 3 * (prompt % BLOCK or 1)
    assert computed == extension(answer)["projections"]["done"]


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.5}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.7}]
)
def test_penalties_count_what_is_cached(openai_client: OpenAI, server: Server, penalty: dict[str, float]):
    """A prompt that repeats itself is answered alike cold and warm, and otherwise than without the penalty."""
    ask: Any = {"model": server.model, "prompt": FIGS, "max_tokens": 24, "temperature": 0}
    body = NEVER | {"prompt_cache_key": str(penalty)}
    cold, warm = (openai_client.completions.create(**ask, extra_body=penalty | body) for _ in range(2))
    assert cold.usage is not None
    assert (cached(cold), cached(warm)) == (0, cold.usage.prompt_tokens - 1)
    assert warm.choices[0].text == cold.choices[0].text
    assert openai_client.completions.create(**ask, extra_body=body).choices[0].text != cold.choices[0].text


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK + 2])
def test_prompt_log_probabilities_are_computed_again_and_usage_says_so(
    openai_client: OpenAI, server: Server, length: int
):
    """One entry a prompt token, null first, each with the token itself; on a warm prompt the same, and none is read."""
    prompt = (f"{length} as it was written, so it must be told. " * 3)[:length]
    ask: Any = {"model": server.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    rows = []
    for _ in range(2):
        answer = openai_client.completions.create(**ask, extra_body={"prompt_logprobs": 2}, n=2)
        assert answer.usage is not None
        assert cached(answer) == 0
        first, second = (choice.to_dict()["prompt_logprobs"] for choice in answer.choices)
        assert first == second
        assert isinstance(first, list)
        assert len(first) == answer.usage.prompt_tokens
        assert first[0] is None
        for row in first[1:]:
            assert 2 <= len(row) <= 3
            assert {1, 2} <= {one["rank"] for one in row.values()}
            assert all(math.isfinite(one["logprob"]) and one["logprob"] <= 0 for one in row.values())
        rows.append(first[1:])
        assert openai_client.completions.create(**ask).choices[0].text == answer.choices[0].text
    for cold, warm in zip(*rows, strict=True):
        assert cold.keys() == warm.keys()
        assert [one["logprob"] for one in warm.values()] == pytest.approx(
            [one["logprob"] for one in cold.values()], abs=1e-4
        )


def test_a_chats_prompt_is_told_beside_its_choices(openai_client: OpenAI, server: Server):
    """Chat tells the prompt's log-probabilities once, and they agree with those that completions echo."""
    chat = openai_client.chat.completions.create(
        model=server.model, messages=messages("Tell."), max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    rows = chat.to_dict()["prompt_logprobs"]
    assert isinstance(rows, list)
    assert chat.usage is not None
    assert (len(rows), rows[0], cached(chat)) == (chat.usage.prompt_tokens, None, 0)
    assert all(len(row) == 1 for row in rows[1:])
    text = "<|im_start|>system\nTell.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    echo = openai_client.completions.create(model=server.model, prompt=text, max_tokens=0, echo=True, logprobs=0)
    assert echo.choices[0].logprobs is not None
    told = [next(iter(row.values()))["logprob"] for row in rows[1:]]
    assert told == pytest.approx((echo.choices[0].logprobs.token_logprobs or [])[1:], abs=1e-4)


def test_an_answer_ends_when_it_is_told_to(openai_client: OpenAI, server: Server):
    """A stop token ends it unseen, min_tokens holds it back, ignore_eos lets the model's own end be drawn."""
    end = "2"  # the model's own
    ask: Any = {"model": server.model, "prompt": "Ends.", "max_tokens": 8, "temperature": 0}

    def drawn(**fields: Any) -> tuple[int, str]:
        answer = openai_client.completions.create(**ask, extra_body=fields)
        assert answer.usage is not None
        return answer.usage.completion_tokens, str(answer.choices[0].finish_reason)

    eager = {"logit_bias": {end: 100}}
    assert drawn(**eager) == (1, "stop")
    assert drawn(**eager, min_tokens=5) == (6, "stop")
    assert drawn(**eager, ignore_eos=True) == (8, "length")
    assert drawn(logit_bias={"70": 100}, stop_token_ids=[70]) == (1, "stop")
    assert drawn(logit_bias={"70": 100}, stop_token_ids=[70], min_tokens=8) == (8, "length")


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"temperature": 3}, "temperature", "from 0 to 2"),
        ({"top_p": 0}, "top_p", "above 0 to 1"),
        ({"min_p": -0.1}, "min_p", "from 0 to 1"),
        ({"presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"repetition_penalty": 11}, "repetition_penalty", "above 0 to 10"),
        ({"repetition_penalty": 0.001}, "repetition_penalty", "from 0.01 to 100"),
        ({"min_tokens": 9}, "min_tokens", "from 0 to 8"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "from 0 to 20"),
        ({"logit_bias": {"267": 1}}, "logit_bias", "tokens are 0 to 266"),
        ({"stop_token_ids": [267]}, "stop_token_ids", "tokens are 0 to 266"),
    ],
)
def test_what_is_out_of_range_is_told_its_range(
    openai_client: OpenAI, server: Server, fields: dict[str, Any], param: str, said: str
):
    """A 400 names the field and the range, whoever of gateway and engine knows it."""
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.completions.create(model=server.model, prompt="Range.", max_tokens=8, extra_body=fields)
    assert refused.value.param == param
    assert said in refused.value.message


def test_new_weights_under_an_old_name_read_nothing(start_server: StartServer, tmp_path: Path, answers: Answers):
    """Reloaded with other weights, the same model name answers as they do, and the first prompt is not cached."""
    likely = []
    for seed, home in ((1, "shared"), (2, "shared"), (2, "apart")):
        shutil.rmtree(tmp_path / "shop", ignore_errors=True)
        model = save_tiny_model(tmp_path / "shop", seed=seed)
        (tmp_path / home).mkdir(exist_ok=True)
        server = start_server("--kv-bytes", "1MiB", model=model, home=tmp_path / home)
        with openai_sdk(server.url, answers) as client:
            ask: Any = {"model": "shop", "messages": messages("What is on the shelf?"), "temperature": 0}
            first, second = (client.chat.completions.create(**ask, max_tokens=1, logprobs=True) for _ in range(2))
        assert cached(first) == 0
        assert cached(second) > 0
        rows = [answer.choices[0].logprobs.content[0] for answer in (first, second)]
        likely.append([row.logprob for row in rows])
        server.process.terminate()
        server.process.wait(timeout=20)
    assert likely[1] == pytest.approx(likely[2], abs=1e-4)
    assert abs(likely[0][0] - likely[1][0]) > 1e-3
