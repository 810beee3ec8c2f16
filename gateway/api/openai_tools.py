"""Tools and the choice among them, as chat completions spell them. Pure.

Rule: a choice that names a tool which is not there is refused; the choice never changes the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.api.openai_fields import CacheControl
from gateway.ask import Tool, ToolChoice
from gateway.errors import BadRequest
from gateway.retention import AskedMark

_NAME: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None  # some clients put it here


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `tools`."""

    type: str
    function: FunctionDefinition | None = None
    cache_control: CacheControl | None = None


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function by name."""

    name: str


class AllowedTool(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `allowed_tools.tools`."""

    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    """A choice among some of the tools."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[AllowedTool]


class NamedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice spelled as an object."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


ToolChoiceField = Literal["none", "auto", "required"] | NamedChoice


def check_name(name: str, path: str) -> None:
    """Refuse a tool's name that no model could call. Raises BadRequest."""
    if _NAME.fullmatch(name) is None:
        raise BadRequest("A tool's name has 1 to 128 letters, digits, '_', '-', '.' or ':'.", param=path)


def tools_of(fields: Sequence[FunctionTool]) -> tuple[tuple[Tool, ...], list[AskedMark]]:
    """Return the tools, in the client's order, and their marks. Raises BadRequest for what is no function."""
    tools: list[Tool] = []
    marks: list[AskedMark] = []
    for place, field in enumerate(fields):
        path = f"tools[{place}]"
        if field.type != "function":
            message = f"Tools of type {field.type!r} are not supported: only functions are."
            raise BadRequest(message, param=path, code="unsupported_value")
        function = field.function
        if function is None:
            raise BadRequest(f"Missing required field '{path}.function'.", param=f"{path}.function")
        check_name(function.name, f"{path}.function.name")
        control = field.cache_control or function.cache_control
        if control is not None:
            marks.append(AskedMark(control.ttl, f"{path}.cache_control.ttl"))
        tools.append(
            Tool(
                name=function.name,
                description=function.description or "",
                parameters=function.parameters or {},
                strict=bool(function.strict),
                marked=control is not None,
                path=path,
            )
        )
    check_unique(tools, "tools[{place}].function.name")
    return tuple(tools), marks


def check_unique(tools: Sequence[Tool], path: str) -> None:
    """Refuse two tools of one name: a call could not be told apart. Raises BadRequest."""
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            raise BadRequest(f"There are two tools named {tool.name!r}.", param=path.format(place=place))
        seen.add(tool.name)


def choice_of(field: ToolChoiceField | None, tools: Sequence[Tool], *, parallel: bool) -> ToolChoice:
    """Return what the client leaves to the model. Raises BadRequest for a tool that is not there."""
    match field:
        case None | "auto":
            return ToolChoice(parallel=parallel)
        case "none":
            return ToolChoice(mode="none", parallel=parallel)
        case "required":
            check_choice(None, tools)
            return ToolChoice(mode="required", parallel=parallel)
        case NamedChoice(type="function"):
            if field.function is None:
                raise BadRequest("Missing required field 'tool_choice.function'.", param="tool_choice.function")
            names = frozenset({field.function.name})
            check_choice(names, tools)
            return ToolChoice(mode="required", names=names, parallel=parallel)
        case _:
            if field.allowed_tools is None:
                path = "tool_choice.allowed_tools"
                raise BadRequest(f"Missing required field '{path}'.", param=path)
            names = frozenset(tool.function.name for tool in field.allowed_tools.tools)
            check_choice(names, tools)
            return ToolChoice(mode=field.allowed_tools.mode, names=names, parallel=parallel)


def check_choice(names: frozenset[str] | None, tools: Sequence[Tool]) -> None:
    """Refuse a choice among tools that are not there. Raises BadRequest."""
    if not tools:
        raise BadRequest("tool_choice asks for a call, but there are no tools.", param="tool_choice")
    missing = sorted((names or frozenset()) - {tool.name for tool in tools})
    if missing:
        raise BadRequest(f"tool_choice names {missing[0]!r}, which is not among the tools.", param="tool_choice")
