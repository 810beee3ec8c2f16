"""A conversation into a prompt: chat template, then token ids as one little-endian uint32 buffer.

Owns the tokenizer half of transformers and a few threads. Never imports torch: the engine is another process.
Rule: short conversations are rendered at once, long ones in a thread, so the event loop never waits for a prompt; one
path makes all ids, so equal conversations give equal bytes whoever asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
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


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids as little-endian uint32, 4 bytes each."""

    tokens: bytes

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
        if any(map(self._encoder.spells_control, _texts(turns))):
            marks = unused_marks([self._template.source, *_texts(turns)])
            ids = self._encoder.encode_marked(self._template.render(self._messages(turns, marks)), marks)
        else:
            ids = self._encoder.encode(self._template.render(self._messages(turns, None)))
        return Prompt(np.array(ids, dtype="<u4").tobytes())

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
