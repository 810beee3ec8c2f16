"""A request body of any of the APIs into an `Ask`, for looking at it: kinder than a server, and it says what it mended.

Owns what a body's API is known by. Rules: the API's own module reads it, so the prompt is the one that a server makes;
an image or a file becomes text that names it, and marks that the API would refuse become findings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from gateway.api import anthropic_messages, openai_chat, responses_request
from gateway.api.responses_store import Earlier
from gateway.ask import Ask
from gateway.doctor.errors import Unusable
from gateway.doctor.findings import Finding
from gateway.errors import BadRequest
from gateway.retention import MOST_MARKS

Api = Literal["chat", "responses", "anthropic"]
APIS: Final[tuple[Api, ...]] = get_args(Api)

_MARKS: Final = ("cache_control", "prompt_cache_breakpoint")
_OF_ANTHROPIC: Final = frozenset({"system", "stop_sequences", "thinking", "top_k", "anthropic_version", "diagnostics"})
_OF_RESPONSES: Final = frozenset({"input", "instructions", "previous_response_id", "max_output_tokens"})
_ROLES_OF_CHAT: Final = frozenset({"system", "developer", "tool", "function"})
_BLOCKS_OF_ANTHROPIC: Final = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"}
)
_MEDIA: Final = frozenset({"image", "image_url", "input_image", "document", "file", "input_file", "input_audio"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One request, read."""

    name: str  # of its file, or its place in a log
    api: Api
    ask: Ask
    findings: tuple[Finding, ...] = ()  # made while reading


def load(text: str | bytes, name: str) -> Any:
    """Parse JSON. Raises Unusable."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{name} is not JSON: {error}") from error


def read(document: Any, name: str, *, api: Api | None = None, tenant: str = "default") -> Body:
    """Read a parsed body, of the API that its fields tell or that is named. Raises Unusable."""
    if not isinstance(document, dict):
        raise Unusable(f"{name} is not a request body: it must be a JSON object")
    try:
        told = api or api_of(document)
        mended = _mended({"model": "unnamed", **document}, told)
        return _read(mended, name, told, tenant)
    except RecursionError as error:
        raise Unusable(f"{name} is nested too deeply") from error


def _read(mended: dict[str, Any], name: str, told: Api, tenant: str) -> Body:
    findings = [] if told == "anthropic" else list(_too_many_marks(mended))
    try:
        ask = _ask(mended, told, tenant)
    except BadRequest as error:
        bare = _without_marks(mended)
        try:
            ask = _ask(bare, told, tenant)
        except BadRequest as still:
            raise Unusable(f"{name} is no request of the {told} API: {still}") from still
        findings.append(_refused_marks(error))
    return Body(name=name, api=told, ask=ask, findings=tuple(findings))


def api_of(document: Mapping[str, Any]) -> Api:
    """Tell the API by the fields of a body. Where chat and Anthropic look alike they also mean the same."""
    if "messages" not in document and _OF_RESPONSES & document.keys():
        return "responses"
    messages = _objects(document.get("messages"))
    if any(str(one.get("role")) in _ROLES_OF_CHAT or "tool_calls" in one for one in messages):
        return "chat"
    tools = _objects(document.get("tools"))
    if any("function" in one for one in tools):
        return "chat"
    kinds = {str(part.get("type")) for one in messages for part in _objects(one.get("content"))}
    anthropic = (
        _OF_ANTHROPIC & document.keys()
        or _BLOCKS_OF_ANTHROPIC & kinds
        or any("input_schema" in one for one in tools)
        or str(document.get("model", "")).startswith("claude")
    )
    return "anthropic" if anthropic else "chat"


def _ask(document: Mapping[str, Any], api: Api, tenant: str) -> Ask:
    body = json.dumps(document).encode()
    match api:
        case "chat":
            return openai_chat.ask_of(openai_chat.parse(body), "doctor", tenant=tenant)
        case "responses":
            return responses_request.ask_of(responses_request.parse(body), "doctor", tenant=tenant, earlier=Earlier())
        case "anthropic":
            return anthropic_messages.prompt_of(anthropic_messages.parse_count(body), "doctor", tenant=tenant)


def _mended(document: dict[str, Any], api: Api) -> dict[str, Any]:
    """Return a body that holds text alone, and nothing that only a server could look up or run."""
    mended = {name: _in_words(value) for name, value in document.items()}
    if isinstance(mended.get("tools"), list):
        mended["tools"] = [_as_function(tool, api) for tool in mended["tools"]]
    if api == "responses" and mended.get("input") is not None:
        mended.pop("previous_response_id", None)
    for name in ("background", "stream", "stream_options", "modalities", "functions"):
        mended.pop(name, None)
    return mended


def _in_words(value: Any) -> Any:
    """Replace images and files, however deep, by text that names them; their marks stay."""
    if isinstance(value, list):
        return [_in_words(item) for item in value]
    if not isinstance(value, dict):
        return value
    if str(value.get("type")) in _MEDIA and "role" not in value:
        marks = {name: value[name] for name in _MARKS if name in value}
        return {"type": "input_text" if value["type"].startswith("input_") else "text", "text": _named(value), **marks}
    return {name: _in_words(item) for name, item in value.items()}


def _named(part: Mapping[str, Any]) -> str:
    """Name an image or a file: by its address, or by a digest of its content."""
    kind = "image" if "image" in part["type"] else "file"
    held = part.get(part["type"].removeprefix("input_"), part.get("image_url", part.get("source", part)))
    address = held.get("url") or held.get("file_id") if isinstance(held, dict) else held
    if isinstance(address, str) and not address.startswith("data:"):
        return f"[{kind}: {address}]"
    content = json.dumps(held, sort_keys=True).encode()
    return f"[{kind}: sha256 {hashlib.sha256(content).hexdigest()[:16]}]"


def _as_function(tool: Any, api: Api) -> Any:
    """Write a provider's own tool as a function whose description holds its settings."""
    plain = {None, "custom"} if api == "anthropic" else {None, "function"}
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str | None) or tool.get("type") in plain:
        return tool
    name, settings = tool.get("name") or tool["type"], json.dumps(tool, sort_keys=True)
    if api == "anthropic":
        marks = {mark: tool[mark] for mark in _MARKS if mark in tool}
        return {"name": name, "description": settings, "input_schema": {"type": "object"}, **marks}
    function = {"name": name, "description": settings, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function} if api == "chat" else {"type": "function", **function}


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_marks(item) for name, item in value.items() if name not in _MARKS}
    return [_without_marks(item) for item in value] if isinstance(value, list) else value


def _refused_marks(error: BadRequest) -> Finding:
    return Finding(
        level="error",
        kind="marks",
        where=error.param or "cache_control",
        says=f"The API refuses this request: {error}",
        advice="Set at most four marks, none after a longer-lived one would be needed: 1h before 5m, in the order "
        "tools, system, messages; none on empty text or on thinking.",
    )


def _too_many_marks(document: Mapping[str, Any]) -> list[Finding]:
    found = _count_marks(document)
    if found <= MOST_MARKS:
        return []
    return [
        Finding(
            level="advice",
            kind="marks",
            where="prompt_cache_breakpoint",
            says=f"{found} marks are set; only the last {MOST_MARKS} count.",
            advice="Mark the ends of what stays: tools and system, the long documents, the newest turn.",
        )
    ]


def _count_marks(value: Any) -> int:
    if isinstance(value, dict):
        marked = any(value.get(name) is not None for name in _MARKS)
        return marked + sum(_count_marks(item) for name, item in value.items() if name not in _MARKS)
    return sum(map(_count_marks, value)) if isinstance(value, list) else 0


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
