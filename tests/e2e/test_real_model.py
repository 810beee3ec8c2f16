"""The default model, which knows no tools by itself: a forced call obeys its schema through both APIs."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from gateway.config import cache_dir, read_settings
from tests.e2e.answers import Answers, anthropic_sdk, openai_sdk
from tests.e2e.conftest import Server, StartServer
from tests.e2e.talk import calls_of

pytestmark = pytest.mark.timeout(400)

QUESTION: Any = [{"role": "user", "content": "What will the weather be in Oslo for the next 3 days, in celsius?"}]
WEATHER: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOLD = {"name": "weather", "description": "Tell the weather."}
CHAT_TOOLS: Any = [{"type": "function", "function": {**TOLD, "parameters": WEATHER}}]
ANTHROPIC_TOOLS: Any = [{**TOLD, "input_schema": WEATHER}]


@pytest.fixture(scope="module")
def real(start_server: StartServer) -> Server:
    """A server on the default model, converted once into the machine's cache."""
    cache = cache_dir(read_settings({}, os.environ), os.environ)
    return start_server("--kv-bytes", "384MiB", model="smollm2-135m", patience_s=300, KEEPWARM_CACHE=str(cache))


def obeys(given: Any) -> bool:
    """Whether arguments are what the schema allows."""
    return (
        sorted(given) == ["city", "days", "unit"]
        and isinstance(given["city"], str)
        and len(given["city"]) <= 20
        and given["days"] in range(1, 8)
        and given["unit"] in WEATHER["properties"]["unit"]["enum"]
    )


def test_a_forced_call_obeys_its_schema_through_both_apis(real: Server, answers: Answers):
    """At temperature 0 both APIs call the tool alike, with arguments that the schema allows, on one prefix."""
    with openai_sdk(real.url, answers) as openai_client, anthropic_sdk(real.url, answers) as anthropic_client:
        chat = openai_client.chat.completions.create(
            model=real.model,
            messages=QUESTION,
            tools=CHAT_TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=200,
            temperature=0,
        )
        message = anthropic_client.messages.create(
            model=real.model,
            messages=QUESTION,
            tools=ANTHROPIC_TOOLS,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            max_tokens=200,
            extra_body={"temperature": 0},
        )
    (called,) = calls_of(chat.choices[0].message)
    (block,) = message.content
    assert block.type == "tool_use"
    assert called.function.name == block.name == "weather"
    assert obeys(json.loads(called.function.arguments))
    assert block.input == json.loads(called.function.arguments)
    assert (chat.choices[0].finish_reason, message.stop_reason) == ("tool_calls", "tool_use")
    assert (message.usage.cache_read_input_tokens or 0) > 100
