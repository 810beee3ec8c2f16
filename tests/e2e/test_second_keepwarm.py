"""A real engine as upstream: a second Keepwarm behind a first one, in all four APIs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import BadRequestError, NotFoundError, OpenAI

from tests.e2e.answers import Answers, anthropic_sdk, openai_sdk
from tests.e2e.conftest import Server, StartServer, free_port, until
from tests.e2e.talk import handbook

MODEL = "behind"
ALL = '["chat", "completions", "responses", "input_tokens", "messages", "count_tokens"]'


@pytest.fixture(scope="module")
def second(start_server: StartServer) -> Server:
    """The one behind, which has the engine that answers."""
    return start_server("--kv-bytes", "8MiB")


@pytest.fixture(scope="module")
def first(
    start_server: StartServer, second: Server, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """The one in front; its own engine serves another model."""
    folder = tmp_path_factory.mktemp("front")
    shutil.copytree(tiny_model, folder / "front-model")
    config = folder / "keepwarm.toml"
    config.write_text(
        f'[[upstreams]]\nname = "second"\nkind = "generic"\nbase_url = "{second.url}/v1"\n'
        f'models = ["{second.model}"]\napis = {ALL}\n'
    )
    return start_server("--kv-bytes", "8MiB", "--config", str(config), model=folder / "front-model")


@pytest.fixture
def openai(first: Server, answers: Answers) -> Iterator[OpenAI]:
    """OpenAI's SDK at the one in front."""
    with openai_sdk(first.url, answers) as client:
        yield client


@pytest.fixture
def anthropic(first: Server, answers: Answers) -> Iterator[Anthropic]:
    """Anthropic's SDK at the one in front."""
    with anthropic_sdk(first.url, answers) as client:
        yield client


def told(server: Server) -> dict[str, Any]:
    """The newest exchange as a server's admin port shows it."""
    with urllib.request.urlopen(f"{server.admin_url}/admin/v1/requests?limit=1", timeout=10) as response:
        (newest,) = json.load(response)["requests"]
    assert isinstance(newest, dict)
    return newest


def check(first: Server, second: Server, prompt: int, cached: int) -> None:
    """The client, the gateway and the engine behind it tell the same of a warm prompt."""
    assert cached > 0
    front, behind = told(first), told(second)
    assert (front["upstream"], front["outcome"], front["model"]) == ("second", "finished", second.model)
    for what in ("prompt", "read", "api", "streamed", "output", "status"):
        assert front[what] == behind[what]
    assert (front["prompt"], front["read"]) == (prompt, cached)
    assert front["first_token_s"] is None or front["first_token_s"] <= front["seconds"]


@pytest.mark.parametrize("streamed", [False, True])
def test_chat(first: Server, second: Server, openai: OpenAI, streamed: bool) -> None:
    """A warm chat completion shows its cached tokens through both."""
    ask: Any = {"model": second.model, "max_tokens": 4, "temperature": 0}
    ask["messages"] = [{"role": "user", "content": handbook(f"chat {streamed}", 2)}]
    openai.chat.completions.create(**ask)
    if streamed:
        chunks = list(openai.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        usage = chunks[-1].usage
    else:
        usage = openai.chat.completions.create(**ask).usage
    check(first, second, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)


def test_usage_that_nobody_asked_for_is_counted_and_hidden(first: Server, second: Server, openai: OpenAI) -> None:
    """A stream without usage stays without it, and the gateway knows what it cost."""
    ask: Any = {"model": second.model, "max_tokens": 4, "messages": [{"role": "user", "content": handbook("h", 2)}]}
    whole = openai.chat.completions.create(**ask)
    chunks = list(openai.chat.completions.create(**ask, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    check(first, second, whole.usage.prompt_tokens, told(second)["read"])


@pytest.mark.parametrize("streamed", [False, True])
def test_completions(first: Server, second: Server, openai: OpenAI, streamed: bool) -> None:
    """A warm completion shows its cached tokens through both."""
    ask: Any = {"model": second.model, "max_tokens": 4, "prompt": handbook(f"text {streamed}", 2)}
    openai.completions.create(**ask)
    if streamed:
        chunks = list(openai.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        usage = chunks[-1].usage
    else:
        usage = openai.completions.create(**ask).usage
    check(first, second, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)


@pytest.mark.parametrize("streamed", [False, True])
def test_responses(first: Server, second: Server, openai: OpenAI, streamed: bool) -> None:
    """A warm response shows its cached tokens through both."""
    ask: Any = {"model": second.model, "max_output_tokens": 16, "input": handbook(f"response {streamed}", 2)}
    openai.responses.create(**ask)
    if streamed:
        usage = list(openai.responses.create(**ask, stream=True))[-1].response.usage
    else:
        usage = openai.responses.create(**ask).usage
    check(first, second, usage.input_tokens, usage.input_tokens_details.cached_tokens)


@pytest.mark.parametrize("streamed", [False, True])
def test_messages(first: Server, second: Server, anthropic: Anthropic, streamed: bool) -> None:
    """A warm message shows what was read through both, and a stream's last word agrees with its first."""
    mark = {"type": "ephemeral"}
    system = [{"type": "text", "text": handbook(f"message {streamed}", 2), "cache_control": mark}]
    ask: Any = {"model": second.model, "max_tokens": 4, "system": system}
    ask["messages"] = [{"role": "user", "content": "Why?"}]
    anthropic.messages.create(**ask)
    if streamed:
        with anthropic.messages.stream(**ask) as stream:
            usage = stream.get_final_message().usage
    else:
        usage = anthropic.messages.create(**ask).usage
    written, read = usage.cache_creation_input_tokens, usage.cache_read_input_tokens
    assert written is not None and read is not None
    check(first, second, usage.input_tokens + written + read, read)


def test_refusals_keep_their_meaning(first: Server, second: Server, openai: OpenAI) -> None:
    """What the one behind refuses comes through as it was said; what nobody serves is refused in front."""
    ask: Any = {"model": second.model, "messages": [{"role": "user", "content": "Why?"}]}
    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(**ask, temperature=9)
    with openai_sdk(second.url, Answers()) as direct, pytest.raises(BadRequestError) as straight:
        direct.chat.completions.create(**ask, temperature=9)
    assert refused.value.body == straight.value.body
    assert (told(first)["outcome"], told(first)["status"]) == ("refused", 400)
    with pytest.raises(NotFoundError):
        openai.chat.completions.create(**{**ask, "model": "nobody's"})


def test_its_own_engine_answers_for_its_own_model(first: Server, openai: OpenAI) -> None:
    """Beside upstreams the engine in front serves what it is for."""
    openai.chat.completions.create(model=first.model, max_tokens=4, messages=[{"role": "user", "content": "Why?"}])
    assert (told(first)["upstream"], told(first)["model"]) == ("bundled", first.model)


@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("llama_cpp.server") is None,
    reason="llama.cpp's server is not installed: pip install 'llama-cpp-python[server]'",
)
def test_llama_cpp(start_server: StartServer, tiny_model: Path, tmp_path: Path) -> None:
    """llama.cpp's own server as upstream: a chat completion, whole and streamed, and what it says it cost."""
    gguf = Path(str(tiny_model) + ".gguf")
    if not gguf.exists():
        pytest.skip(f"there is no model for it: convert the tiny one into {gguf}")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "llama_cpp.server",
        "--model",
        str(gguf),
        "--model_alias",
        MODEL,
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command)
    try:
        until(lambda: _answers(f"http://127.0.0.1:{port}/v1/models"))
        config = tmp_path / "keepwarm.toml"
        config.write_text(
            f'[[upstreams]]\nname = "cpp"\nkind = "llamacpp"\nmodels = ["{MODEL}"]\n'
            f'base_url = "http://127.0.0.1:{port}/v1"\n'
        )
        front = start_server("--kv-bytes", "8MiB", "--config", str(config), home=tmp_path)
        ask: Any = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Why?"}]}
        with OpenAI(base_url=f"{front.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(**ask)
            assert told(front)["prompt"] == whole.usage.prompt_tokens
            assert list(client.chat.completions.create(**ask, stream=True))[-1].choices[0].finish_reason == "length"
    finally:
        process.terminate()
        process.wait(timeout=20)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
