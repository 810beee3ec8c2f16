"""What OpenAI's endpoints have in common on the way in: sampling, stops, cache controls, forms of answers. Pure.

Rule: both spellings of a cache mark are read, OpenAI's `prompt_cache_breakpoint` and the `cache_control` that LiteLLM
and OpenRouter clients send; every refusal names the field by its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.messages import Sampling
from gateway.ask import OutputForm
from gateway.errors import BadRequest
from gateway.retention import AskedMark, Wish

MAX_STOPS = 4
MAX_STOP_LENGTH = 1024  # characters
MAX_CHOICES = 128
MAX_ALTERNATIVES = 20  # log-probabilities told beside a token's own
INT64_MAX = 2**63 - 1

_TOKEN_ID = re.compile(r"[0-9]{1,10}")

TokenCount = Annotated[int, Meta(ge=1, le=INT64_MAX)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A mark at the end of a part: what is before it is to be kept for `ttl`."""

    mode: Literal["explicit"] = "explicit"
    ttl: str | None = None


class CacheControl(msgspec.Struct, frozen=True, kw_only=True):
    """The same mark in Anthropic's spelling."""

    type: Literal["ephemeral"] = "ephemeral"
    ttl: str | None = None


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the request's prompt is to be cached."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema with a name, as `response_format` carries it."""

    name: str | None = None
    schema: dict[str, Any] = {}
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's text is to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's spelling of the same, with more kinds; exactly one is given."""

    json: dict[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields by which every OpenAI endpoint is sampled; `min_p`, `top_k` and others as vLLM names them."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT64_MAX)] | None = None  # 0 and -1: all tokens
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None  # before them nothing ends the answer
    ignore_eos: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_ALTERNATIVES)] | None = None  # not of a stream
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None  # accepted; TTLs are the policy's
    structured_outputs: StructuredOutputs | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, logprobs: int | None = None) -> Sampling:
        """Say how to draw."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            seed=self.seed,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            logit_bias=_biases(self.logit_bias or {}),
            min_tokens=self.min_tokens or 0,
            logprobs=logprobs,
        )

    def wish(self, marks: Sequence[AskedMark] = ()) -> Wish:
        """Say what is to be kept."""
        options = self.prompt_cache_options or CacheOptions()
        return Wish(mode=options.mode or "implicit", ttl=options.ttl, marks=tuple(marks), prewarm=bool(options.prewarm))

    @property
    def compared_with(self) -> str | None:
        """The answer that the client wants the prompt to be compared with."""
        return self.prompt_cache_options.comparison_response_id if self.prompt_cache_options else None

    def check(self) -> None:
        """Refuse combinations that make no sense. Raises BadRequest."""
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise BadRequest("prompt_logprobs is not told in a stream: leave stream out.", param="prompt_logprobs")
        stops_of(self.stop)


def mark_of(path: str, breakpoint_: Breakpoint | None, control: CacheControl | None) -> AskedMark | None:
    """Return the mark that a block carries in either spelling."""
    if breakpoint_ is not None:
        return AskedMark(breakpoint_.ttl, f"{path}.prompt_cache_breakpoint.ttl")
    return None if control is None else AskedMark(control.ttl, f"{path}.cache_control.ttl")


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings. Raises BadRequest for too many, an empty or an endless one."""
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


def form_of(response_format: ResponseFormat | None, structured: StructuredOutputs | None) -> OutputForm | None:
    """Say what the answer is confined to. Raises BadRequest for two forms, or a schema that is not there."""
    if structured is not None:
        if response_format is not None and response_format.type != "text":
            raise BadRequest("Give response_format or structured_outputs, not both.", param="structured_outputs")
        return _structured(structured)
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return OutputForm(kind="json_object", path="response_format")
    if response_format.json_schema is None:
        path = "response_format.json_schema"
        raise BadRequest(f"Missing required field '{path}'.", param=path, code="missing_field")
    path = "response_format.json_schema.schema"
    return OutputForm(kind="json_schema", schema=response_format.json_schema.schema, path=path)


def _structured(asked: StructuredOutputs) -> OutputForm:
    given = [name for name in asked.__struct_fields__ if getattr(asked, name) not in (None, False)]
    if len(given) != 1:
        raise BadRequest(f"Give exactly one form, not {len(given)}.", param="structured_outputs")
    path = f"structured_outputs.{given[0]}"
    if asked.json is not None:
        return OutputForm(kind="json_schema", schema=asked.json, path=path)
    if asked.json_object:
        return OutputForm(kind="json_object", path=path)
    if asked.regex is not None:
        return OutputForm(kind="regex", text=asked.regex, path=path)
    if asked.choice is not None:
        words = " | ".join(msgspec.json.encode(word).decode() for word in asked.choice)
        return OutputForm(kind="lark", text=f"start: {words}", path=path)
    return OutputForm(kind="gbnf" if "::=" in (asked.grammar or "") else "lark", text=asked.grammar or "", path=path)


def _biases(biases: Mapping[str, float]) -> dict[int, float]:
    """Read token ids, which JSON spells as strings."""
    found = {}
    for key, bias in biases.items():
        if not (_TOKEN_ID.fullmatch(key) and int(key) < 2**32):
            raise BadRequest(f"{key!r} is no token id.", param=f"logit_bias.{key[:32]}")
        found[int(key)] = bias
    return found
