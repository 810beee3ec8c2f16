"""One choice of an answer: token deltas in, texts and tool calls out.

Owns the chain that every token passes: bytes into characters, stop strings, tool calls. Pure and synchronous: no
engine, no wire format. Rules: nothing is given out that may still become a stop string or a call; what one piece tells
does not depend on how the engine cut the tokens; a log-probability rides with the text that its token begins.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from engine.messages import Delta, TokenLogprob
from gateway.ask import ToolCall, Turn, arguments_of
from gateway.detokenize import Detokenizer, TokenSpelling
from gateway.events import CallArguments, CallBegan, Ended, Logprob, Text
from gateway.stops import StopScanner
from gateway.tools import CallParser

Part = Text | CallBegan | CallArguments | Ended


class ChoiceReader:
    """Reads one choice."""

    def __init__(
        self,
        choice: int,
        spelling: TokenSpelling,
        *,
        stops: Sequence[str] = (),
        least: int = 0,
        parser: CallParser | None = None,
        shown: Mapping[int, bytes] | None = None,
    ) -> None:
        """Begin. `shown` are special tokens that the `parser` wants to see, and their spelling.

        No stop is looked for in the text of the first `least` tokens.
        """
        self._least = least
        self._choice = choice
        self._spelling = spelling
        self._words = Detokenizer(spelling, shown)
        self._scanner = StopScanner(stops)
        self._parser = parser
        self._called = False
        self._logprobs: deque[tuple[int, Logprob]] = deque()  # with the character at which the token begins
        self._read = 0  # characters made of tokens so far
        self._given = 0  # characters past the stop scanner so far
        self.over = False

    def feed(self, delta: Delta) -> list[Part]:
        """Take more tokens. The last part of a choice is `Ended`; afterwards the choice is `over`."""
        text = self._text(delta)
        self._least -= len(delta.tokens)
        released = text if self._least >= 0 and delta.tokens else self._scanner.feed(text)
        over = self._scanner.hit is not None or delta.finished is not None
        if over and self._scanner.hit is None:
            released += self._scanner.finish()
        self._given += len(released)
        logprobs = self._told(everything=over and self._scanner.hit is None)
        parts: list[Part] = list(self._parsed(released, over=over))
        if logprobs:
            parts.insert(0, Text("", logprobs=logprobs))
        if over:
            self.over = True
            parts.append(self._ended(delta))
        return [replace(part, choice=self._choice) for part in _tidy(parts)]

    def _text(self, delta: Delta) -> str:
        if not delta.logprobs:
            text = self._words.feed(delta.tokens)
            self._read += len(text)
            return text
        pieces = []
        for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
            self._logprobs.append((self._read, spelled(logprob, self._spelling)))
            pieces.append(self._words.feed((token,)))
            self._read += len(pieces[-1])
        return "".join(pieces)

    def _told(self, *, everything: bool) -> tuple[Logprob, ...]:
        told = []
        while self._logprobs and (everything or self._logprobs[0][0] < self._given):
            told.append(self._logprobs.popleft()[1])
        return tuple(told)

    def _parsed(self, text: str, *, over: bool) -> list[Text | CallBegan | CallArguments]:
        if self._parser is None:
            return [Text(text)] if text else []
        parts = self._parser.feed(text) + (self._parser.finish() if over else [])
        self._called = self._called or any(isinstance(part, CallBegan) for part in parts)
        return parts

    def _ended(self, delta: Delta) -> Ended:
        if self._scanner.hit is None and delta.finished is not None and delta.finished.reason == "length":
            return Ended("length")
        if self._called:
            return Ended("tool_calls")
        return Ended("stop") if self._scanner.hit is None else Ended("stop_string", stop=self._scanner.hit)


class Transcript:
    """What one choice said, as it comes back in history: text, calls, and the tokens that were generated."""

    def __init__(self, call_prefix: str) -> None:
        """Begin. `call_prefix` is what the API puts before the ids of calls."""
        self._prefix = call_prefix
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._calls: dict[int, tuple[CallBegan, list[str]]] = {}

    def take(self, tokens: Sequence[int], parts: Iterable[Part]) -> None:
        """Take a delta's tokens and what was read of them."""
        self._tokens += tokens
        for part in parts:
            match part:
                case Text():
                    self._texts.append(part.text)
                case CallBegan():
                    self._calls[part.index] = (part, [])
                case CallArguments():
                    self._calls[part.index][1].append(part.text)

    @property
    def tokens(self) -> bytes:
        """The generated tokens, little-endian uint32."""
        return np.array(self._tokens, dtype="<u4").tobytes()

    @property
    def turn(self) -> Turn:
        """The turn that the answer is."""
        calls = (
            ToolCall(id=self._prefix + call.id, name=call.name, arguments=arguments_of("".join(pieces)))
            for call, pieces in self._calls.values()
        )
        return Turn(role="assistant", text="".join(self._texts), tool_calls=tuple(calls))


def spelled(logprob: TokenLogprob, spelling: TokenSpelling) -> Logprob:
    """Write a token's log-probability, and those of its rivals, in letters."""
    name, raw = spelling.name_of(logprob.token)
    top = tuple(Logprob(*spelling.name_of(token), value, id=token) for token, value in logprob.top)
    return Logprob(name, raw, logprob.logprob, top, id=logprob.token, rank=logprob.rank)


def spelled_prompt(
    logprobs: Sequence[TokenLogprob | None], tokens: bytes, spelling: TokenSpelling
) -> tuple[Logprob, ...]:
    """Do the same for a prompt's tokens, little-endian uint32. Nothing tells how likely the first is: not a number."""
    pairs = zip(logprobs, memoryview(tokens).cast("I"), strict=True) if logprobs else ()
    return tuple(
        Logprob(*spelling.name_of(token), math.nan, id=token) if logprob is None else spelled(logprob, spelling)
        for logprob, token in pairs
    )


def _tidy(parts: list[Part]) -> list[Part]:
    """Join neighbouring texts, and leave out the empty ones that tell nothing."""
    tidy: list[Part] = []
    for part in parts:
        last = tidy[-1] if tidy else None
        if isinstance(part, Text) and isinstance(last, Text):
            tidy[-1] = Text(last.text + part.text, logprobs=last.logprobs + part.logprobs)
        elif not isinstance(part, Text) or part.text or part.logprobs:
            tidy.append(part)
    return tidy
