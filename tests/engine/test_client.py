"""The engine as its own process: it answers, it stops for clients that leave, and its death is told and healed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal

import numpy as np
import pytest
from msgspec.structs import replace

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineUnavailable, ModelRefused, Overloaded, PromptTooLong, RequestRefused
from engine.messages import Sampling, Submit
from tests.engine.workbench import GREEDY, plain_answer, tiny_module
from tests.tiny_model import save_tiny_model, tiny_tokenizer

PROMPT = list(range(47))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny random model on disk."""
    path = tmp_path_factory.mktemp("model")
    tiny_module().save_pretrained(path)
    return path


@pytest.fixture
async def client(folder):
    """A live engine process, stopped afterwards."""
    client = EngineClient(EngineConfig(model="tiny", model_path=str(folder), kv_bytes=1 << 22, threads=1))
    await client.start()
    await client.ready()
    yield client
    await client.stop()


def submit(request_id: str, *, max_tokens: int = 4, sampling: Sampling = GREEDY) -> Submit:
    """Make a request for the one prompt."""
    tokens = np.asarray(PROMPT, dtype="<u4").tobytes()
    return Submit(id=request_id, tokens=tokens, max_tokens=max_tokens, sampling=sampling)


async def answer(client: EngineClient, request: Submit) -> tuple[list[int], int]:
    """Return the answer's tokens and how many prompt tokens were read."""
    tokens: list[int] = []
    read = 0
    with client.open(request) as ticket:
        async for delta in ticket:
            tokens += delta.tokens
            read = delta.prefilled.read if delta.prefilled else read
    return tokens, read


async def test_the_second_request_reads_what_the_first_computed(client):
    """Through the process border the answers are the plain model's, and the second one is warm."""
    truth = plain_answer(tiny_module(), PROMPT, 4)
    assert await answer(client, submit("a")) == (truth, 0)
    assert await answer(client, submit("b")) == (truth, 46)
    stats = await client.stats()
    assert (stats.requests_finished_total, stats.read_tokens_total) == (2, 46)


async def test_grammars_bias_and_log_probabilities_cross_the_border(tmp_path):
    """In a live process a confined answer follows its grammar beside a forced one, and a bad one names its field."""
    config = EngineConfig(model="tiny", model_path=str(save_tiny_model(tmp_path)), kv_bytes=1 << 22, threads=1)
    client = EngineClient(config)
    await client.start()
    await client.ready()
    try:
        confined = replace(submit("confined", max_tokens=20), grammar="start: /[0-9]{4}/")
        forced = submit("forced", sampling=Sampling(temperature=0.0, logit_bias={99: 100.0}, logprobs=1))
        (digits, _), (same, _) = await asyncio.gather(answer(client, confined), answer(client, forced))
        assert re.fullmatch("[0-9]{4}", tiny_tokenizer().decode(digits))
        assert same == [99] * 4
        with client.open(replace(submit("scored", max_tokens=0), prompt_logprobs=1)) as ticket:
            (delta,) = [delta async for delta in ticket]
        assert delta.tokens == () and delta.finished.generated == 0
        assert [told and told.token for told in delta.prefilled.logprobs] == [None, *PROMPT[1:]]
        with pytest.raises(RequestRefused, match="Expected token") as refused:
            await answer(client, replace(submit("bad"), grammar="nothing"))
        assert refused.value.field == "response_format"
    finally:
        await client.stop()


async def test_leaving_the_block_stops_the_work(client):
    """A ticket left after its first delta is cancelled in the engine and frees its blocks."""
    with client.open(submit("long", max_tokens=400)) as ticket:
        await anext(ticket)
    while (stats := await client.stats()).requests_cancelled_total == 0:
        pass  # each question is a round trip, so the engine works in between
    assert (stats.running, stats.blocks_held) == (0, 0)


async def test_a_refusal_keeps_its_kind(client):
    """A prompt that is too long arrives as the error that it was."""
    with pytest.raises(PromptTooLong, match="maximum context length is 512"):
        await answer(client, submit("x", max_tokens=600))


async def test_a_dead_engine_fails_its_requests_and_comes_back(client):
    """Killed while decoding: the open request hears it, and a new process serves with an empty cache."""
    await answer(client, submit("warm"))
    with client.open(submit("victim", max_tokens=400)) as ticket:
        await anext(ticket)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="stopped while working"):
            async for _ in ticket:
                pass
    with pytest.raises(EngineUnavailable), client.open(submit("early")):
        pass
    await client.ready()
    assert client.restarts == 1
    assert await answer(client, submit("after")) == (plain_answer(tiny_module(), PROMPT, 4), 0)


async def test_a_model_that_cannot_be_served_is_refused_once(folder):
    """The reason arrives, and the process is not started over and over."""
    client = EngineClient(EngineConfig(model="tiny", model_path=str(folder), kv_bytes=10, threads=1))
    await client.start()
    with pytest.raises(ModelRefused, match="kv-bytes"):
        await client.ready()
    await client.stop()
    assert client.restarts == 0


async def test_weights_that_are_cut_off_are_refused_once(folder, tmp_path):
    """A truncated weight file is one clear refusal, not a restart after another."""
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    client = EngineClient(EngineConfig(model="tiny", model_path=str(broken), threads=1))
    await client.start()
    with pytest.raises(ModelRefused, match="no whole safetensors file"):
        await client.ready()
    await client.stop()
    assert client.restarts == 0


async def test_one_more_than_the_queue_holds_is_told_at_once(folder):
    """The refusal needs no word from the engine."""
    config = EngineConfig(
        model="tiny", model_path=str(folder), kv_bytes=1 << 22, threads=1, max_num_seqs=1, max_waiting=1
    )
    client = EngineClient(config)
    await client.start()
    await client.ready()
    with (
        client.open(submit("a", max_tokens=400)),
        client.open(submit("b", max_tokens=400)),
        pytest.raises(Overloaded),
        client.open(submit("c")),
    ):
        pass
    await client.stop()
