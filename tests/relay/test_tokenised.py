"""Routing by the tokens that an upstream sees, where its tokenizer is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.api.relay_tokens import BLOCK_TOKENS, Tokenised
from gateway.errors import ConfigError
from gateway.prompt import Renderer
from gateway.relay.call import Call, call_of
from gateway.relay.upstream import Endpoint, Upstream
from tests.tiny_model import save_tiny_tokenizer

SECRET = b"s" * 32
LONG = "The ferry is kept by Jo, who rows at noon. " * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer with a chat template."""
    save_tiny_tokenizer(tmp_path)
    return tmp_path


def upstream(tokenizer: Path | None) -> Upstream:
    """One that serves the model `m`."""
    named = None if tokenizer is None else str(tokenizer)
    return Upstream(name="a", base_url="http://127.0.0.1:9/v1", models=("m",), tokenizer=named)


def call(endpoint: Endpoint, tenant: str = "default", **fields: Any) -> Call:
    """A request for that model."""
    body = json.dumps({"model": "m", **fields}).encode()
    return call_of(endpoint, body, call_id="1", tenant=tenant, key=None, headers={})


def chat(question: str, **extra: Any) -> dict[str, Any]:
    """A conversation over a long text."""
    return {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": question}], **extra}


async def test_tokens_are_those_of_the_upstream(folder: Path) -> None:
    """The chain has a piece for each block of the rendered prompt, and the last end is its length in tokens."""
    tokenised = Tokenised.load([upstream(folder)])
    found = await tokenised.prefix(call("chat", **chat("Who?")), SECRET)
    assert found is not None
    path, ends = found
    renderer = Renderer.load(folder)
    from gateway.api import openai_chat

    asked = openai_chat.ask_of(openai_chat.parse(call("chat", **chat("Who?")).body), "x")
    tokens = len(await renderer.prompt(asked))
    assert ends == [*range(BLOCK_TOKENS, tokens, BLOCK_TOKENS), tokens]
    assert len(path) == 8 * len(ends)
    renderer.close()
    tokenised.close()


async def test_apis_share_a_prefix(folder: Path) -> None:
    """The same conversation through two APIs, spelled differently, is the same beginning; another tenant's is not."""
    tokenised = Tokenised.load([upstream(folder)])
    said = [{"role": "user", "content": "Who?"}]
    one = await tokenised.prefix(call("chat", **chat("Who?", temperature=0)), SECRET)
    other = await tokenised.prefix(call("messages", system=LONG, messages=said, max_tokens=5), SECRET)
    foreign = await tokenised.prefix(call("chat", tenant="b", **chat("Who?")), SECRET)
    assert one == other
    assert one is not None and foreign is not None
    assert one[0][:8] != foreign[0][:8]
    tokenised.close()


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("chat", {"messages": "no list"}),
        ("chat", {}),
        ("count_tokens", {"messages": []}),
        ("input_tokens", {"input": "x"}),
    ],
)
async def test_what_cannot_be_read_goes_by_its_bytes(folder: Path, endpoint: Endpoint, fields: dict[str, Any]) -> None:
    """A body that this gateway cannot render is no error here."""
    tokenised = Tokenised.load([upstream(folder)])
    assert await tokenised.prefix(call(endpoint, **fields), SECRET) is None
    tokenised.close()


async def test_without_a_tokenizer_bytes_do() -> None:
    """Nothing is rendered for a model whose upstreams name no tokenizer."""
    assert await Tokenised.load([upstream(None)]).prefix(call("chat", **chat("Who?")), SECRET) is None


def test_a_folder_that_holds_none_is_refused_by_name(tmp_path: Path) -> None:
    """The start-up says which upstream names what is no tokenizer."""
    with pytest.raises(ConfigError, match=r"\[\[upstreams\]\] a tokenizer: "):
        Tokenised.load([upstream(tmp_path / "nothing")])
