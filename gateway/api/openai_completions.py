"""OpenAI's completions: a prompt without a conversation, in and out. Pure: no HTTP, no clock.

Rules: several prompts are answered apart and never joined, choice `prompt × n + k` is the k-th answer of a prompt; each
prompt counts once. A text prompt is read as the tokenizer reads any text, so here the client may write control tokens.
"""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from gateway.api.extension import Keepwarm, extension_of
from gateway.api.json_body import decode
from gateway.api.openai_answers import (
    LAST_EVENT,
    FinishReason,
    Usage,
    event,
    finish_reason,
    to_json,
    usage_of,
)
from gateway.api.openai_fields import INT64_MAX, Choices, SamplingFields, form_of, stops_of
from gateway.api.prompt_logprobs import PromptLogprobs, prompt_logprobs_of
from gateway.ask import Ask
from gateway.errors import BadRequest
from gateway.events import Began, Done, Ended, Event, Logprob, Text
from gateway.usage import Facts

MAX_PROMPTS = 128
DEFAULT_TOKENS = 16  # as OpenAI's


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """A body of POST /v1/completions, as far as it is understood."""

    model: str
    prompt: str | list[Any]
    max_tokens: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    n: Choices | None = None
    best_of: Choices | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None


class Logprobs(msgspec.Struct, frozen=True, kw_only=True):
    """How likely the tokens were; `text_offset` counts characters of the choice's text."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]
    text_offset: tuple[int, ...]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, or in a chunk more of it."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    keepwarm: Keepwarm | UnsetType = UNSET


_DECODER = msgspec.json.Decoder(CompletionRequest)


def parse(body: bytes) -> CompletionRequest:
    """Read a body. Raises BadRequest naming the field."""
    request: CompletionRequest = decode(_DECODER, body)
    request.check()
    if request.suffix:
        raise BadRequest("suffix is not supported: these models only go on.", param="suffix", code="unsupported_value")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise BadRequest("best_of is only supported equal to n.", param="best_of", code="unsupported_value")
    return request


def asks_of(request: CompletionRequest, answer_id: str, *, tenant: str = "default") -> list[Ask]:
    """Return one `Ask` per prompt. Raises BadRequest for a prompt that is none."""
    wish = request.wish()
    return [
        Ask(
            api="completions",
            id=answer_id if not place else f"{answer_id}-p{place}",
            model=request.model,
            raw=raw,
            output=form_of(None, request.structured_outputs),
            max_tokens=0 if wish.prewarm else DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens,
            sampling=request.sampling(request.logprobs),
            stops=stops_of(request.stop),
            stop_ids=tuple(request.stop_token_ids or ()),
            ignore_eos=bool(request.ignore_eos),
            choices=request.n or 1,
            prompt_logprobs=_prompt_logprobs(request),
            tenant=tenant,
            partition=request.prompt_cache_key or "",
            wish=wish,
            prompt_field="prompt" if isinstance(request.prompt, str) or _is_ids(request.prompt) else f"prompt[{place}]",
            compared_with=request.compared_with,
        )
        for place, raw in enumerate(_prompts(request.prompt))
    ]


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """Return how many alternatives are told beside each prompt token: as many as the field that wants most of them."""
    echoed = request.logprobs if request.echo else None
    return max((asked for asked in (echoed, request.prompt_logprobs) if asked is not None), default=None)


def _prompts(prompt: str | list[Any]) -> list[str | bytes]:
    if isinstance(prompt, str):
        return [_text(prompt, "prompt")]
    if not prompt:
        raise BadRequest("The prompt is empty.", param="prompt")
    if _is_ids(prompt):
        return [_ids(prompt, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise BadRequest(f"At most {MAX_PROMPTS} prompts are allowed, not {len(prompt)}.", param="prompt")
    return [_prompt(item, f"prompt[{place}]") for place, item in enumerate(prompt)]


def _is_ids(prompt: list[Any]) -> bool:
    return all(isinstance(item, int) for item in prompt)


def _prompt(item: object, path: str) -> str | bytes:
    if isinstance(item, str):
        return _text(item, path)
    if isinstance(item, list) and item:
        return _ids(item, path)
    raise BadRequest("A prompt is a text or a list of token ids.", param=path)


def _text(text: str, path: str) -> str:
    if not text:
        raise BadRequest("The prompt is empty.", param=path)
    return text


def _ids(ids: Sequence[object], path: str) -> bytes:
    for place, one in enumerate(ids):
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 2**32:
            raise BadRequest("A token id is a whole number from 0.", param=f"{path}[{place}]")
    return np.array(ids, dtype="<u4").tobytes()


class Answer:
    """Shapes one answer, whole or streamed. The extension rides on the last chunk, whichever that is."""

    def __init__(
        self,
        request: CompletionRequest,
        asks: Sequence[Ask],
        created: int,
        spell: Callable[[bytes], str],
    ) -> None:
        """Prepare the parts that everything shares; `spell` writes token ids as text, for `echo`."""
        self._request = request
        self._asks = asks
        self._created = created
        self._spell = spell
        self._place = 0
        self._done: list[Facts] = []
        self._lengths: Counter[int] = Counter()  # characters of each choice so far
        self._finish: CompletionChoice | None = None

    def turn_to(self, place: int) -> None:
        """Go on to the prompt at `place`."""
        self._place = place

    def whole(self, answers: Sequence[Sequence[Event]]) -> bytes:
        """Shape a whole answer from the events of each prompt."""
        parts: list[CompletionChoice] = []
        prompts: list[PromptLogprobs | UnsetType] = []
        each = self._asks[0].choices
        for place, events in enumerate(answers):
            self.turn_to(place)
            parts += [part for one in events for part in self._parts(one)]
            top = self._request.prompt_logprobs
            prompts.append(UNSET if top is None else prompt_logprobs_of(events, top))
        choices = tuple(
            _joined(index, [part for part in parts if part.index == index], prompts[index // each])
            for index in range(len(self._asks) * each)
        )
        return to_json(self._completion(choices, usage=usage_of(*self._done), keepwarm=self._extension()))

    def shape(self, one: Event) -> bytes:
        """Shape an event of a stream; some need no chunk of their own."""
        usage = None if self._request.include_usage else UNSET
        parts, held = self._parts(one), self._finish
        if isinstance(one, Ended):  # the last end of all waits for the extension
            self._finish, parts = parts[0], [] if held is None else [held]
        chunks = b"".join(event(self._completion((part,), usage=usage)) for part in parts)
        if not isinstance(one, Done) or len(self._done) < len(self._asks) or held is None:
            return chunks
        extension = self._extension()
        if not self._request.include_usage:
            return chunks + event(self._completion((held,), keepwarm=extension)) + LAST_EVENT
        last = self._completion((), usage=usage_of(*self._done), keepwarm=extension)
        return chunks + event(self._completion((held,), usage=None)) + event(last) + LAST_EVENT

    def _completion(
        self,
        choices: tuple[CompletionChoice, ...],
        usage: Usage | UnsetType | None = UNSET,
        keepwarm: Keepwarm | UnsetType = UNSET,
    ) -> TextCompletion:
        return TextCompletion(
            id=self._asks[0].id,
            created=self._created,
            model=self._request.model,
            choices=choices,
            usage=usage,
            keepwarm=keepwarm,
        )

    def _extension(self) -> Keepwarm | UnsetType:
        """Return the extension; several prompts have none in common."""
        return extension_of(self._done[0]) if len(self._done) == 1 else UNSET

    def _parts(self, one: Event) -> list[CompletionChoice]:
        """Return what an event adds to the choices."""
        ask = self._asks[self._place]
        match one:
            case Began(prompt_logprobs=rows) if self._request.echo:
                prompt = ask.raw if isinstance(ask.raw, str) else self._spell(ask.raw or b"")
                rows = tuple(replace(row, top=row.top[: self._request.logprobs]) for row in rows)
                return [self._part(choice, prompt, rows) for choice in range(ask.choices)]
            case Text():
                return [self._part(one.choice, one.text, one.logprobs)]
            case Ended():
                index = self._place * ask.choices + one.choice
                return [CompletionChoice(index=index, text="", finish_reason=finish_reason(one.reason))]
            case Done():
                self._done.append(one.facts)
        return []

    def _part(self, choice: int, text: str, rows: Sequence[Logprob]) -> CompletionChoice:
        index = self._place * self._asks[0].choices + choice
        logprobs = None if self._request.logprobs is None else _logprobs(rows, self._lengths[index])
        self._lengths[index] += len(text)
        return CompletionChoice(index=index, text=text, logprobs=logprobs)


def _logprobs(rows: Sequence[Logprob], begin: int) -> Logprobs:
    """Shape the rows of a text that begins at character `begin` of its choice; what nothing tells of is null."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets = []
    for row in rows:
        offsets.append(begin)
        begin += len(decoder.decode(row.spelling))
    return Logprobs(
        tokens=tuple(row.token for row in rows),
        token_logprobs=tuple(None if math.isnan(row.logprob) else row.logprob for row in rows),
        top_logprobs=tuple(
            None if math.isnan(row.logprob) else {other.token: other.logprob for other in row.top} for row in rows
        ),
        text_offset=tuple(offsets),
    )


def _joined(
    index: int, parts: Sequence[CompletionChoice], prompt_logprobs: PromptLogprobs | UnsetType
) -> CompletionChoice:
    """Join what came of one choice."""
    told = [part.logprobs for part in parts if part.logprobs is not None]
    return CompletionChoice(
        index=index,
        text="".join(part.text for part in parts),
        logprobs=Logprobs(
            tokens=tuple(token for rows in told for token in rows.tokens),
            token_logprobs=tuple(value for rows in told for value in rows.token_logprobs),
            top_logprobs=tuple(top for rows in told for top in rows.top_logprobs),
            text_offset=tuple(offset for rows in told for offset in rows.text_offset),
        )
        if told
        else None,
        finish_reason=next((part.finish_reason for part in parts if part.finish_reason), None),
        prompt_logprobs=prompt_logprobs,
    )
