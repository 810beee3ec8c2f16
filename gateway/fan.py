"""Several requests to one backend, read as one stream: the choices of an answer.

Owns the open tickets. Rule: leaving the block frees every ticket that is still open, and `leave` frees one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from engine.errors import EngineUnavailable
from engine.messages import Delta, Submit
from gateway.backends import Backend


class Fan:
    """Opens one ticket for each of `submits`, the first one first."""

    def __init__(self, backend: Backend, submits: Sequence[Submit]) -> None:
        """Open nothing yet."""
        self._backend = backend
        self._submits = submits
        self._tickets: list[ExitStack] = []
        self._asked: dict[int, asyncio.Task[Delta]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for task in self._asked.values():
            task.cancel()
        for ticket in self._tickets:
            ticket.close()

    def leave(self, choice: int) -> None:
        """Want no more of one choice."""
        task = self._asked.pop(choice, None)
        if task is not None:
            task.cancel()
        self._tickets[choice].close()

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta]]:
        """Yield `(choice, delta)` until every choice is finished or left. Raises what the backend raises."""
        sources = [self._open(submit) for submit in self._submits]
        if len(sources) == 1:  # the common case needs no tasks
            async for delta in sources[0]:
                yield 0, delta
                if delta.finished is not None:
                    return
            raise EngineUnavailable("The engine ended the answer without a last word.")
        for choice, source in enumerate(sources):
            self._ask(choice, source)
        while self._asked:
            await asyncio.wait(self._asked.values(), return_when=asyncio.FIRST_COMPLETED)
            for choice in [choice for choice, task in self._asked.items() if task.done()]:
                task = self._asked.pop(choice, None)
                if task is None:  # left while another choice's delta was looked at
                    continue
                delta = task.result()
                if delta.finished is None:
                    self._ask(choice, sources[choice])
                yield choice, delta

    def _open(self, submit: Submit) -> AsyncIterator[Delta]:
        ticket = ExitStack()
        self._tickets.append(ticket)
        return ticket.enter_context(self._backend.open(submit))

    def _ask(self, choice: int, source: AsyncIterator[Delta]) -> None:
        self._asked[choice] = asyncio.ensure_future(_next(source))


async def _next(source: AsyncIterator[Delta]) -> Delta:
    async for delta in source:
        return delta
    raise EngineUnavailable("The engine ended the answer without a last word.")
