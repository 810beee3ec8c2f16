"""A request into a prompt: chat template, then token ids as one little-endian uint32 buffer.

Owns the tokenizer half of transformers and a few threads. Never imports torch: the engine is another process.
Rule: short conversations are rendered at once, long ones in a thread, so the event loop never waits for a prompt; one
path makes all ids, so equal conversations give equal bytes whoever asks, to answer or to count.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerFast

from gateway.ask import Ask, Tool, Turn, texts
from gateway.canonical import canonical
from gateway.detokenize import TokenSpelling
from gateway.dialogue import Dialogue
from gateway.encoding import Encoder, StandIns
from gateway.errors import BadRequest, ConfigError
from gateway.layout import Span, spans
from gateway.nonces import normalise_with_breaks
from gateway.retention import MOST_MARKS
from gateway.segments import Segmenter, Tokenised
from gateway.signs import agreement, place_alone, places, unused_characters
from gateway.template import NOTHING, OURS, ChatTemplate
from gateway.tools.choose import format_of
from prefix_store.text import SegmentIndex

INLINE_CHARACTERS = 4096  # about a millisecond of work; more goes to a thread
INLINE_TURNS = 32


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids as little-endian uint32, 4 bytes each, and where the request's latest marks stand among them.

    A mark stands at the last token border at or before the end of the marked text as rendered.
    """

    tokens: bytes
    marks: tuple[int, ...] = ()  # tokens before each of the latest marks, in rendering order
    normalised: tuple[str, ...] = ()  # rules by which telemetry was taken out
    spans: tuple[Span, ...] = ()  # where each tool and turn lies among the tokens; none of a raw prompt
    encoded: Tokenised | None = None  # the same in characters

    def __len__(self) -> int:
        """Count of tokens."""
        return len(self.tokens) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversation:
    """What one prompt is made of."""

    turns: Sequence[Turn]
    tools: Sequence[Tool]
    continues: bool
    arguments: Mapping[str, Any]
    stand_ins: StandIns | None
    end: str  # a sign for the place from which an answer goes on

    @property
    def marks(self) -> int:
        """How many marks the client set."""
        calls = sum(call.marked for turn in self.turns for call in turn.tool_calls)
        return sum(tool.marked for tool in self.tools) + sum(len(turn.breaks) for turn in self.turns) + calls


class Renderer:
    """Requests into prompts for one model. Safe to share between threads."""

    def __init__(
        self,
        encoder: Encoder,
        template: ChatTemplate,
        *,
        tool_format: str = "auto",
        canonical: bool = True,
        normalises: bool = True,
        text_bytes: int = 64 << 20,
        threads: int = 2,
    ) -> None:
        """Put tokenizer and template together.

        `tool_format` names how the model writes calls, `canonical` makes key order and number spelling in tools not
        count, `normalises` takes listed telemetry out of system text; `text_bytes` of memory remember what long texts
        were encoded to; `threads` render long conversations.
        """
        self._encoder = encoder
        self._template = template
        self._normalises = normalises
        self.format = format_of(template.source, tool_format, ids=encoder.special_ids)
        self._dialogue = Dialogue(template, self.format, canonical=canonical)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self.spelling = TokenSpelling(encoder.tokenizer)
        self._segmenter = Segmenter(encoder, self.spelling, SegmentIndex(text_bytes))
        identity = (encoder.tokenizer.to_str() + "\0" + template.source).encode()
        self.identity = hashlib.blake2b(identity, digest_size=16).hexdigest()

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        clock: Callable[[], datetime] = datetime.now,
        template: str | None = None,
        **options: Any,
    ) -> Renderer:
        """Read tokenizer and chat template from a model folder; `options` are the constructor's.

        `template` takes the place of the model's own. Without either, only raw prompts can be made.
        """
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # the tokenizer's library raises bare ones
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{folder} holds no usable tokenizer: {said}") from error
        templates = tokenizer.chat_template
        own = templates.get("default") if isinstance(templates, dict) else templates
        source = template or own or ""
        names = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        encoder = Encoder(tokenizer.backend_tokenizer, unknown=tokenizer.unk_token)
        try:
            chats = ChatTemplate(source, names=names, clock=clock)
        except jinja2.TemplateSyntaxError as error:
            whose = "--chat-template" if template else f"The chat template of {folder}"
            raise ConfigError(f"{whose}: line {error.lineno}: {error.message}") from error
        return cls(encoder, chats, **options)

    @property
    def chats(self) -> bool:
        """Whether there is a template to write conversations by."""
        return bool(self._template.source)

    def least(self, ask: Ask) -> int:
        """Tokens that a prompt has at the very least, known without encoding: no token is longer than the longest."""
        if isinstance(ask.raw, bytes):
            return len(ask.raw) // 4
        return (
            sum(len(turn.text) for turn in ask.turns) // self._encoder.longest
            if ask.raw is None
            else (len(ask.raw) // self._encoder.longest)
        )

    async def prompt(self, ask: Ask) -> Prompt:
        """Make a request's prompt without making the event loop wait."""
        if isinstance(ask.raw, bytes):
            return Prompt(ask.raw)
        size = (
            len(ask.raw) if ask.raw is not None else sum(map(len, texts(ask.turns, ask.tools, ask.template_arguments)))
        )
        if size <= INLINE_CHARACTERS and len(ask.turns) + len(ask.tools) <= INLINE_TURNS:
            return self.made(ask)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.made, ask)

    def made(self, ask: Ask) -> Prompt:
        """Make a request's prompt here and now."""
        if isinstance(ask.raw, bytes):
            return Prompt(ask.raw)
        if ask.raw is not None:
            return Prompt(_buffer(self._encoder.encode_raw(ask.raw)))
        settings = {name: value for name, value in ask.settings.items() if name in self._template.arguments}
        return self.render(
            ask.turns,
            ask.tools,
            continues=ask.continues,
            arguments={**settings, **ask.template_arguments},
            tenant=ask.tenant,
        )

    def render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        *,
        continues: bool = False,
        arguments: Mapping[str, Any] = NOTHING,
        tenant: str = "default",
    ) -> Prompt:
        """Render a conversation here and now. Raises BadRequest for one that the template refuses, or without one."""
        if not self.chats:
            raise BadRequest(
                "The model has no chat template, so it answers no chats: send its text to /v1/completions, or have the "
                "gateway started with --chat-template.",
                param="messages",
            )
        self._check(arguments)
        turns, normalised = _without_telemetry(turns) if self._normalises else (turns, ())
        written = list(texts(turns, tools, arguments))
        start, end, last = unused_characters([self._template.source, *written], 3)
        spelt = any(map(self._encoder.spells_control, written))
        conversation = _Conversation(
            turns=turns,
            tools=tools,
            continues=continues,
            arguments=arguments,
            stand_ins=StandIns(start, end) if spelt else None,
            end=last,
        )
        text = self._text(conversation)
        encoded = self._segmenter.encode(text, tenant, conversation.stand_ins)
        marks = encoded.borders(self._places(conversation, text)) if conversation.marks else ()
        return Prompt(encoded.ids, marks, normalised, spans(text, encoded, turns, tools), encoded)

    def spell(self, tokens: bytes) -> str:
        """Write a prompt's token ids as text."""
        ids = np.frombuffer(tokens, dtype="<u4").tolist()
        return b"".join(map(self.spelling.bytes_of, ids)).decode(errors="replace")

    def close(self) -> None:
        """Let the threads go."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        for name, value in arguments.items():
            path = f"chat_template_kwargs.{name}"
            if name not in self._template.arguments or name in OURS:
                raise BadRequest(f"The model's chat template knows no {name!r}.", param=path, code="unknown_name")
            canonical(value, path=path)  # refuses what is nested too deep

    def _text(self, conversation: _Conversation, signs: Sequence[str] = ()) -> str:
        """Render, up to where the answer begins or goes on. With `signs`, one (it may be empty) for each mark."""
        turns = list(conversation.turns)
        if conversation.continues:
            turns[-1] = replace(turns[-1], text=turns[-1].text + conversation.end)
        shield = partial(self._shielded, conversation.stand_ins)
        messages, tools = self._dialogue.messages(
            turns, conversation.tools, signs=iter(signs) if signs else None, shield=shield
        )
        text = self._template.render(
            messages,
            tools,
            arguments=shield(dict(conversation.arguments)),
            answer_begins=not conversation.continues,
            signs="".join((*signs, *(conversation.stand_ins or ()))),
        )
        if not conversation.continues:
            return text
        begun, found, _ = text.rpartition(conversation.end)
        if not found:
            message = "The model's chat template does not write the last message's text, so none can go on from it."
            raise BadRequest(message, param="messages")
        return begun

    def _places(self, conversation: _Conversation, text: str) -> list[int]:
        """Find the characters at which the latest marks stand: render with a sign at each, see where they come out."""
        taken = [self._template.source, conversation.end, *(conversation.stand_ins or ())]
        taken += texts(conversation.turns, conversation.tools, conversation.arguments)
        latest = min(conversation.marks, MOST_MARKS)
        signs = unused_characters(taken, latest)
        earlier = [""] * (conversation.marks - latest)
        found = places(self._text(conversation, [*earlier, *signs]), text, "".join(signs))
        if found is None:
            found = []
            for number, sign in enumerate(signs):
                one = [*earlier, *("" for _ in signs)]
                one[len(earlier) + number] = sign
                found.append(place_alone(self._text(conversation, one), text, sign))
        return self._all_placed(conversation, text, found)

    def _all_placed(self, conversation: _Conversation, text: str, found: Sequence[int | None]) -> list[int]:
        """Place the marks whose sign the template did not write: a call's or a text's where the one before stands."""
        tools = [place for place, tool in enumerate(conversation.tools) if tool.marked]
        number = conversation.marks - len(found)  # of the mark among all
        placed = [0]
        for place in found:
            if place is not None:
                placed.append(place)
            elif number < len(tools):
                placed.append(self._end_of_tool(conversation, text, tools[number]))
            else:
                placed.append(placed[-1])
            number += 1
        return placed[1:]

    def _end_of_tool(self, conversation: _Conversation, text: str, place: int) -> int:
        """Find up to where the prompt would be the same if no tool followed, or for the last one if another did."""
        tools = tuple(conversation.tools[: place + 1])
        if len(tools) == len(conversation.tools):
            tools += (replace(tools[-1], name=conversation.end),)
        return agreement(text, self._text(replace(conversation, tools=tools)))

    def _shielded(self, stand_ins: StandIns | None, value: Any) -> Any:
        """Wrap what spells a control token, in every string of a value."""
        if stand_ins is None:
            return value
        if isinstance(value, str):
            return self._encoder.mark(value, stand_ins)
        if isinstance(value, dict):
            shield = partial(self._shielded, stand_ins)
            return {shield(key): shield(item) for key, item in value.items()}
        return [self._shielded(stand_ins, item) for item in value] if isinstance(value, list) else value


def _without_telemetry(turns: Sequence[Turn]) -> tuple[Sequence[Turn], tuple[str, ...]]:
    """Take listed telemetry out of the conversation's first words."""
    if not turns or turns[0].role != "system":
        return turns, ()
    text, breaks, rules = normalise_with_breaks(turns[0].text, turns[0].breaks)
    return ([replace(turns[0], text=text, breaks=breaks), *turns[1:]], rules) if rules else (turns, ())


def _buffer(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()
