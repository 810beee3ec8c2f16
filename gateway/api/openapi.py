"""The OpenAPI 3.1 document: every address, what it takes and what it answers. Pure: no HTTP, no clock.

Owns the table of operations. Schemas are made of the very structs that read bodies and write answers, so the two cannot
part. Rule: what JSON schema cannot say, such as a field that another one rules out, is left to the refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

import msgspec

from gateway.api import anthropic_answers, anthropic_messages, anthropic_models
from gateway.api.envelopes import VERSION_HEADER
from gateway.api.openai_answers import Completion
from gateway.api.openai_chat import ChatRequest
from gateway.api.openai_completions import CompletionRequest, TextCompletion
from gateway.api.responses_request import ResponsesRequest
from gateway.api.responses_shapes import ResponseObject

Schema = Mapping[str, Any]
Envelope = Literal["openai", "anthropic", "either"]
Route = tuple[str, str, str]  # method, path, summary

WITH_BODY: Final = (400, 401, 404, 405, 413, 415, 429, 503)
WITHOUT: Final = (400, 401, 404, 405)
OPEN: Final = (405,)
REFUSED_BY_HEADER: Final = {401: "WWW-Authenticate", 405: "Allow", 429: "Retry-After", 503: "Retry-After"}

STRUCTS: Final[Mapping[str, tuple[type, ...]]] = {
    "openai": (ChatRequest, Completion, CompletionRequest, TextCompletion),
    "responses": (ResponsesRequest, ResponseObject),
    "anthropic": (
        anthropic_messages.MessagesRequest,
        anthropic_messages.CountRequest,
        anthropic_answers.AnswerMessage,
        anthropic_models.ModelInfo,
        anthropic_models.ModelPage,
    ),
}

_SECURITY_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}

_STRING: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}


def _object(**properties: Schema) -> dict[str, Any]:
    """Describe an object that has all of these fields."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _only(value: object) -> Schema:
    return {"const": value}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_CARD: Final = _object(id=_STRING, object=_only("model"), created=_COUNT, owned_by=_STRING)
_CARD["properties"] = {**_CARD["properties"], "max_model_len": _COUNT}

PLAIN: Final[Mapping[str, Schema]] = {
    "openai.Model": _CARD,
    "openai.Models": _object(
        object=_only("list"), data={"type": "array", "items": {"$ref": "#/components/schemas/openai.Model"}}
    ),
    "openai.Error": _object(
        error=_object(message=_STRING, type=_STRING, param=_or_null(_STRING), code=_or_null(_STRING))
    ),
    "responses.InputTokens": _object(object=_only("response.input_tokens"), input_tokens=_COUNT),
    "responses.Deleted": _object(id=_STRING, object=_only("response"), deleted=_only(value=True)),
    "anthropic.InputTokens": _object(input_tokens=_COUNT),
    "anthropic.Error": _object(type=_only("error"), error=_object(type=_STRING, message=_STRING), request_id=_STRING),
    "keepwarm.Health": _object(status=_only("ok")),
    "keepwarm.Ready": _object(ready={"type": "boolean"}, model=_STRING, detail=_STRING, restarts=_COUNT, state=_STRING),
    "keepwarm.Document": _object(openapi=_STRING, info={"type": "object"}, paths={"type": "object"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one method of one address takes and answers; schemas by name, several answers are told apart by headers."""

    id: str
    tag: str
    request: str | None = None
    answers: tuple[str, ...]
    streams: bool = False
    envelope: Envelope = "openai"
    refusals: tuple[int, ...] = WITH_BODY
    unready: str | None = None  # the answer of status 503 where it is no error
    query: Mapping[str, Schema] | None = None
    needs_key: bool = True


OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/chat/completions"): Operation(
        id="createChatCompletion",
        tag="OpenAI",
        request="openai.ChatRequest",
        answers=("openai.Completion",),
        streams=True,
    ),
    ("POST", "/v1/completions"): Operation(
        id="createCompletion",
        tag="OpenAI",
        request="openai.CompletionRequest",
        answers=("openai.TextCompletion",),
        streams=True,
    ),
    ("POST", "/v1/responses"): Operation(
        id="createResponse",
        tag="OpenAI",
        request="responses.ResponsesRequest",
        answers=("responses.ResponseObject",),
        streams=True,
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        id="countResponseInputTokens",
        tag="OpenAI",
        request="responses.ResponsesRequest",
        answers=("responses.InputTokens",),
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        id="retrieveResponse",
        tag="OpenAI",
        answers=("responses.ResponseObject",),
        refusals=WITHOUT,
        query={"stream": {"type": "boolean", "const": False}},
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        id="deleteResponse", tag="OpenAI", answers=("responses.Deleted",), refusals=WITHOUT
    ),
    ("POST", "/v1/messages"): Operation(
        id="createMessage",
        tag="Anthropic",
        request="anthropic.MessagesRequest",
        answers=("anthropic.AnswerMessage",),
        streams=True,
        envelope="anthropic",
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        id="countMessageTokens",
        tag="Anthropic",
        request="anthropic.CountRequest",
        answers=("anthropic.InputTokens",),
        envelope="anthropic",
    ),
    ("GET", "/v1/models"): Operation(
        id="listModels",
        tag="Models",
        answers=("openai.Models", "anthropic.ModelPage"),
        envelope="either",
        refusals=WITHOUT,
    ),
    ("GET", "/v1/models/{id}"): Operation(
        id="retrieveModel",
        tag="Models",
        answers=("openai.Model", "anthropic.ModelInfo"),
        envelope="either",
        refusals=WITHOUT,
    ),
    ("GET", "/health"): Operation(
        id="health", tag="Server", answers=("keepwarm.Health",), envelope="either", refusals=OPEN, needs_key=False
    ),
    ("GET", "/ready"): Operation(
        id="ready",
        tag="Server",
        answers=("keepwarm.Ready",),
        envelope="either",
        refusals=OPEN,
        unready="keepwarm.Ready",
        needs_key=False,
    ),
    ("GET", "/openapi.json"): Operation(
        id="describe", tag="Server", answers=("keepwarm.Document",), envelope="either", refusals=OPEN, needs_key=False
    ),
}


@cache
def document(routes: tuple[Route, ...]) -> bytes:
    """Describe these routes. Raises KeyError for one that the table lacks."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(OPERATIONS[method, path], path, summary)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Keepwarm",
                "version": _version(),
                "description": "OpenAI's and Anthropic's APIs over one engine that keeps the prefixes of prompts warm.",
            },
            "paths": paths,
            "components": {"schemas": schemas(), "responses": _refusals(), "securitySchemes": _SECURITY_SCHEMES},
        }
    )


def _version() -> str:
    try:
        return version("keepwarm")
    except PackageNotFoundError:  # run from a folder that is not installed
        return "unknown"


def schemas() -> dict[str, Schema]:
    """Return every schema by its name, which begins with the API that it belongs to."""
    found: dict[str, Schema] = dict(PLAIN)
    for api, structs in STRUCTS.items():
        _, parts = msgspec.json.schema_components(structs, ref_template=f"#/components/schemas/{api}.{{name}}")
        found |= {f"{api}.{name}": _portable(schema) for name, schema in parts.items()}
    return found


def _portable(value: Any) -> Any:
    """Write patterns as every dialect of regular expressions reads them."""
    if isinstance(value, dict):
        return {
            key: item.replace(r"\Z", "$") if key == "pattern" and isinstance(item, str) else _portable(item)
            for key, item in value.items()
        }
    return [_portable(item) for item in value] if isinstance(value, list) else value


def _operation(operation: Operation, path: str, summary: str) -> dict[str, Any]:
    told: dict[str, Any] = {"operationId": operation.id, "summary": summary, "tags": [operation.tag]}
    parameters = _parameters(operation, path)
    if parameters:
        told["parameters"] = parameters
    if operation.request is not None:
        told["requestBody"] = {"required": True, "content": _json(operation.request)}
    told["responses"] = _answers(operation)
    # the empty one: where no keys are configured, none is asked for
    told["security"] = [{"bearer": []}, {"apiKey": []}, {}] if operation.needs_key else []
    return told


def _parameters(operation: Operation, path: str) -> list[Schema]:
    found: list[Schema] = []
    if "{id}" in path:
        found.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    for name, schema in (operation.query or {}).items():
        found.append({"name": name, "in": "query", "schema": schema})
    if operation.needs_key and operation.envelope != "openai":
        found.append({"name": VERSION_HEADER, "in": "header", "schema": _STRING})
    return found


def _answers(operation: Operation) -> dict[str, Schema]:
    content = dict(_json(*operation.answers))
    if operation.streams:
        content["text/event-stream"] = {}  # one schema cannot describe several events
    answers: dict[str, Schema] = {"200": {"description": "The answer.", "content": content}}
    for status in operation.refusals:
        answers[str(status)] = {"$ref": f"#/components/responses/{operation.envelope}.{status}"}
    if operation.unready is not None:
        answers["503"] = {"description": "Not ready.", "content": _json(operation.unready)}
    return answers


def _refusals() -> dict[str, Schema]:
    """Describe errors in each API's envelope, and in either where the caller's headers decide."""
    envelopes: Mapping[Envelope, Sequence[str]] = {
        "openai": ("openai.Error",),
        "anthropic": ("anthropic.Error",),
        "either": ("openai.Error", "anthropic.Error"),
    }
    found: dict[str, Schema] = {}
    for envelope, names in envelopes.items():
        for status in WITH_BODY:
            refusal: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": _json(*names)}
            if status in REFUSED_BY_HEADER:
                refusal["headers"] = {REFUSED_BY_HEADER[status]: {"schema": _STRING}}
            found[f"{envelope}.{status}"] = refusal
    return found


def _json(*names: str) -> dict[str, Schema]:
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}
