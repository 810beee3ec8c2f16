"""What can go wrong in the engine, split by whose fault it is.

EngineError
├── RequestRefused          the caller's: the request can never be served
│   └── PromptTooLong
├── Overloaded              nobody's: the queue is full just now, try again
├── QueueTimeout            nobody's: no room came in time, try again
├── ModelRefused            the operator's: this model or machine cannot be served right
└── EngineUnavailable       ours: the engine process is gone or starting again
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of every error that this package raises on purpose."""


class RequestRefused(EngineError):
    """The request can never be served; `field` names the part that is wrong."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(RequestRefused):
    """Prompt and answer together exceed the model's window. Refused, never cut."""

    @classmethod
    def of(cls, *, prompt: int, answer: int, limit: int) -> PromptTooLong:
        """Say it in numbers of tokens, in the words that clients of hosted APIs know."""
        return cls(
            f"This model's maximum context length is {limit} tokens. However, you requested {prompt + answer} tokens "
            f"({prompt} in the messages, {answer} in the completion).",
            field="messages",
        )


class Overloaded(EngineError):
    """The queue is full; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueTimeout(EngineError):
    """No room came within the queue's time; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelRefused(EngineError):
    """The model cannot be served right; the message says why and what to do."""


class EngineUnavailable(EngineError):
    """The engine process died or is starting; `retry_after_s` says when to come back."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line; its kind, where it says nothing."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
