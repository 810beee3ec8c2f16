"""One conversation is one prefix, whichever API carries it, and one tenant's alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.e2e.answers import Answers, anthropic_sdk, openai_sdk
from tests.e2e.conftest import Server, StartServer
from tests.e2e.talk import CHAT_TOOLS, cached, extension, handbook, messages, whole_blocks

BILLING = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={}; "


class Apis:
    """The same conversation through each API: prompt and read tokens."""

    def __init__(self, server: Server, openai_client: OpenAI, anthropic_client: Anthropic) -> None:
        """Ask this server."""
        self._model = server.model
        self._openai = openai_client
        self._anthropic = anthropic_client

    def chat(self, system: str, turns: Any) -> tuple[int, int]:
        """As a chat completion."""
        talk = [{"role": "system", "content": system}, *turns]
        usage = self._openai.chat.completions.create(model=self._model, messages=talk, max_tokens=2).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0

    def responses(self, system: str, turns: Any) -> tuple[int, int]:
        """As a response."""
        answer = self._openai.responses.create(model=self._model, instructions=system, input=turns, max_output_tokens=2)
        assert answer.usage is not None
        return answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens

    def messages(self, system: str, turns: Any) -> tuple[int, int]:
        """As a message."""
        usage = self._anthropic.messages.create(model=self._model, system=system, messages=turns, max_tokens=2).usage
        read, created = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        return usage.input_tokens + created + read, read


@pytest.mark.parametrize("order", ["chat responses messages", "messages chat responses", "responses messages chat"])
def test_each_api_reads_what_another_wrote(
    server: Server, openai_client: OpenAI, anthropic_client: Anthropic, order: str
):
    """Equal conversations are equal prompts, so that each API reads every whole block that the one before it wrote."""
    apis = Apis(server, openai_client, anthropic_client)
    turns: list[Any] = [{"role": "user", "content": f"Which, {order}?"}]
    before = 0
    for name in order.split():
        prompt, read = getattr(apis, name)(handbook(order, 3), turns)
        assert read >= whole_blocks(before)
        assert getattr(apis, name)(handbook(order, 3), turns)[0] == prompt
        turns = [*turns, {"role": "assistant", "content": f"By {name}."}, {"role": "user", "content": "And then?"}]
        before = prompt


def test_a_tools_spelling_does_not_count_and_its_place_does(openai_client: OpenAI, server: Server):
    """Other key order, other spelling of numbers and of letters hit; the reversed list of tools does not."""
    depth = {"type": "integer", "minimum": 1, "description": "t\u00eate"}
    respelled = {"description": "t\u00eate", "minimum": 1.0, "type": "integer"}
    one, two = ([function("dive", {"depth": form}), CHAT_TOOLS[1]] for form in (depth, respelled))
    two[0] = {"function": dict(reversed(two[0]["function"].items())), "type": "function"}
    ask: Any = {"model": server.model, "messages": messages("Spelling.", "How deep?"), "max_tokens": 2}
    first = openai_client.chat.completions.create(**ask, tools=one)
    second = openai_client.chat.completions.create(**ask, tools=two)
    third = openai_client.chat.completions.create(**ask, tools=one[::-1])
    assert first.usage is not None
    assert cached(second) >= whole_blocks(first.usage.prompt_tokens)
    assert cached(third) < whole_blocks(first.usage.prompt_tokens) - 100


def function(name: str, properties: Any) -> dict[str, Any]:
    """A function tool."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_the_spelling_of_a_calls_arguments_does_not_count(openai_client: OpenAI, server: Server):
    """A call in the history hits though a client writes its arguments in another order and layout."""
    prompts = []
    for spelled in ('{"side":"north","depth":3}', '{ "depth": 3.0,\n "side": "north" }'):
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": spelled}}
        talk: Any = [
            *messages("Arguments.", "Look!"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": handbook("arguments", 2)},
        ]
        prompts.append(openai_client.chat.completions.create(model=server.model, messages=talk, max_tokens=2))
    sizes = [answer.usage.prompt_tokens for answer in prompts if answer.usage]
    assert sizes[0] == sizes[1]
    assert cached(prompts[1]) >= whole_blocks(sizes[0])


def test_the_billing_line_of_claude_code_breaks_no_prefix(anthropic_client: Anthropic, server: Server):
    """Its nonce is another in each request; the prompt is the same, and the answer names the rule."""
    prompts = []
    for nonce in ("a1b2c", "0f9e8"):
        system: Any = [
            {"type": "text", "text": BILLING.format(nonce)},
            {"type": "text", "text": handbook("billing", 3), "cache_control": {"type": "ephemeral"}},
        ]
        answer = anthropic_client.messages.create(
            model=server.model, system=system, messages=[{"role": "user", "content": "Go."}], max_tokens=2
        )
        assert extension(answer)["normalised"] == ["claude-code-billing"]
        usage = answer.usage
        written, read = usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
        prompts.append((usage.input_tokens + written + read, read))
    (size, _), (again, read) = prompts
    assert again == size
    assert read >= whole_blocks(size)


def test_two_tenants_never_share(start_server: StartServer, tmp_path: Path, answers: Answers):
    """Whichever API a key comes by, its tenant reads its own prefixes and no other's; no key is a 401."""
    file = tmp_path / "keepwarm.toml"
    digests = {key: hashlib.sha256(key.encode()).hexdigest() for key in ("red", "blue")}
    file.write_text("".join(f'[[keys]]\nid = "{k}"\nsha256 = "{d}"\ntenant = "{k}"\n' for k, d in digests.items()))
    server = start_server("--kv-bytes", "4MiB", "--config", str(file))
    turns = [{"role": "user", "content": "Mine?"}]
    reads = []
    for key, name in (("red", "chat"), ("blue", "messages"), ("blue", "responses"), ("red", "messages")):
        with openai_sdk(server.url, answers, key) as one, anthropic_sdk(server.url, answers, key) as other:
            prompt, read = getattr(Apis(server, one, other), name)(handbook("tenants", 3), turns)
            reads.append(read >= whole_blocks(prompt))
            assert read == 0 or reads[-1]
    assert reads == [False, False, True, True]
    with openai_sdk(server.url, answers, "green") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(model=server.model, messages=messages("x"))
