"""The endpoints that take a body, as tests of all of them at once speak to them."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.scripted import MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"

ANSWERING = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
EVERY = (*ANSWERING, INPUT_TOKENS, COUNT)
TALKING = (CHAT, RESPONSES, INPUT_TOKENS, MESSAGES, COUNT)


def body(path: str, content: Any = "hello", **fields: Any) -> dict[str, Any]:
    """A body that asks for an answer to `content`, or counts it."""
    said: dict[str, Any]
    if path == COMPLETIONS:
        said = {"prompt": content}
    elif path in (RESPONSES, INPUT_TOKENS):
        said = {"input": [{"role": "user", "content": content}]}
    else:
        said = {"messages": [{"role": "user", "content": content}]}
    if path == MESSAGES:
        said["max_tokens"] = 8
    return {"model": MODEL, **said, **fields}


def is_anthropic(path: str) -> bool:
    """Whether an address is one of Anthropic's."""
    return path.startswith(MESSAGES)


async def refusal(response: Any, path: str) -> tuple[int, str]:
    """Status and message of a refusal, which is in the envelope of its API; OpenAI's begins with its `param`."""
    assert response.content_type == "application/json"
    answer = json.loads(await response.text())
    if is_anthropic(path):
        assert answer.keys() == {"type", "error", "request_id"}
        assert (answer["type"], answer["error"].keys()) == ("error", {"type", "message"})
        return response.status, answer["error"]["message"]
    assert answer.keys() == {"error"}
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    param = answer["error"]["param"]
    return response.status, f"{param}: {answer['error']['message']}" if param else answer["error"]["message"]


def said_by(path: str, answer: dict[str, Any]) -> str:
    """The text of a whole answer."""
    if path == CHAT:
        text = answer["choices"][0]["message"]["content"]
    elif path == COMPLETIONS:
        text = answer["choices"][0]["text"]
    elif path == RESPONSES:
        text = "".join(part["text"] for item in answer["output"] for part in item["content"])
    else:
        text = "".join(block["text"] for block in answer["content"])
    assert isinstance(text, str)
    return text


def pieces_of(path: str, stream: str) -> list[str]:
    """The pieces of text in a stream, in order."""
    lines = [line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if path == CHAT:
        return [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
    if path == COMPLETIONS:
        return [choice["text"] for event in events for choice in event["choices"]]
    if path == RESPONSES:
        return [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    return [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
