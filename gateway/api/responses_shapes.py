"""The objects of OpenAI's Responses API as they go out, and the numbers in them. Pure.

Rule: a field is given only where what it says is true: the split of writes by TTL only if every class is one of the
two that the field knows, the cache options only if the client named such a TTL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.diagnostics import CacheDiagnostics
from gateway.api.extension import Keepwarm
from gateway.api.responses_request import CacheOptions, Chosen, ResponsesRequest
from gateway.errors import Problem
from gateway.events import Logprob
from gateway.usage import PromptFacts

LEAST_LOGPROB: Final = -9999.0  # how the API writes the logarithm of nothing
KNOWN_TTLS: Final = ("30m", "12h")
TOO_MANY: Final = 429

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that might have stood in the place of another."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """How likely a token of the answer was, and its likeliest rivals."""

    top_logprobs: tuple[TopLogprob, ...] = ()


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text", tag_field="type"):
    """The text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """What the model said."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...]


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call", tag_field="type"):
    """A function that the model called."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = OutputMessage | OutputCall


class WriteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Written tokens by the TTL they are kept under."""

    ttl_30m_tokens: int
    ttl_12h_tokens: int


class InputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache did for the prompt: two slices of it."""

    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: WriteDetails | UnsetType = UNSET


class OutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's tokens were spent on."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Incomplete(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response is cut short."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, whole or under way."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: bool = False
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: tuple[OutputItem, ...]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_diagnostics: CacheDiagnostics | UnsetType = UNSET
    prompt_cache_key: str | None
    prompt_cache_options: CacheOptions | None
    prompt_cache_retention: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | Chosen
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: Usage | None = None
    user: str | None
    keepwarm: Keepwarm | UnsetType = UNSET


def usage_of(facts: PromptFacts, generated: int) -> Usage:
    """Count as this API does: cached and written tokens are slices of the input's."""
    return Usage(
        input_tokens=facts.prompt,
        input_tokens_details=InputDetails(
            cached_tokens=facts.read, cache_write_tokens=facts.write, cache_write_tokens_details=_split(facts)
        ),
        output_tokens=generated,
        total_tokens=facts.prompt + generated,
    )


def _split(facts: PromptFacts) -> WriteDetails | UnsetType:
    totals = dict.fromkeys(KNOWN_TTLS, 0)
    for written in facts.written:
        if written.applied not in totals:
            return UNSET
        totals[written.applied] += written.tokens
    if sum(totals.values()) != facts.write:
        return UNSET
    return WriteDetails(ttl_30m_tokens=totals["30m"], ttl_12h_tokens=totals["12h"])


def logprobs_of(logprobs: Sequence[Logprob]) -> tuple[TokenLogprob, ...]:
    """Write how likely tokens were."""
    return tuple(
        TokenLogprob(
            token=told.token,
            bytes=list(told.spelling),
            logprob=max(told.logprob, LEAST_LOGPROB),
            top_logprobs=tuple(
                TopLogprob(token=top.token, bytes=list(top.spelling), logprob=max(top.logprob, LEAST_LOGPROB))
                for top in told.top
            ),
        )
        for told in logprobs
    )


def failure_of(problem: Problem) -> Failure:
    """Say why a response failed in the few words that this API has for it."""
    if problem.status == TOO_MANY:
        return Failure(code="rate_limit_exceeded", message=problem.message)
    is_ours = problem.status >= 500  # noqa: PLR2004 - the border between theirs and ours
    return Failure(code="server_error" if is_ours else "invalid_prompt", message=problem.message)


def template(request: ResponsesRequest, response_id: str, created: int) -> ResponseObject:
    """Begin a response: everything that the request already settles."""
    asked_format = None if request.text is None else request.text.format
    text: dict[str, Any] = {"format": {"type": "text"} if asked_format is None else asked_format}
    if request.text is not None and request.text.verbosity is not None:
        text["verbosity"] = request.text.verbosity
    options = request.cache
    return ResponseObject(
        id=response_id,
        created_at=created,
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        model=request.model or "",
        output=(),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_options=(
            CacheOptions(
                mode=options.mode or "implicit", ttl=options.ttl, comparison_response_id=options.comparison_response_id
            )
            if options.ttl in KNOWN_TTLS
            else None
        ),
        prompt_cache_retention=request.prompt_cache_retention,
        reasoning={"effort": None, "summary": None} | (request.reasoning or {}),
        safety_identifier=request.safety_identifier,
        store=request.stores,
        temperature=1.0 if request.temperature is None else request.temperature,
        text=text,
        tool_choice=request.tool_choice or "auto",
        tools=[
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": bool(tool.strict),
            }
            for tool in request.tools or ()
        ],
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p or 1.0,
        truncation=request.truncation or "disabled",
        user=request.user,
    )
