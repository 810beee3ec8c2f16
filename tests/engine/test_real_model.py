"""The default model itself: cold, warm and plain logits agree, and conversations are the plain model's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.loading import load
from engine.messages import ModelCard, Submit
from engine.weights import resolve_in_subprocess
from gateway.config import cache_dir, read_settings
from gateway.demo.handbook import HANDBOOK
from tests.engine.workbench import GREEDY, Bench, RecordingRunner, close

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def folder() -> Path:
    """The default model, converted once into the machine's cache."""
    settings = read_settings({}, os.environ)
    found = resolve_in_subprocess("smollm2-135m", cache_dir(settings, os.environ), lambda *_: None)
    return Path(found.path)


@pytest.fixture(scope="module")
def tokenizer(folder):
    """Its tokenizer."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def paged(folder):
    """Its weights under the paged attention."""
    return load(folder)


@pytest.fixture(scope="module")
def plain(folder):
    """The slow truth: plain transformers."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


@pytest.fixture
def bench(paged):
    """An in-thread engine on the real weights."""
    runner = RecordingRunner(paged, blocks=192, block_tokens=16)
    return Bench(runner, blocks=192, block_tokens=16, step_tokens=256, vocab_size=paged.config.vocab_size)


def rendered(tokenizer, *turns: tuple[str, str]) -> list[int]:
    """A conversation as the model reads it."""
    messages = [{"role": role, "content": content} for role, content in turns]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


@torch.inference_mode()
def is_greedy(plain, prompt: list[int], answer: list[int]) -> bool:
    """Whether plain transformers, reading prompt and answer, would have chosen each token, up to float32 noise."""
    tokens = torch.tensor([prompt + answer[:-1]])
    logits = plain(input_ids=tokens, use_cache=False, logits_to_keep=len(answer)).logits[0]  # [answer, vocab]
    best, chosen = logits.max(-1).values, logits[torch.arange(len(answer)), torch.tensor(answer)]
    return bool((best - chosen <= 1e-4 * best.abs().clamp(min=1.0)).all())


def test_cold_warm_and_plain_logits_agree(bench, tokenizer, plain):
    """Over a long handbook the first token's logits are the same cold in chunks, warm, and by plain transformers."""
    prompt = rendered(tokenizer, ("system", HANDBOOK[:6_000]), ("user", "Who keeps the light?"))
    assert len(prompt) > 1_000
    cold, warm = bench.ask(prompt, max_tokens=4), bench.ask(prompt, max_tokens=4)
    with torch.inference_mode():
        truth = plain(input_ids=torch.tensor([prompt]), use_cache=False, logits_to_keep=1).logits[0, -1]
    assert (cold.prefilled.read, warm.prefilled.read) == (0, len(prompt) - 1)
    assert close(bench.first_logits("r0"), truth)
    assert close(bench.first_logits("r1"), bench.first_logits("r0"))
    assert is_greedy(plain, prompt, cold.tokens) and is_greedy(plain, prompt, warm.tokens)


def test_a_conversation_of_six_turns_is_the_plain_models(bench, tokenizer, plain):
    """Each turn reads nearly the whole history, and says what plain transformers says without any cache of ours."""
    turns, before = [("system", HANDBOOK[:1_200])], 0
    for question in ("Who are you?", "Why?", "When?", "Where?", "How?", "And then?"):
        turns.append(("user", question))
        prompt = rendered(tokenizer, *turns)
        answer = bench.ask(prompt, max_tokens=12)
        assert is_greedy(plain, prompt, answer.tokens)
        assert answer.prefilled.read >= 0.8 * before
        before = len(prompt)
        turns.append(("assistant", tokenizer.decode(answer.tokens)))


async def test_eight_clients_on_two_prefixes(folder, tokenizer, plain):
    """Through the engine process, eight at once on two prefixes say what plain transformers says, and share them."""
    prompts = [
        rendered(tokenizer, ("system", HANDBOOK[1_000 * (i % 2) :][:2_000]), ("user", f"Name item {i}."))
        for i in range(8)
    ]
    client = EngineClient(
        EngineConfig(model="smollm2-135m", model_path=str(folder), kv_bytes=1 << 29, max_model_len=2_048)
    )

    async def ask(name: str, prompt: list[int]) -> tuple[list[int], int]:
        tokens, read = [], 0
        packed = np.asarray(prompt, dtype="<u4").tobytes()
        with client.open(Submit(id=name, tokens=packed, max_tokens=6, sampling=GREEDY)) as ticket:
            async for delta in ticket:
                tokens += delta.tokens
                read += delta.prefilled.read if delta.prefilled else 0
        return tokens, read

    await client.start()
    try:
        card = await client.ready()
        assert isinstance(card, ModelCard) and card.name == "smollm2-135m"
        for prompt in prompts[:2]:
            await ask(f"first-{len(prompt)}", prompt)
        answers = await asyncio.gather(*(ask(f"c{i}", prompt) for i, prompt in enumerate(prompts)))
    finally:
        await client.stop()
    for (tokens, read), prompt in zip(answers, prompts, strict=True):
        assert is_greedy(plain, prompt, tokens)
        assert read > 0.9 * (len(prompt) - 32)
