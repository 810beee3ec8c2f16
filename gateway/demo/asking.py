"""One request of the traffic on the wire: sent, its stream read, what it said gathered, in either API's shapes.

Rule: what an answer did not say stays None; a refusal and a failure are answers too, and end nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import aiohttp
import msgspec

from gateway.demo.scenario import Api, Send

Outcome = Literal["finished", "cancelled", "refused", "failed"]

PATHS: Final[dict[Api, str]] = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
OUR_FAULT: Final = 400  # statuses from here to below THEIR_FAULT
THEIR_FAULT: Final = 500
BUSY: Final = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of one request. Counts are None where the answer did not come to them."""

    send: Send
    outcome: Outcome
    status: int
    said: str = ""  # the error's text
    text: str = ""
    prompt: int | None = None
    read: int | None = None
    output: int | None = None
    missed: dict[str, int] = field(default_factory=dict)  # tokens by reason
    first_token_s: float | None = None


class _Miss(msgspec.Struct):
    reason: str
    tokens: int


class _Extension(msgspec.Struct):
    miss: list[_Miss] = []


class _Details(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    text: str | None = None
    partial_json: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Error(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    """One event of either API's stream."""

    choices: list[_Choice] = []
    delta: _Delta | None = None
    usage: _Usage | None = None
    keepwarm: _Extension | None = None
    error: _Error | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


class Asker:
    """Sends requests to one gateway."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Use this session and address; `clock` measures the wait for the first token."""
        self._session, self._url, self._clock = session, url.rstrip("/"), clock

    async def ask(self, send: Send, body: dict[str, Any]) -> Told:
        """Send one request and read it to its end, or leave after its first token where the plan says so."""
        began = self._clock()
        try:
            async with self._session.post(self._url + PATHS[send.api], json=body, headers=_headers(send)) as response:
                if not response.ok:
                    said = message_of(await response.read())
                    return Told(send=send, outcome=_outcome(response.status), status=response.status, said=said)
                return await self._read(send, _events(response), began)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            return Told(send=send, outcome="failed", status=0, said=str(error) or type(error).__name__)

    async def _read(self, send: Send, events: AsyncIterator[_Event], began: float) -> Told:
        first: float | None = None
        pieces: list[str] = []
        usage: _Usage | None = None
        missed: dict[str, int] = {}
        async for event in events:
            if event.error is not None:
                return Told(send=send, outcome="failed", status=THEIR_FAULT, said=event.error.message)
            piece = _piece(event)
            if piece is not None and first is None:
                first = self._clock() - began
                if send.ending == "cancelled":
                    return Told(send=send, outcome="cancelled", status=200, text=piece, first_token_s=first)
            pieces.append(piece or "")
            usage = event.usage or usage
            for miss in event.keepwarm.miss if event.keepwarm else ():
                missed[miss.reason] = missed.get(miss.reason, 0) + miss.tokens
        prompt, read, output = _counts(usage)
        return Told(
            send=send,
            outcome="finished",
            status=200,
            text="".join(pieces),
            prompt=prompt,
            read=read,
            output=output,
            missed=missed,
            first_token_s=first,
        )


def _headers(send: Send) -> dict[str, str]:
    """Name the tenant where its key would stand."""
    if send.api == "messages":
        return {"x-api-key": send.tenant, "anthropic-version": "2023-06-01"}
    return {"Authorization": f"Bearer {send.tenant}"}


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[_Event]:
    async for line in response.content:
        name, _, value = line.strip().partition(b":")
        if name == b"data" and value.strip() != b"[DONE]":
            yield msgspec.json.decode(value, type=_Event)


def _piece(event: _Event) -> str | None:
    """Return the text of an event, "" for a piece of a call, None where it carries nothing of the answer."""
    for delta in (*(choice.delta for choice in event.choices), *((event.delta,) if event.delta else ())):
        said: str | None = delta.content or delta.text
        if said:
            return said
        if delta.tool_calls or delta.partial_json:
            return ""
    return None


def _counts(usage: _Usage | None) -> tuple[int | None, int | None, int | None]:
    """Return prompt, read and output tokens. In Anthropic's shape the three parts of a prompt are disjoint."""
    if usage is None:
        return None, None, None
    if usage.prompt_tokens is not None:
        details = usage.prompt_tokens_details
        return usage.prompt_tokens, None if details is None else details.cached_tokens, usage.completion_tokens
    if usage.input_tokens is None:
        return None, None, usage.output_tokens
    read = usage.cache_read_input_tokens
    return usage.input_tokens + usage.cache_creation_input_tokens + read, read, usage.output_tokens


def _outcome(status: int) -> Outcome:
    return "refused" if OUR_FAULT <= status < THEIR_FAULT and status != BUSY else "failed"


def message_of(body: bytes) -> str:
    """Return an error's text, in whichever API's envelope it came."""
    try:
        said: str = msgspec.json.decode(body, type=_ErrorBody).error.message
    except msgspec.DecodeError:
        return "no reason given"
    return said
