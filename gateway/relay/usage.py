"""What an upstream says a request cost, in whichever API's words. Pure.

Rule: absent stays absent. A number is taken only where it is a plain count that can be true: cached tokens beyond the
prompt are no answer, and a field that is not there is not zero. Of what comes piece by piece the later word counts,
field by field, and only the whole is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]


class _Lenient(msgspec.Struct, frozen=True):
    """Unknown fields pass."""


_Told = TypeVar("_Told", bound=_Lenient)


class _PromptDetails(_Lenient, frozen=True):
    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None


class _OpenAI(_Lenient, frozen=True):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: _PromptDetails | None = None


class _Creation(_Lenient, frozen=True):
    ephemeral_5m_input_tokens: Count = 0
    ephemeral_1h_input_tokens: Count = 0


class _Anthropic(_Lenient, frozen=True):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_creation: _Creation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Tokens as an upstream told them; None where it told nothing. `prompt` counts all of it, in every API."""

    prompt: int | None = None
    read: int | None = None
    write: int | None = None
    write_5m: int | None = None
    write_1h: int | None = None
    output: int | None = None


NOTHING: Final = Reported()


class Usage:
    """What an answer has said so far of its cost."""

    def __init__(self, *, anthropic: bool) -> None:
        self._told: _OpenAI | _Anthropic = _Anthropic() if anthropic else _OpenAI()
        self.reported: Reported = NOTHING

    def hear(self, usage: msgspec.Raw) -> None:
        """Read a `usage` object. What is not one says nothing."""
        told = self._told
        try:
            if isinstance(told, _Anthropic):
                self._told = told = _merged(told, _ANTHROPIC.decode(usage))
                self.reported = _anthropic(told)
            else:
                self._told = told = _merged(told, _OPENAI.decode(usage))
                self.reported = _openai(told)
        except (msgspec.MsgspecError, RecursionError):
            return


_OPENAI: Final = msgspec.json.Decoder(_OpenAI)
_ANTHROPIC: Final = msgspec.json.Decoder(_Anthropic)


def _merged(before: _Told, after: _Told) -> _Told:
    """Join what came early in a stream with what came late."""
    names = before.__struct_fields__
    return type(before)(
        *[later if (later := getattr(after, name)) is not None else getattr(before, name) for name in names]
    )


def _openai(told: _OpenAI) -> Reported:
    prompt = told.prompt_tokens if told.prompt_tokens is not None else told.input_tokens
    output = told.completion_tokens if told.completion_tokens is not None else told.output_tokens
    details = told.prompt_tokens_details or told.input_tokens_details or _PromptDetails()
    return _sound(prompt=prompt, read=details.cached_tokens, write=details.cache_write_tokens, output=output)


def _anthropic(told: _Anthropic) -> Reported:
    read, write = told.cache_read_input_tokens, told.cache_creation_input_tokens
    prompt = None if told.input_tokens is None else told.input_tokens + (read or 0) + (write or 0)
    split = told.cache_creation
    whole = split is not None and split.ephemeral_5m_input_tokens + split.ephemeral_1h_input_tokens == write
    return _sound(
        prompt=prompt,
        read=read,
        write=write,
        output=told.output_tokens,
        write_5m=split.ephemeral_5m_input_tokens if split is not None and whole else None,
        write_1h=split.ephemeral_1h_input_tokens if split is not None and whole else None,
    )


def _sound(
    *,
    prompt: int | None,
    read: int | None,
    write: int | None,
    output: int | None,
    write_5m: int | None = None,
    write_1h: int | None = None,
) -> Reported:
    """Take cache counts only where they fit into the prompt."""
    if prompt is not None and (read or 0) + (write or 0) > prompt:
        read = write = write_5m = write_1h = None
    return Reported(prompt=prompt, read=read, write=write, write_5m=write_5m, write_1h=write_1h, output=output)
