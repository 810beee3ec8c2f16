"""Anthropic's messages, the way in: a body becomes an `Ask`. Pure: no HTTP, no clock.

Parsing is strict about what it knows and lets unknown optional fields pass, old beta fields too. Rules: every refusal
names the field by its path; a request without marks is still cached, held and never counted as a write; `thinking` and
`effort` are accepted and shape nothing, the model here has no such settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from engine.messages import Sampling
from gateway.api.anthropic_blocks import (
    CALL_PREFIX,
    Block,
    CacheControl,
    Message,
    TextBlock,
    ToolDefinition,
    ToolName,
    blocks_of,
    check_depth,
    naming_the_block,
)
from gateway.api.anthropic_errors import dotted
from gateway.api.anthropic_marks import marks_of
from gateway.api.anthropic_turns import Conversation
from gateway.api.json_body import decode
from gateway.ask import Ask, OutputForm, Tool, ToolChoice
from gateway.errors import BadRequest
from gateway.retention import Wish

T = TypeVar("T")

_INT64_MAX: Final = 2**63 - 1
MAX_STOPS: Final = 64

StopSequence = Annotated[str, Meta(min_length=1, max_length=1024)]

_MODES: Final[dict[str, Literal["auto", "none", "required"]]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


class ToolChoiceField(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model must call a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """How the model is to think."""

    type: str


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's text is confined to."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the answer."""

    format: OutputFormat | None = None
    effort: str | None = None


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """Asks why the prompt differs from an earlier one's; null on the first turn."""

    previous_message_id: str | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body of POST /v1/messages/count_tokens: what makes the prompt."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1, max_length=100_000)]
    system: str | list[TextBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older place of output_config.format

    @property
    def format(self) -> tuple[str, OutputFormat] | None:
        """The form asked for and the path of the field that asks; the newer place wins."""
        if self.output_config is not None and self.output_config.format is not None:
            return "output_config.format", self.output_config.format
        return None if self.output_format is None else ("output_format", self.output_format)


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """A body of POST /v1/messages, as far as it is understood. `max_tokens` 0 only makes the prompt warm."""

    max_tokens: Annotated[int, Meta(ge=0, le=_INT64_MAX)]
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=_INT64_MAX)] | None = None
    stream: bool | None = None
    diagnostics: Diagnostics | None = None


_MESSAGES: Final = msgspec.json.Decoder(MessagesRequest)
_COUNT: Final = msgspec.json.Decoder(CountRequest)


def parse(body: bytes) -> MessagesRequest:
    """Read a body of POST /v1/messages. Raises BadRequest naming the field."""
    request = _read(_MESSAGES, body)
    if request.max_tokens == 0:
        _check_prewarm(request)
    return request


def parse_count(body: bytes) -> CountRequest:
    """Read a body of POST /v1/messages/count_tokens. Raises BadRequest naming the field."""
    return _read(_COUNT, body)


def _read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decode(decoder, body)
    except BadRequest as error:
        raise naming_the_block(error) from error


def _check_prewarm(request: MessagesRequest) -> None:
    """Refuse what asks for an answer where none is to come."""
    wrong = None
    if request.stream:
        wrong = "stream"
    elif request.thinking is not None and request.thinking.type == "enabled":
        wrong = "thinking"
    elif request.format is not None:
        wrong = request.format[0]
    elif request.tool_choice is not None and request.tool_choice.type in ("any", "tool"):
        wrong = "tool_choice"
    if wrong is not None:
        raise BadRequest(f"With max_tokens 0 there is no answer, so {wrong} cannot ask for one.", param=wrong)


def prompt_of(request: CountRequest, request_id: str, *, tenant: str = "default") -> Ask:
    """Say in our words what the prompt is. Raises BadRequest for what cannot be read and marks that break a rule."""
    tools = _tools(request.tools or ())
    marks = marks_of(_places(request), request.cache_control)
    conversation = Conversation(marks)
    conversation.add_system(request.system)
    continues = conversation.add_messages(request.messages)
    asked = [marks[path] for path in tools if path in marks] + conversation.asked
    return Ask(
        api="messages",
        id=request_id,
        model=request.model,
        turns=tuple(conversation.turns),
        tools=tuple(replace(tool, marked=path in marks) for path, tool in tools.items()),
        tool_choice=_tool_choice(request.tool_choice, {tool.name for tool in tools.values()}),
        output=_output(request),
        continues=continues,
        max_tokens=0,
        tenant=tenant,
        wish=Wish(mode="implicit", write_all=False, marks=tuple(asked)),
        call_prefix=CALL_PREFIX,
    )


def ask_of(request: MessagesRequest, request_id: str, *, tenant: str = "default") -> Ask:
    """Say in our words what the client wants. Raises BadRequest as `prompt_of` does."""
    ask = prompt_of(request, request_id, tenant=tenant)
    return replace(
        ask,
        max_tokens=request.max_tokens,
        sampling=Sampling(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=request.top_p or 1.0,
            top_k=request.top_k or 0,
        ),
        stops=tuple(request.stop_sequences or ()),
        wish=replace(ask.wish, prewarm=request.max_tokens == 0),
        compared_with=request.diagnostics.previous_message_id if request.diagnostics else None,
        diagnosed=request.diagnostics is not None and request.diagnostics.previous_message_id is not None,
    )


def _places(request: CountRequest) -> Iterator[tuple[str, Block | ToolDefinition]]:
    """Everything that may bear a mark, in the order in which the API counts."""
    for place, tool in enumerate(request.tools or ()):
        yield f"tools[{place}]", tool
    yield from blocks_of(request.system, "system")
    for place, message in enumerate(request.messages):
        yield from blocks_of(message.content, f"messages[{place}].content")


def _tools(definitions: Sequence[ToolDefinition]) -> dict[str, Tool]:
    """Return the tools by path. Deferred ones are left out: nothing here could load them later."""
    tools: dict[str, Tool] = {}
    names: set[str] = set()
    for place, definition in enumerate(definitions):
        path = f"tools[{place}]"
        tool = _tool(definition, path)
        if tool.name in names:
            raise BadRequest(f"Tool names must be unique: {tool.name!r} is there already.", param=f"{path}.name")
        names.add(tool.name)
        if not definition.defer_loading:
            tools[path] = tool
    if definitions and not tools:
        raise BadRequest("At least one tool must not have defer_loading=true.", param="tools")
    return tools


def _tool(definition: ToolDefinition, path: str) -> Tool:
    if definition.type not in (None, "custom"):
        message = f"Tools of type {definition.type!r} are not supported here, only custom tools."
        raise BadRequest(message, param=path, code="unsupported_value")
    for field in ("name", "input_schema"):
        if getattr(definition, field) is None:
            raise BadRequest(f"Missing required field '{path}.{field}'.", param=f"{path}.{field}", code="missing_field")
    try:
        name = msgspec.convert(definition.name, ToolName)
    except msgspec.ValidationError as error:
        message = "A tool's name has 1 to 128 letters, digits, '_', '-', '.' or ':'."
        raise BadRequest(message, param=f"{path}.name") from error
    schema = definition.input_schema or {}
    check_depth(schema, f"{path}.input_schema")
    if schema.get("type", "object") != "object":
        raise BadRequest("A tool's input is an object.", param=f"{path}.input_schema.type")
    if definition.input_examples:
        check_depth(definition.input_examples, f"{path}.input_examples")
        schema = {**schema, "examples": definition.input_examples}  # JSON schema's own word for them
    return Tool(
        name=name,
        description=definition.description or "",
        parameters=schema,
        strict=bool(definition.strict),
        path=dotted(path),
    )


def _tool_choice(choice: ToolChoiceField | None, names: set[str]) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    if choice.type == "tool" and choice.name is None:
        path = "tool_choice.name"
        raise BadRequest(f"Missing required field '{path}'.", param=path, code="missing_field")
    if choice.type == "tool" and choice.name not in names:
        raise BadRequest(f"Tool {choice.name!r} is not among the tools.", param="tool_choice.name")
    if choice.type == "any" and not names:
        raise BadRequest("A tool can only be called where there are tools.", param="tool_choice")
    return ToolChoice(
        mode=_MODES[choice.type],
        names=frozenset({choice.name}) if choice.type == "tool" and choice.name is not None else None,
        parallel=not choice.disable_parallel_tool_use,
    )


def _output(request: CountRequest) -> OutputForm | None:
    if request.format is None:
        return None
    path, form = request.format
    check_depth(form.schema, f"{path}.schema")
    return OutputForm(kind="json_schema", schema=form.schema, path=path)
