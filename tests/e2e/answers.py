"""Every answer that a test gets over HTTP, checked against the usage identities of its API.

The SDKs' clients made here send through a transport that reads each answer on its way, whole or event by event. Where
an API can count a prompt, the transport has the same body counted first, and the answer must agree with the count.
What is wrong is noted, not raised: an SDK would wrap it in an error of its own, which a test may expect.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

Json = Mapping[str, Any]

COUNTERS: Final = {
    "/v1/messages": "/v1/messages/count_tokens",
    "/v1/responses": "/v1/responses/input_tokens",
}
WITH_USAGE: Final = {"chat.completion", "text_completion", "response", "message"}
ENDED: Final = {"response.completed", "response.incomplete", "response.failed"}


def same(what: str, left: object, right: object) -> None:
    """Raise AssertionError with both sides where they differ."""
    if left != right:
        raise AssertionError(f"{what}: {left} is not {right}")


def check_openai(usage: Json, names: tuple[str, str] = ("prompt", "completion")) -> tuple[int, int]:
    """Cached, written and uncached tokens are disjoint parts of the prompt's. Return prompt and cached tokens."""
    prompt, generated = (usage[f"{name}_tokens"] for name in names)
    details = usage[f"{names[0]}_tokens_details"]
    cached, written = details["cached_tokens"], details["cache_write_tokens"]
    uncached = prompt - cached - written
    same("no count below zero", min(prompt, generated, cached, written, uncached) >= 0, True)
    same("total", usage["total_tokens"], prompt + generated)
    split = details.get("cache_write_tokens_details")
    if split is not None:
        same("writes by TTL", split["ttl_30m_tokens"] + split["ttl_12h_tokens"], written)
    return prompt, cached


def check_anthropic(usage: Json) -> tuple[int, int]:
    """Uncached, written and read tokens are all there is of the prompt. Return prompt and read tokens."""
    uncached, written, read = (usage[f"{name}input_tokens"] for name in ("", "cache_creation_", "cache_read_"))
    same("no count below zero", min(uncached, written, read, usage["output_tokens"]) >= 0, True)
    if "cache_creation" in usage:
        same("writes by TTL", sum(usage["cache_creation"].values()), written)
    return uncached + written + read, read


def check_extension(extension: Json, prompt: int, read: int) -> None:
    """What was not read was computed, and each such token has one reason."""
    same("computed_tokens", extension["computed_tokens"], prompt - read)
    same("sum of the misses", sum(miss["tokens"] for miss in extension["miss"]), prompt - read)
    same("no projection below zero", min(extension["projections"].values()) >= 0, True)


@dataclass(slots=True)
class Answers:
    """How many answers were seen, which of them told their usage, and what was wrong."""

    seen: int = 0
    checked: Counter[str] = field(default_factory=Counter)  # answers whose usage was checked, by path
    wrong: list[str] = field(default_factory=list)

    def reader(self, path: str, status: int, kind: str, counted: int | None) -> Reader:
        """Begin to read an answer."""
        self.seen += 1
        return Reader(self, path, status=status, streamed=kind.startswith("text/event-stream"), counted=counted)


class Reader:
    """Reads one answer as its bytes come."""

    def __init__(self, answers: Answers, path: str, *, status: int, streamed: bool, counted: int | None) -> None:
        """Prepare for the answer of `path`; `counted` is what its prompt must come to, if known."""
        self._answers = answers
        self._path = path
        self._status = status
        self._streamed = streamed
        self._counted = counted
        self._rest = b""
        self._started: tuple[int, int] | None = None  # what `message_start` told

    def feed(self, data: bytes) -> None:
        """Take more of the answer."""
        self._rest += data
        if not self._streamed:
            return
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    self._check(json.loads(line.removeprefix(b"data: ")))

    def end(self) -> None:
        """Take the end of the answer."""
        if not self._streamed and self._rest:
            self._check(json.loads(self._rest))
            self._rest = b""

    def _check(self, body: Json) -> None:
        try:
            if self._status >= httpx2.codes.BAD_REQUEST:
                same("an error says what is wrong", bool(body["error"]["message"] and body["error"]["type"]), True)
            elif self._streamed:
                self._check_event(body)
            else:
                self._check_whole(body)
        except (AssertionError, KeyError, TypeError) as error:
            self._answers.wrong.append(f"{self._path}: {error!r} in {json.dumps(body)[:2000]}")

    def _check_whole(self, body: Json) -> None:
        usage = body.get("usage")
        if usage is not None:
            self._check_usage(usage, body.get("keepwarm"))
        elif not body.get("deleted") and WITH_USAGE & {body.get("object"), body.get("type")}:
            raise AssertionError("an answer without usage")

    def _check_event(self, event: Json) -> None:
        kind = event.get("type", "")
        if kind == "message_start":
            self._started = check_anthropic(event["message"]["usage"])
        elif kind == "message_delta":
            same("the last event repeats the first", check_anthropic(event["usage"]), self._started)
            self._check_usage(event["usage"], event["keepwarm"])
        elif kind in ENDED:
            self._check_whole(event["response"])
        elif event.get("usage"):
            self._check_usage(event["usage"], event.get("keepwarm"))
        elif "keepwarm" in event:
            missed = sum(miss["tokens"] for miss in event["keepwarm"]["miss"])
            same("sum of the misses", missed, event["keepwarm"]["computed_tokens"])

    def _check_usage(self, usage: Json, extension: Json | None) -> None:
        if self._path == "/v1/messages":
            prompt, read = check_anthropic(usage)
        elif self._path.startswith("/v1/responses"):
            prompt, read = check_openai(usage, ("input", "output"))
        else:
            prompt, read = check_openai(usage)
        if extension is not None:
            check_extension(extension, prompt, read)
        if self._counted is not None:
            same("the prompt is what the count says", prompt, self._counted)
        self._answers.checked[self._path] += 1


class _Read(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """An answer's bytes, read on their way."""

    def __init__(self, stream: Any, reader: Reader) -> None:
        self._stream = stream
        self._reader = reader

    def __iter__(self) -> Iterator[bytes]:
        for data in self._stream:
            self._reader.feed(data)
            yield data
        self._reader.end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            self._reader.feed(data)
            yield data
        self._reader.end()

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _counting(request: httpx2.Request) -> httpx2.Request | None:
    """Return the request that has the same prompt counted."""
    counter = COUNTERS.get(request.url.path)
    if counter is None or request.method != "POST":
        return None
    headers = {name: value for name, value in request.headers.items() if name != "content-length"}
    return httpx2.Request("POST", request.url.copy_with(path=counter), headers=headers, content=request.content)


def _count(status: int, body: bytes) -> int | None:
    count: int | None = json.loads(body)["input_tokens"] if status == httpx2.codes.OK else None
    return count


class Transport(httpx2.HTTPTransport):
    """Sends as an SDK's own transport does, and has every answer checked."""

    def __init__(self, answers: Answers) -> None:
        """Note everything in `answers`."""
        super().__init__()
        self._answers = answers

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Count the prompt, send the request and read the answer on its way."""
        request.read()
        counting, counted = _counting(request), None
        if counting is not None:
            count = super().handle_request(counting)
            counted = _count(count.status_code, count.read())
        response = super().handle_request(request)
        kind = response.headers.get("content-type", "")
        reader = self._answers.reader(request.url.path, response.status_code, kind, counted)
        response.stream = _Read(response.stream, reader)
        return response


class AsyncTransport(httpx2.AsyncHTTPTransport):
    """The same for asynchronous clients."""

    def __init__(self, answers: Answers) -> None:
        """Note everything in `answers`."""
        super().__init__()
        self._answers = answers

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Count the prompt, send the request and read the answer on its way."""
        await request.aread()
        counting, counted = _counting(request), None
        if counting is not None:
            count = await super().handle_async_request(counting)
            counted = _count(count.status_code, await count.aread())
        response = await super().handle_async_request(request)
        kind = response.headers.get("content-type", "")
        reader = self._answers.reader(request.url.path, response.status_code, kind, counted)
        response.stream = _Read(response.stream, reader)
        return response


def openai_sdk(url: str, answers: Answers, key: str = "unused") -> OpenAI:
    """OpenAI's SDK as an application uses it, every answer checked."""
    client = httpx2.Client(transport=Transport(answers), timeout=60)
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=client)


def async_openai_sdk(url: str, answers: Answers, key: str = "unused") -> AsyncOpenAI:
    """The same, asynchronous."""
    client = httpx2.AsyncClient(transport=AsyncTransport(answers), timeout=60)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=client)


def anthropic_sdk(url: str, answers: Answers, key: str = "unused") -> Anthropic:
    """Anthropic's SDK as an application uses it, every answer checked."""
    client = httpx2.Client(transport=Transport(answers), timeout=60)
    return Anthropic(base_url=url, api_key=key, max_retries=0, http_client=client)


def async_anthropic_sdk(url: str, answers: Answers, key: str = "unused") -> AsyncAnthropic:
    """The same, asynchronous."""
    client = httpx2.AsyncClient(transport=AsyncTransport(answers), timeout=60)
    return AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=client)
