"""OpenAI's Responses API, the way in: a body, and what came before it, become an `Ask`. Pure: no HTTP, no clock.

Parsing is strict about what it knows and lets unknown optional fields pass. Rules: every refusal names the field by its
path; instructions are this request's alone, items are the conversation's; nothing is ever cut to fit.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from engine.messages import Sampling
from gateway.api.json_body import decode
from gateway.api.responses_items import CacheControl, Item, conversation, mark_of, references
from gateway.api.responses_store import Earlier, previous_not_found
from gateway.ask import Ask, OutputForm, Tool, ToolChoice, Turn
from gateway.errors import BadRequest, NotStored
from gateway.retention import Wish

LOGPROBS: Final = "message.output_text.logprobs"
_INT64_MAX: Final = 2**63 - 1


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the request's prompt is to be cached."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool; only functions can be called."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice of tools by name: one function, or those that are allowed."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the answer's text is confined to."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer's text. The verbosity is accepted; no model here is told of it."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body of POST /v1/responses, as far as it is understood."""

    model: str | None = None
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=_INT64_MAX)] | None = None
    max_tool_calls: int | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | Chosen | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: CacheOptions | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """The input as items: a string is a user's message."""
        if isinstance(self.input, str):
            return (Item(type="message", role="user", content=self.input),)
        return tuple(self.input or ())

    @property
    def references(self) -> tuple[str, ...]:
        """The ids of earlier items that the input refers to."""
        return tuple(references(self.items))

    @property
    def cache(self) -> CacheOptions:
        """The cache options, given or not."""
        return self.prompt_cache_options or CacheOptions()

    @property
    def stores(self) -> bool:
        """Whether the response is to be kept."""
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer tells how likely its tokens were."""
        return LOGPROBS in (self.include or ())


_DECODER = msgspec.json.Decoder(ResponsesRequest)


def parse(body: bytes) -> ResponsesRequest:
    """Read a body. Raises BadRequest naming the field."""
    request = parse_count(body)
    if request.model is None:
        raise _missing("model")
    if request.background:
        raise _unsupported("Responses in the background are not supported.", "background")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    return request


def parse_count(body: bytes) -> ResponsesRequest:
    """Read a body whose prompt is only to be counted, so that it need not name a model."""
    request: ResponsesRequest = decode(_DECODER, body)
    if request.conversation is not None:
        message = "Stored conversations are not supported: use 'previous_response_id' or send all items."
        raise _unsupported(message, "conversation")
    if request.prompt is not None:
        raise _unsupported("Prompt templates are not supported: send 'instructions' and 'input'.", "prompt")
    if request.input is None and request.previous_response_id is None:
        raise _missing("input")
    return request


def ask_of(request: ResponsesRequest, response_id: str, *, tenant: str = "default", earlier: Earlier | None) -> Ask:
    """Say in our words what the client wants. Raises BadRequest for what cannot be read or found."""
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(request.tools or ()))
    turns, marks = conversation(_placed(request, earlier or Earlier()))
    if request.previous_response_id is not None and earlier is None:
        raise previous_not_found(request.previous_response_id)
    if request.instructions:
        turns = (Turn(role="system", text=request.instructions, path="instructions"), *turns)
    if not turns:
        raise BadRequest("There is nothing to answer: the input is empty.", param="input", code="empty_input")
    options = request.cache
    tool_marks = (mark_of(tool, f"tools[{place}]") for place, tool in enumerate(request.tools or ()))
    return Ask(
        api="responses",
        id=response_id,
        model=request.model or "",
        turns=turns,
        tools=tools,
        tool_choice=_choice(request, frozenset(tool.name for tool in tools)),
        output=_form(request.text),
        max_tokens=0 if options.prewarm else request.max_output_tokens,
        sampling=Sampling(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=request.top_p or 1.0,
            logprobs=request.top_logprobs or 0 if request.wants_logprobs else None,
        ),
        tenant=tenant,
        partition=request.prompt_cache_key or "",
        wish=Wish(
            mode=options.mode or "implicit",
            ttl=options.ttl,
            marks=(*(mark for mark in tool_marks if mark is not None), *marks),
            prewarm=bool(options.prewarm),
        ),
        prompt_field="input",
        settings=_settings(request),
        compared_with=options.comparison_response_id or request.previous_response_id,
        diagnosed=options.comparison_response_id is not None,
    )


def _settings(request: ResponsesRequest) -> dict[str, str]:
    """Return what a template may ask for beside the conversation."""
    reasoning, text = request.reasoning or {}, request.text
    named = {
        "reasoning_effort": reasoning.get("effort"),
        "verbosity": None if text is None else text.verbosity,
        "service_tier": request.service_tier,
        "response_format": None if text is None or text.format is None else msgspec.json.encode(text.format).decode(),
    }
    return {name: value for name, value in named.items() if isinstance(value, str)}


def items_of(request: ResponsesRequest, earlier: Earlier) -> tuple[Item, ...]:
    """Return the conversation that is answered, references replaced by what they name."""
    return tuple(item for _, item in _placed(request, earlier))


def _placed(request: ResponsesRequest, earlier: Earlier) -> list[tuple[str, Item]]:
    placed = [("previous_response_id", item) for item in earlier.items]
    for place, item in enumerate(request.items):
        path, found = f"input[{place}]", item
        if item.kind == "item_reference":
            if item.id is None:
                raise _missing(f"{path}.id")
            if item.id not in earlier.referenced:
                raise NotStored(f"Item with id '{item.id}' not found.", param=f"{path}.id", code="item_not_found")
            found = earlier.referenced[item.id]
        placed.append((path, found))
    return placed


def _tool(tool: FunctionTool, path: str) -> Tool:
    if tool.type != "function":
        raise _unsupported(f"Tools of type {tool.type!r} are not supported: only functions are.", path)
    if not tool.name:
        raise _missing(f"{path}.name")
    return Tool(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.parameters or {},
        strict=bool(tool.strict),
        marked=tool.cache_control is not None,
    )


def _choice(request: ResponsesRequest, known: frozenset[str]) -> ToolChoice:
    chosen, parallel = request.tool_choice, request.parallel_tool_calls is not False
    if not isinstance(chosen, Chosen):
        mode = chosen or "auto"
        names = None
    elif chosen.type == "function":
        mode, names = "required", frozenset({_known(chosen.name, known, "tool_choice.name")})
    elif chosen.type == "allowed_tools":
        mode, names = chosen.mode or "auto", _allowed(chosen, known)
    else:
        raise _unsupported(f"A tool choice of type {chosen.type!r} is not supported.", "tool_choice")
    if mode == "required" and not known:
        raise BadRequest("A tool can only be required where 'tools' are given.", param="tool_choice")
    return ToolChoice(mode=mode, names=names, parallel=parallel)


def _allowed(chosen: Chosen, known: frozenset[str]) -> frozenset[str]:
    names = set()
    for place, tool in enumerate(chosen.tools or ()):
        path = f"tool_choice.tools[{place}]"
        if tool.get("type") != "function":
            raise _unsupported("Only functions can be allowed.", path)
        names.add(_known(tool.get("name"), known, f"{path}.name"))
    if not names:
        raise BadRequest("Name at least one tool that is allowed.", param="tool_choice.tools")
    return frozenset(names)


def _known(name: object, known: frozenset[str], path: str) -> str:
    if not isinstance(name, str):
        raise _missing(path)
    if name not in known:
        raise BadRequest(f"There is no function {name!r} in 'tools'.", param=path, code="invalid_value")
    return name


def _form(text: TextOptions | None) -> OutputForm | None:
    wanted = None if text is None else text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return OutputForm(kind="json_object", path="text.format")
    for field in ("name", "schema"):
        if getattr(wanted, field) is None:
            raise _missing(f"text.format.{field}")
    return OutputForm(kind="json_schema", schema=wanted.schema or {}, path="text.format.schema")


def _missing(path: str) -> BadRequest:
    return BadRequest(f"Missing required field '{path}'.", param=path, code="missing_field")


def _unsupported(message: str, path: str) -> BadRequest:
    return BadRequest(message, param=path, code="unsupported_value")
