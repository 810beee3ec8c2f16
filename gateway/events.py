"""What an answer is made of, in order: `Began`, then for each choice texts and calls and one `Ended`, then `Done`.

No wire format: each API module shapes these in its own way, streamed or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.usage import Facts, PromptFacts

AnswerEnd = Literal["stop", "stop_string", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's spelling, its bytes, and the natural logarithm of its probability under the model itself."""

    token: str
    spelling: bytes
    logprob: float
    top: tuple[Logprob, ...] = ()  # the likeliest ones, likeliest first
    id: int = 0
    rank: int = 0  # 1 for the likeliest; 0 where it is not told


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt is processed: its facts stand. `prompt_logprobs` where asked for, NaN for the first token."""

    facts: PromptFacts
    prompt_logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """More of a choice's text. Empty only where `logprobs` are not."""

    text: str
    choice: int = 0
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A tool is called; its arguments follow. `index` counts the calls of one choice."""

    index: int
    id: str  # without any API's prefix
    name: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text; all pieces joined are one JSON object."""

    index: int
    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice is over. `stop` is the stop string that ended it."""

    reason: AnswerEnd
    choice: int = 0
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Every choice is over."""

    facts: Facts


Event = Began | Text | CallBegan | CallArguments | Ended | Done
