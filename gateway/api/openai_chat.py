"""OpenAI's chat completions, the way in: a body becomes an `Ask`. Pure: no HTTP, no clock.

Parsing is strict about what it knows (types, ranges, roles, part kinds) and lets unknown optional fields pass.
Rule: every refusal names the field by its path, such as `messages[0].content[1]`. Text parts are joined with nothing
between them, so a list of parts and the same text as one string are the same prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.json_body import decode
from gateway.api.openai_fields import (
    MAX_ALTERNATIVES,
    Breakpoint,
    CacheControl,
    Choices,
    ResponseFormat,
    SamplingFields,
    TokenCount,
    form_of,
    mark_of,
    stops_of,
)
from gateway.api.openai_tools import FunctionTool, ToolChoiceField, choice_of, tools_of
from gateway.ask import Ask, ToolCall, Turn, arguments_of
from gateway.errors import BadRequest
from gateway.retention import AskedMark


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message; only `text` and `refusal` parts can be read."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Breakpoint | None = None
    cache_control: CacheControl | None = None


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
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    cache_control: CacheControl | None = None  # the whole message is marked


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """A body of POST /v1/chat/completions, as far as it is understood."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None  # the newer name; it wins
    n: Choices | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: CacheControl | None = None  # the end of the last message is marked
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    functions: Any = None
    modalities: list[str] | None = None


_DECODER = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes) -> ChatRequest:
    """Read a body. Raises BadRequest naming the field."""
    request: ChatRequest = decode(_DECODER, body)
    request.check()
    if request.functions is not None:
        raise BadRequest("functions is no longer supported; send tools.", param="functions", code="unsupported_value")
    if request.modalities and request.modalities != ["text"]:
        message = "Only the modality 'text' is supported."
        raise BadRequest(message, param="modalities", code="unsupported_value")
    if request.top_logprobs is not None and not request.logprobs:
        raise BadRequest("top_logprobs is only allowed when logprobs is true.", param="top_logprobs")
    return request


def ask_of(request: ChatRequest, request_id: str, *, tenant: str = "default") -> Ask:
    """Say in our words what the client wants. Raises BadRequest for a part that cannot be read."""
    tools, marks = tools_of(request.tools or ())
    turns = []
    for place, message in enumerate(request.messages):
        turn, found = _turn(message, f"messages[{place}]")
        turns.append(turn)
        marks += found
    if request.cache_control is not None:
        last = turns[-1]
        if len(last.text) not in last.breaks:
            turns[-1] = replace(last, breaks=(*last.breaks, len(last.text)))
            marks.append(AskedMark(request.cache_control.ttl, "cache_control.ttl"))
    wish = request.wish(marks)
    return Ask(
        id=request_id,
        model=request.model,
        turns=tuple(turns),
        tools=tools,
        tool_choice=choice_of(request.tool_choice, tools, parallel=request.parallel_tool_calls is not False),
        output=form_of(request.response_format, request.structured_outputs),
        template_arguments=request.chat_template_kwargs or {},
        max_tokens=0 if wish.prewarm else request.max_completion_tokens or request.max_tokens,
        sampling=request.sampling((request.top_logprobs or 0) if request.logprobs else None),
        stops=stops_of(request.stop),
        stop_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        choices=request.n or 1,
        prompt_logprobs=request.prompt_logprobs,
        tenant=tenant,
        partition=request.prompt_cache_key or "",
        wish=wish,
        settings=_settings(request),
        compared_with=request.compared_with,
    )


def _settings(request: ChatRequest) -> dict[str, str]:
    """Return what a template may ask for beside the conversation."""
    form = request.response_format
    named = {
        "reasoning_effort": request.reasoning_effort,
        "verbosity": request.verbosity,
        "service_tier": request.service_tier,
        "response_format": None if form is None else msgspec.json.encode(form).decode(),
    }
    return {name: value for name, value in named.items() if value is not None}


def _turn(message: ChatMessage, path: str) -> tuple[Turn, list[AskedMark]]:
    if message.tool_calls and message.role != "assistant":
        raise BadRequest(f"A {message.role} message cannot call tools.", param=f"{path}.tool_calls")
    text, breaks, marks = _text(message.content, f"{path}.content")
    calls = [
        ToolCall(id=call.id, name=call.function.name, arguments=arguments_of(call.function.arguments))
        for call in message.tool_calls or ()
    ]
    if message.cache_control is not None:
        marks.append(AskedMark(message.cache_control.ttl, f"{path}.cache_control.ttl"))
        if calls:
            calls[-1] = replace(calls[-1], marked=True)
        else:
            breaks.append(len(text))
    turn = Turn(
        role="system" if message.role == "developer" else message.role,
        text=text or message.refusal or "",
        name=message.name,
        tool_calls=tuple(calls),
        tool_call_id=message.tool_call_id,
        thinking=message.reasoning_content or "",
        breaks=tuple(breaks),
        path=path,
    )
    return turn, marks


def _text(content: str | list[ContentPart] | None, path: str) -> tuple[str, list[int], list[AskedMark]]:
    """Join the parts; return also where in the text each mark stands, in characters, and the marks."""
    if content is None or isinstance(content, str):
        return content or "", [], []
    pieces: list[str] = []
    breaks: list[int] = []
    marks: list[AskedMark] = []
    length = 0
    for place, part in enumerate(content):
        pieces.append(_part(part, f"{path}[{place}]"))
        length += len(pieces[-1])
        mark = mark_of(f"{path}[{place}]", part.prompt_cache_breakpoint, part.cache_control)
        if mark is not None:
            breaks.append(length)
            marks.append(mark)
    return "".join(pieces), breaks, marks


def _part(part: ContentPart, path: str) -> str:
    if part.type not in {"text", "refusal"}:
        message = f"Content parts of type {part.type!r} are not supported: this model reads text only."
        raise BadRequest(message, param=path, code="unsupported_value")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise BadRequest(f"A {part.type} part needs its {part.type}.", param=f"{path}.{part.type}")
    return text
