"""The client's half of the demo: send chat requests, read the streams, gather the facts.

Owns: the wire shapes it reads. Knows no terminal.
Rule: the cost of a request is what the last chunk says, except for the time to first token, which is measured here,
where a user waits for it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from gateway.demo.errors import DemoError
from gateway.demo.facts import Exchange
from gateway.demo.handbook import CONVERSATION, QUESTIONS, copy_of_handbook

ANSWER_TOKENS: Final = 24
CONNECT_S: Final = 5.0
SILENCE_S: Final = 120.0  # the longest wait for the next byte; a cold prompt takes seconds

Message = Mapping[str, str]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails


class _Timings(msgspec.Struct):
    queue_ms: float
    prefill_ms: float
    decode_ms: float


class _Projections(msgspec.Struct):
    done: int
    without_prefix_cache: int
    without_kv_cache: int


class _Extension(msgspec.Struct):
    computed_tokens: int
    timings: _Timings
    projections: _Projections


class _Error(msgspec.Struct):
    message: str


class _Chunk(msgspec.Struct):
    """One event of a stream; `usage` and `keepwarm` ride on the last one, `error` ends a stream that broke."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    keepwarm: _Extension | None = None
    error: _Error | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Client:
    """Speaks to one server. Use it inside `connected`."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._session = session
        self._url = url
        self._clock = clock

    async def model(self) -> str:
        """Return the name of the first model that the server offers."""
        try:
            async with self._session.get(f"{self._url}/v1/models") as response:
                await _refuse_errors(response)
                models = msgspec.json.decode(await response.read(), type=_Models).data
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"cannot reach {self._url}: {_reason(error)}") from error
        except msgspec.DecodeError as error:
            raise DemoError(f"{self._url} does not list its models as Keepwarm does: {error}") from error
        if not models:
            raise DemoError(f"{self._url} offers no model")
        return models[0].id

    async def ask(
        self, *, name: str, model: str, messages: Sequence[Message], max_tokens: int = ANSWER_TOKENS
    ) -> Exchange:
        """Send one request and read its stream to the end."""
        started = self._clock()
        first: float | None = None
        answer: list[str] = []
        finish_reason = ""
        last = _Chunk()
        try:
            async for chunk in self._stream(_request(model, messages, max_tokens)):
                if first is None and chunk.choices and _is_progress(chunk.choices[0]):
                    first = self._clock()
                for choice in chunk.choices:
                    answer.append(choice.delta.content or "")
                    finish_reason = choice.finish_reason or finish_reason
                last = chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"{self._url} broke off the request {name!r}: {_reason(error)}") from error
        if last.usage is None or last.keepwarm is None:
            raise DemoError(f"{self._url} does not say what was cached: is it a Keepwarm server?")
        return _facts(
            name=name,
            question=messages[-1]["content"],
            answer="".join(answer),
            finish_reason=finish_reason,
            first_token_ms=1000 * ((first or self._clock()) - started),
            usage=last.usage,
            extension=last.keepwarm,
        )

    async def _stream(self, body: Mapping[str, object]) -> AsyncIterator[_Chunk]:
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            await _refuse_errors(response)
            async for line in response.content:
                field, _, value = line.strip().partition(b":")
                if field != b"data" or value.strip() == b"[DONE]":
                    continue
                try:
                    chunk = msgspec.json.decode(value, type=_Chunk)
                except msgspec.DecodeError as error:
                    raise DemoError(f"{self._url} sent an event that is not of Keepwarm's shape: {error}") from error
                if chunk.error is not None:
                    raise DemoError(f"{self._url} failed while answering: {chunk.error.message}")
                yield chunk


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """Yield a client for the server at `url`; its connections close with the block."""
    patience = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S)
    async with aiohttp.ClientSession(timeout=patience) as session:
        yield Client(session, url.rstrip("/"))


async def hold(client: Client, *, model: str, number: str, on_answer: Callable[[Exchange], None]) -> list[Exchange]:
    """Ask the questions over copy `number` of the handbook, then hold the conversation over the same copy."""
    system = {"role": "system", "content": copy_of_handbook(number)}
    exchanges: list[Exchange] = []

    async def ask(name: str, messages: Sequence[Message]) -> str:
        exchange = await client.ask(name=name, model=model, messages=messages)
        exchanges.append(exchange)
        on_answer(exchange)
        return exchange.answer

    for index, question in enumerate(QUESTIONS, start=1):
        await ask(f"question {index}", [system, {"role": "user", "content": question}])
    history: list[Message] = [system]
    for index, text in enumerate(CONVERSATION, start=1):
        history.append({"role": "user", "content": text})
        history.append({"role": "assistant", "content": await ask(f"turn {index}", list(history))})
    return exchanges


def _request(model: str, messages: Sequence[Message], max_tokens: int) -> dict[str, object]:
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _is_progress(choice: _Choice) -> bool:
    """Whether a chunk shows the user something, or says that there is nothing to show."""
    return bool(choice.delta.content) or choice.finish_reason is not None


def _facts(
    *,
    name: str,
    question: str,
    answer: str,
    finish_reason: str,
    first_token_ms: float,
    usage: _Usage,
    extension: _Extension,
) -> Exchange:
    return Exchange(
        name=name,
        question=question,
        answer=answer,
        finish_reason=finish_reason,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        computed_tokens=extension.computed_tokens,
        generated_tokens=usage.completion_tokens,
        first_token_ms=first_token_ms,
        queue_ms=extension.timings.queue_ms,
        prefill_ms=extension.timings.prefill_ms,
        decode_ms=extension.timings.decode_ms,
        done=extension.projections.done,
        without_prefix_cache=extension.projections.without_prefix_cache,
        without_kv_cache=extension.projections.without_kv_cache,
    )


async def _refuse_errors(response: aiohttp.ClientResponse) -> None:
    """Turn an answer that is not a success into one line."""
    if response.ok:
        return
    body = await response.read()
    try:
        message = msgspec.json.decode(body, type=_ErrorBody).error.message
    except msgspec.DecodeError:
        message = response.reason or "no reason given"
    wait = response.headers.get("retry-after")
    again = f" (try again in {wait} s)" if wait else ""
    raise DemoError(f"{response.url} answered {response.status}: {message}{again}")


def _reason(error: Exception) -> str:
    """Put the error into one line, by its kind when it carries no text."""
    return str(error) or type(error).__name__
