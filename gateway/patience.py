"""How long operators wait for the engine, which answers between two of its steps.

Knows no HTTP. Rule: who waits in vain is told so, and what may still come of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from engine.errors import EngineUnavailable

LOOK_S = 10.0  # for what only looks
CHANGE_S = 20.0  # for what changes something; below what the commands wait for an answer
ASK_AGAIN = "Ask again."

T = TypeVar("T")


class NoAnswer(EngineUnavailable):
    """The engine is there and has not answered in time; what it was asked for may still be done."""


async def in_time(answer: Awaitable[T], limit_s: float, *, otherwise: str = ASK_AGAIN) -> T:
    """Wait for the engine's answer. Raises NoAnswer when none came in time, with `otherwise` at its end."""
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError as error:
        raise NoAnswer(f"The engine has given no answer within {limit_s:g} s. {otherwise}") from error
