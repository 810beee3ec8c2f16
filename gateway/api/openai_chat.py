"""OpenAI's chat completions, the way in: a body becomes an `Ask`. Pure: no HTTP, no clock.

Parsing is strict about what it knows (types, ranges, roles, part kinds) and lets unknown optional fields pass.
Rule: every refusal names the field by its path, such as `messages[0].content[1]`. Text parts are joined with nothing
between them, so a list of parts and the same text as one string are the same prompt.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.messages import Sampling
from gateway.api.json_body import decode
from gateway.errors import BadRequest
from gateway.exchange import Ask
from gateway.prompt import ToolCall, Turn
from gateway.retention import AskedMark, Wish

MAX_STOPS = 4
MAX_STOP_LENGTH = 1024  # characters
_INT64_MAX = 2**63 - 1


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A mark at the end of a part: what is before it is to be kept for `ttl`."""

    mode: Literal["explicit"] = "explicit"
    ttl: str | None = None


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the request's prompt is to be cached."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message; only `text` parts can be read."""

    type: str
    text: str | None = None
    prompt_cache_breakpoint: Breakpoint | None = None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """What a call called, its arguments as JSON text."""

    name: str
    arguments: str = ""


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    """One call that an assistant message made."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None


TokenCount = Annotated[int, Meta(ge=1, le=_INT64_MAX)]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body of POST /v1/chat/completions, as far as it is understood."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None  # the newer name; it wins
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_INT64_MAX)] | None = None  # 0 and -1: all tokens
    seed: Annotated[int, Meta(ge=-_INT64_MAX, le=_INT64_MAX)] | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_DECODER = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes) -> ChatRequest:
    """Read a body. Raises BadRequest naming the field."""
    request: ChatRequest = decode(_DECODER, body)
    if request.n not in (None, 1):
        raise BadRequest(f"Only n=1 is supported, not {request.n}.", param="n", code="unsupported_value")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    _stops(request.stop)
    return request


def ask_of(request: ChatRequest, request_id: str, *, tenant: str = "default") -> Ask:
    """Say in our words what the client wants. Raises BadRequest for a part that cannot be read."""
    return Ask(
        id=request_id,
        model=request.model,
        turns=tuple(_turn(message, f"messages[{place}]") for place, message in enumerate(request.messages)),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        sampling=Sampling(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=request.top_p or 1.0,
            top_k=max(request.top_k or 0, 0),
            seed=request.seed,
        ),
        stops=_stops(request.stop),
        tenant=tenant,
        partition=request.prompt_cache_key or "",
        wish=_wish(request),
    )


def _wish(request: ChatRequest) -> Wish:
    """Say what the client wants kept; marks in the order in which the parts stand."""
    options = request.prompt_cache_options or CacheOptions()
    marks = []
    for place, message in enumerate(request.messages):
        for at, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.prompt_cache_breakpoint is not None:
                path = f"messages[{place}].content[{at}].prompt_cache_breakpoint.ttl"
                marks.append(AskedMark(part.prompt_cache_breakpoint.ttl, path))
    return Wish(mode=options.mode or "implicit", ttl=options.ttl, marks=tuple(marks))


def _breaks(content: str | list[ContentPart] | None) -> tuple[int, ...]:
    """Return where in the joined text each marked part ends, in characters."""
    ends, at = [], 0
    for part in content if isinstance(content, list) else ():
        at += len(part.text or "")
        if part.prompt_cache_breakpoint is not None:
            ends.append(at)
    return tuple(ends)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if isinstance(stop, str):
        stops = {"stop": stop}
    else:
        stops = {f"stop[{place}]": text for place, text in enumerate(stop or ())}
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"At most {MAX_STOPS} stop strings are allowed, not {len(stops)}.", param="stop")
    for path, text in stops.items():
        if not 0 < len(text) <= MAX_STOP_LENGTH:
            raise BadRequest(f"A stop string has 1 to {MAX_STOP_LENGTH} characters, not {len(text)}.", param=path)
    return tuple(stops.values())


def _turn(message: ChatMessage, path: str) -> Turn:
    if message.tool_calls and message.role != "assistant":
        raise BadRequest(f"A {message.role} message cannot call tools.", param=f"{path}.tool_calls")
    return Turn(
        role="system" if message.role == "developer" else message.role,
        text=_text(message.content, f"{path}.content"),
        name=message.name,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=_arguments(call.function.arguments))
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
        breaks=_breaks(message.content),
    )


def _text(content: str | list[ContentPart] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for place, part in enumerate(content):
        if part.type != "text":
            message = f"Content parts of type {part.type!r} are not supported: this model reads text only."
            raise BadRequest(message, param=f"{path}[{place}]", code="unsupported_value")
        if part.text is None:
            raise BadRequest("A text part needs its text.", param=f"{path}[{place}].text")
    return "".join(part.text or "" for part in content)


def _arguments(text: str) -> dict[str, Any] | str:
    """Arguments as an object: templates write objects. Nothing and null are the empty object."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text
    if value is None:
        return {}
    return value if isinstance(value, dict) else text
