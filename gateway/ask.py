"""What a client wants, in words that no wire format owns: turns, tools, the form of the answer. Frozen values.

Rules: whatever an API spells, equal wishes are equal values here, so the same conversation through two APIs is the same
prompt; marks are counted in rendering order: the tools', then each turn's, its text before its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from engine.messages import Sampling
from gateway.retention import Wish

if TYPE_CHECKING:
    from gateway.record import Record

Role = Literal["system", "user", "assistant", "tool"]
Api = Literal["chat", "completions", "responses", "messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant turn made. `arguments` is an object, or the client's text where it is not JSON."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    marked: bool = False  # a mark stands after the call


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message. A developer's message is a `system` turn. Absent and empty content are the same: empty text."""

    role: Role
    text: str
    name: str | None = None  # of the speaker; in a `tool` turn the tool's
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    thinking: str = ""  # what an assistant turn thought before it spoke
    breaks: tuple[int, ...] = ()  # marks: after how many characters of `text`, in order
    path: str = field(default="", compare=False)  # where the client wrote it, in its API's spelling


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, an object's."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False  # arguments are confined to the schema even where the model may choose not to call
    marked: bool = False  # a mark stands after the definition
    path: str = field(default="", compare=False)  # where the client wrote it, in its API's spelling


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether the model must call a tool, and which. Never part of the prompt: a changed choice keeps the prefix."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: frozenset[str] | None = None  # only these may be called; None: any
    parallel: bool = True  # several calls in one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm:
    """What the answer's text is confined to. Never part of the prompt. `path` is the field that asked for it."""

    kind: Literal["json_object", "json_schema", "regex", "lark", "gbnf"]
    schema: Mapping[str, Any] = field(default_factory=dict)  # for `json_schema`
    text: str = ""  # for the others
    path: str = "response_format"


class Route(Protocol):
    """Who sent a request here, and hears what becomes of it."""

    def begun(self) -> None:
        """Hear that the first token has come."""

    def told(self, record: Record) -> Record:
        """Hear how the exchange ended; return its record, which says where it was routed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. `max_tokens` None means as many as fit, 0 that the prompt is only made warm.

    A conversation comes in `turns`; `raw` is a prompt without one: text, or token ids as little-endian uint32.
    """

    id: str
    model: str
    turns: tuple[Turn, ...] = ()
    raw: str | bytes | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    output: OutputForm | None = None
    continues: bool = False  # the answer goes on from the last turn, an assistant's
    template_arguments: Mapping[str, Any] = field(default_factory=dict)  # more names for the chat template
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()  # beside the model's own
    ignore_eos: bool = False  # the model's own end no answer
    choices: int = 1
    prompt_logprobs: int | None = None
    tenant: str = "default"
    partition: str = ""
    wish: Wish = field(default_factory=Wish)
    prompt_field: str = "messages"  # what the API calls the prompt, for refusals
    call_prefix: str = "call_"  # what the API puts before the ids of tool calls
    settings: Mapping[str, str] = field(default_factory=dict)  # what else may shape a prompt, for templates that ask
    compared_with: str | None = None  # the answer that the client goes on from or wants to be compared with
    diagnosed: bool = False  # the client asked what the comparison told
    api: Api = field(default="chat", compare=False)  # which one it came by; for whoever counts, nobody decides by it
    key: str | None = field(default=None, compare=False)  # the id of the client's key
    streamed: bool = field(default=False, compare=False)
    traceparent: str = field(default="", compare=False)  # W3C trace context, as the client sent it
    tracestate: str = field(default="", compare=False)
    route: Route | None = field(default=None, compare=False)  # who hears what becomes of it, where routing chose


def texts(
    turns: Sequence[Turn], tools: Sequence[Tool] = (), arguments: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Every text that a client chose and a prompt may hold; `arguments` are the template's."""
    yield from _strings(arguments or {})
    for tool in tools:
        yield tool.name
        yield tool.description
        yield from _strings(tool.parameters)
    for turn in turns:
        yield turn.text
        yield turn.thinking
        yield turn.name or ""
        yield turn.tool_call_id or ""
        for call in turn.tool_calls:
            yield call.id
            yield call.name
            yield from _strings(call.arguments)


def _strings(value: object) -> Iterator[str]:
    """Every string in a JSON value, however deep it is nested."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            left += one


def arguments_of(text: str) -> dict[str, Any] | str:
    """Read a call's arguments: an object, as templates write it. Nothing and null are the empty object."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return text
    if value is None:
        return {}
    return value if isinstance(value, dict) else text
