"""A conversation into a prompt: chat template, then token ids as one little-endian uint32 buffer.

Owns the tokenizer half of transformers and a few threads. Never imports torch: the engine is another process.
Rule: short conversations are rendered at once, long ones in a thread, so the event loop never waits for a prompt; one
path makes all ids, so equal conversations give equal bytes whoever asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerFast

from gateway.detokenize import TokenSpelling
from gateway.encoding import Encoder, Marks, unused_marks
from gateway.errors import ConfigError
from gateway.template import ChatTemplate

Role = Literal["system", "user", "assistant", "tool"]

INLINE_CHARACTERS = 4096  # about a millisecond of work; more goes to a thread
INLINE_TURNS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant turn made. `arguments` is an object, or the client's text where it is not JSON."""

    id: str
    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message. A developer's message is a `system` turn. Absent and empty content are the same: empty text."""

    role: Role
    text: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    breaks: tuple[int, ...] = ()  # marks: after how many characters of `text`, in order


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids as little-endian uint32, 4 bytes each, and where the turns' marks stand among them.

    A mark stands at the last token border at or before the end of the marked text as rendered.
    """

    tokens: bytes
    marks: tuple[int, ...] = ()  # tokens before each mark, in the order of the turns

    def __len__(self) -> int:
        """Count of tokens."""
        return len(self.tokens) // 4


class Renderer:
    """Turns into prompts for one model. Safe to share between threads."""

    def __init__(self, encoder: Encoder, template: ChatTemplate, *, threads: int = 2) -> None:
        """Put tokenizer and template together; `threads` render long conversations."""
        self._encoder = encoder
        self._template = template
        self._shows_tool_calls = "tool_calls" in template.source
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self.spelling = TokenSpelling(encoder.tokenizer)
        identity = (encoder.tokenizer.to_str() + "\0" + template.source).encode()
        self.identity = hashlib.blake2b(identity, digest_size=16).hexdigest()

    @classmethod
    def load(cls, folder: Path, *, clock: Callable[[], datetime] = datetime.now) -> Renderer:
        """Read tokenizer and chat template from a model folder."""
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} holds no usable tokenizer: {error}") from error
        templates = tokenizer.chat_template
        source = templates.get("default") if isinstance(templates, dict) else templates
        if source is None:
            raise ConfigError(f"{folder} has no chat template, so it cannot answer chats: choose an instruct model")
        names = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        encoder = Encoder(tokenizer.backend_tokenizer, unknown=tokenizer.unk_token)
        return cls(encoder, ChatTemplate(source, names=names, clock=clock))

    def least(self, turns: Sequence[Turn]) -> int:
        """Tokens that the turns make at the very least, known without encoding: no token is longer than the longest."""
        return sum(map(len, _texts(turns))) // self._encoder.longest

    async def prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Render without making the event loop wait."""
        if len(turns) <= INLINE_TURNS and sum(map(len, _texts(turns))) <= INLINE_CHARACTERS:
            return self.render(turns)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.render, turns)

    def render(self, turns: Sequence[Turn]) -> Prompt:
        """Render here and now."""
        spelt = any(map(self._encoder.spells_control, _texts(turns)))
        stand_ins = unused_marks([self._template.source, *_texts(turns)]) if spelt else None
        text = self._template.render(self._messages(turns, stand_ins))
        ids = self._encoder.encode(text) if stand_ins is None else self._encoder.encode_marked(text, stand_ins)
        marks = self._marks(turns, text, ids, stand_ins) if any(turn.breaks for turn in turns) else ()
        return Prompt(np.array(ids, dtype="<u4").tobytes(), marks)

    def _marks(self, turns: Sequence[Turn], text: str, ids: list[int], stand_ins: Marks | None) -> tuple[int, ...]:
        """Find where marks stand: render once more with a character of no text at each, and see where it comes out.

        Where the template treats the marked text otherwise, a mark stands at most where both renderings agree.
        """
        sign = unused_marks([self._template.source, *_texts(turns), *(stand_ins or ())]).start
        signed = self._template.render(self._messages([_signed(turn, sign) for turn in turns], stand_ins))
        pieces = signed.split(sign)
        prefixes = ["".join(pieces[: count + 1]) for count in range(len(pieces) - 1)]
        if stand_ins is not None:  # pieces of such a text have no common offsets
            return tuple(_agreement(ids, self._encoder.encode_marked(prefix, stand_ins)) for prefix in prefixes)
        same = len(os.path.commonprefix([text, "".join(pieces)]))  # noqa: RUF071 - characters are meant
        return self._encoder.borders(text, [min(len(prefix), same) for prefix in prefixes])

    def close(self) -> None:
        """Let the threads go."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _messages(self, turns: Sequence[Turn], marks: Marks | None) -> list[dict[str, Any]]:
        def safe(value: Any) -> Any:
            if marks is None:
                return value
            if isinstance(value, str):
                return self._encoder.mark(value, marks)
            if isinstance(value, dict):
                return {safe(key): safe(item) for key, item in value.items()}
            return [safe(item) for item in value] if isinstance(value, list) else value

        return [safe(_message(turn, shows_tool_calls=self._shows_tool_calls)) for turn in turns]


def _message(turn: Turn, *, shows_tool_calls: bool) -> dict[str, Any]:
    """Write the turn as templates read it; tool calls as JSON lines where the template has no words for them."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.name is not None:
        message["name"] = turn.name
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    if turn.tool_calls and shows_tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.tool_calls
        ]
    elif turn.tool_calls:
        calls = [
            json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in turn.tool_calls
        ]
        message["content"] = "\n".join([turn.text, *calls] if turn.text else calls)
    return message


def _agreement(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading ids are the same."""
    differences = (at for at, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other)
    return next(differences, min(len(ids), len(others)))


def _signed(turn: Turn, sign: str) -> Turn:
    """Return the turn with `sign` where its marks are."""
    cuts = [0, *turn.breaks, len(turn.text)]
    return replace(turn, text=sign.join(turn.text[start:end] for start, end in pairwise(cuts)))


def _texts(turns: Iterable[Turn]) -> Iterator[str]:
    """Every text in the turns that a client chose."""
    for turn in turns:
        yield turn.text
        yield turn.name or ""
        yield turn.tool_call_id or ""
        for call in turn.tool_calls:
            yield call.id
            yield call.name
            yield from _strings(call.arguments)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
