"""Agents of twenty turns with tools: each turn reads the whole prompt of the turn before it.

The rule, exactly: what was kept of the earlier prompt is its whole blocks, from its beginning to the opening of the
answer, which the history repeats; of the answer, what comes back as it was generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.e2e.answers import Answers, anthropic_sdk, openai_sdk
from tests.e2e.conftest import Server, StartServer
from tests.e2e.talk import ANTHROPIC_TOOLS, CHAT_TOOLS, RESPONSES_TOOLS, cached, calls_of, whole_blocks
from tests.tiny_model import save_tiny_model

TURNS = 20
SYSTEM = "You keep a lighthouse. Look before you answer."


@pytest.fixture(scope="module")
def roomy(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server whose model has room for a long conversation."""
    model = save_tiny_model(tmp_path_factory.mktemp("roomy") / "roomy-llama", window=8192)
    return start_server("--kv-bytes", "16MiB", model=model)


@pytest.fixture
def openai_agent(roomy: Server, answers: Answers) -> Iterator[OpenAI]:
    """OpenAI's SDK at that server."""
    with openai_sdk(roomy.url, answers) as client:
        yield client


@pytest.fixture
def anthropic_agent(roomy: Server, answers: Answers) -> Iterator[Anthropic]:
    """Anthropic's SDK at that server."""
    with anthropic_sdk(roomy.url, answers) as client:
        yield client


def arguments(turn: int) -> dict[str, Any]:
    """What a turn's call asks for."""
    return {"side": ("north", "south")[turn % 2], "depth": turn % 10}


def result(turn: int) -> str:
    """What a turn's call gives back."""
    return f"Ship {turn} passes, {turn * 37 % 11} fathoms."


def test_a_chat_agent(openai_agent: OpenAI, roomy: Server, answers: Answers):
    """Calls, results and questions by chat completions."""
    talk: list[Any] = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": "Begin the watch."}]
    before = 0
    for turn in range(TURNS):
        answer = openai_agent.chat.completions.create(
            model=roomy.model, messages=talk, tools=CHAT_TOOLS, max_tokens=4, temperature=0
        )
        assert cached(answer) >= whole_blocks(before)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > before
        before = answer.usage.prompt_tokens
        call = {"name": "look", "arguments": json.dumps(arguments(turn))}
        talk += [
            {
                "role": "assistant",
                "content": f"Turn {turn}.",
                "tool_calls": [{"id": f"c{turn}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"c{turn}", "content": result(turn)},
            {"role": "user", "content": f"And at {turn}?"},
        ]
    assert answers.checked == {"/v1/chat/completions": TURNS}


def test_a_chat_agent_that_streams_its_own_calls(openai_agent: OpenAI, roomy: Server):
    """The model's own forced calls go back as the SDK read them from the stream."""
    talk: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Begin the night watch."}]
    before = 0
    for turn in range(TURNS):
        with openai_agent.chat.completions.stream(
            model=roomy.model,
            messages=talk,
            tools=CHAT_TOOLS,
            tool_choice={"type": "function", "function": {"name": "wait"}},
            parallel_tool_calls=False,
            max_completion_tokens=400,
            seed=turn,
            stream_options={"include_usage": True},
        ) as stream:
            answer = stream.get_final_completion()
        assert cached(answer) >= whole_blocks(before)
        assert answer.usage is not None
        before = answer.usage.prompt_tokens
        (call,) = calls_of(answer.choices[0].message)
        talk += [
            {
                "role": "assistant",
                "content": answer.choices[0].message.content,
                "tool_calls": [call.model_dump(include={"id": True, "type": True, "function": {"name", "arguments"}})],
            },
            {"role": "tool", "tool_call_id": call.id, "content": result(turn)},
            {"role": "user", "content": f"And at {turn}?"},
        ]


def test_a_messages_agent(anthropic_agent: Anthropic, roomy: Server, answers: Answers):
    """Calls, results and questions by Anthropic's messages, the mark moving along as its agents do."""
    talk: list[Any] = [{"role": "user", "content": "Begin the dog watch."}]
    before = 0
    for turn in range(TURNS):
        usage = anthropic_agent.messages.create(
            model=roomy.model,
            system=SYSTEM,
            messages=talk,
            tools=ANTHROPIC_TOOLS,
            cache_control={"type": "ephemeral"},
            max_tokens=4,
            extra_body={"temperature": 0},
        ).usage
        read, created = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        assert read >= whole_blocks(before)
        assert created > 0
        assert usage.input_tokens < 32  # what follows the mark: the end of its block, and the answer's opening
        before = usage.input_tokens + created + read
        talk += [
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": f"Turn {turn}."},
                    {"type": "tool_use", "id": f"t{turn}", "name": "look", "input": arguments(turn)},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": f"t{turn}", "content": result(turn)},
                    {"type": "text", "text": f"And at {turn}?"},
                ],
            },
        ]
    assert answers.checked == {"/v1/messages": TURNS}


def test_a_responses_agent(openai_agent: OpenAI, roomy: Server, answers: Answers):
    """The model's own forced calls, each turn going on from the response before it."""
    earlier: str | None = None
    items: list[Any] = [{"role": "user", "content": "Begin the middle watch."}]
    before = 0
    for turn in range(TURNS):
        answer = openai_agent.responses.create(
            model=roomy.model,
            instructions=SYSTEM,
            input=items,
            tools=RESPONSES_TOOLS,
            tool_choice={"type": "function", "name": "wait"},
            parallel_tool_calls=False,
            max_output_tokens=400,
            temperature=0,
            previous_response_id=earlier,
        )
        assert answer.usage is not None
        assert answer.usage.input_tokens_details.cached_tokens >= whole_blocks(before)
        before, earlier = answer.usage.input_tokens, answer.id
        (call,) = answer.output
        assert call.type == "function_call"
        items = [
            {"type": "function_call_output", "call_id": call.call_id, "output": result(turn)},
            {"role": "user", "content": f"And at {turn}?"},
        ]
    assert answers.checked == {"/v1/responses": TURNS}
