"""One conversation with tools, and requests that differ from it in a single field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.ask import Ask, Tool, ToolCall, Turn
from gateway.prompt import Renderer
from tests.gateway.templates import STYLES

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where."}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
WEATHER = Tool(name="get_weather", description="Tell the weather.", parameters=SCHEMA)
CLOCK = Tool(name="get_time", description="Tell the time.", parameters={"type": "object", "properties": {}})
CALL = ToolCall(id="call_1", name="get_weather", arguments={"city": "Rome", "days": 2})
TURNS = (
    Turn(role="system", text="Be brief."),
    Turn(role="user", text="What is it like in Rome?"),
    Turn(role="assistant", text="", tool_calls=(CALL,)),
    Turn(role="tool", text='"Sunny"', tool_call_id="call_1"),
    Turn(role="assistant", text="It is sunny."),
    Turn(role="user", text="And in Oslo?"),
)
ASK = Ask(id="a", model="m", turns=TURNS, tools=(WEATHER, CLOCK))

styles = pytest.mark.parametrize("style", STYLES, ids=repr)


def ids(renderer: Renderer, ask: Ask = ASK) -> list[int]:
    """Token ids of a request."""
    found: list[int] = np.frombuffer(renderer.made(ask).tokens, dtype="<u4").tolist()
    return found


def text(renderer: Renderer, ask: Ask = ASK) -> str:
    """A prompt as text, control tokens included."""
    return spelt(renderer, ids(renderer, ask))


def spelt(renderer: Renderer, tokens: list[int]) -> str:
    """Tokens as text, control tokens included."""
    decoded: str = renderer._encoder.tokenizer.decode(tokens, skip_special_tokens=False)
    return decoded


def turn(place: int, **fields: Any) -> Ask:
    """The request with one turn changed."""
    return replace(ASK, turns=(*TURNS[:place], replace(TURNS[place], **fields), *TURNS[place + 1 :]))


def call(**fields: Any) -> Ask:
    """The request with its call changed."""
    return turn(2, tool_calls=(replace(CALL, **fields),))


def tool(**fields: Any) -> Ask:
    """The request with its first tool changed."""
    return replace(ASK, tools=(replace(WEATHER, **fields), CLOCK))


def nested(depth: int) -> dict[str, Any]:
    """An object so deep."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"items": value}
    return value
