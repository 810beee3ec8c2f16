"""Reads one call, a JSON object, character by character, and sends its arguments while they are being written.

Pure. Each character is looked at once, so reading costs O(1) a character however deep or long the object is.
Rule: until a call has begun everything is held, and can still become text; once it has begun nothing is taken back.
Knows nothing of what stands around a call: markers, lists and separators are `gateway.tools.reader`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal

from gateway.events import CallArguments, CallBegan, Text
from gateway.tools.json_scan import BLANKS, Json, object_text, written

CALL_KEYS = ("name", "arguments", "parameters", "type", "id", "function")
NAME_KEYS = ("name", "function")
ARGUMENT_KEYS = ("arguments", "parameters")

Verdict = Literal["call", "text", "cut"]  # a call; never one; one that broke off inside its arguments
Piece = Text | CallBegan | CallArguments

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # inside a string, up to what means something


class Outlet:
    """What goes out of a parser, in order, and what is held back."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        """Begin with nothing; calls will be numbered from 0 and named by `new_id`."""
        self._new_id = new_id
        self._pieces: list[Piece] = []
        self._run: list[str] = []  # of one kind
        self._run_is_text = True
        self._held: list[str] = []
        self._calls = 0
        self.after_call = False  # nothing but a call was sent last

    def hold(self, text: str) -> None:
        """Keep back what may be part of a call."""
        self._held.append(text)

    def release(self) -> None:
        """Send what was held as text, but for the blanks that follow a call."""
        held = "".join(self._held)
        self._held.clear()
        if self.after_call:
            held = held.lstrip(BLANKS)
        self.text(held)

    def drop(self) -> None:
        """Forget what was held: it is how a call is spelled."""
        self._held.clear()

    def text(self, text: str) -> None:
        """Send text."""
        if text:
            self._append(text, is_text=True)
            self.after_call = False

    def begin(self, name: str) -> None:
        """Send that a call began; what was held belongs to it."""
        self.drop()
        self._flush()
        self._pieces.append(CallBegan(self._calls, self._new_id(), name))
        self._calls += 1
        self.after_call = True

    def arguments(self, text: str) -> None:
        """Send more of the arguments of the call that began last."""
        self._append(text, is_text=False)

    def take(self) -> list[Piece]:
        """Return what was sent since the last time."""
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _append(self, text: str, *, is_text: bool) -> None:
        if is_text != self._run_is_text:
            self._flush()
            self._run_is_text = is_text
        self._run.append(text)

    def _flush(self) -> None:
        run = "".join(self._run)
        self._run.clear()
        if run:
            self._pieces.append(Text(run) if self._run_is_text else CallArguments(self._calls - 1, run))


class CallScanner:
    """Reads one call. `verdict` is None while it is open; `name` given, only its arguments are read."""

    def __init__(self, outlet: Outlet, names: frozenset[str], *, bare: bool, name: str | None = None) -> None:
        """Read a call to one of `names`. One that no marker announced (`bare`) must look like a call from the start."""
        self._outlet = outlet
        self._names = names
        self._bare = bare
        self._json = Json()
        self._name = name
        self._arguments: str | None = None
        self._level = 0 if name is not None else 1  # how deep the call's own keys are
        self._key = "" if name is None else "arguments"
        self._raw: list[str] | None = None  # of the key or value that is being collected
        self._guessing = False  # whether what is being collected may still become one of the words that count
        self._streaming = False
        self._begun = False
        self.verdict: Verdict | None = None

    def scan(self, text: str, position: int) -> int:
        """Read `text` from `position` until there is a verdict, and return where reading stopped."""
        while position < len(text) and self.verdict is None:
            run = _PLAIN.match(text, position) if self._may_run() else None
            if run:
                self._note(run[0])
                position = run.end()
                continue
            char, before, depth = text[position], self._json.state, len(self._json.stack)
            if not self._json.take(char):
                self._break()
                return position
            position += 1
            self._note(written(char) if before == "string" and self._begun else char, before, depth)
        return position

    def _may_run(self) -> bool:
        """Whether plain characters of a string can be taken together: not where each may decide."""
        scanner = self._json
        if scanner.state != "string":
            return False
        return len(scanner.stack) > self._level or not (scanner.in_key or self._key in NAME_KEYS)

    def _break(self) -> None:
        if not self._begun:
            self.verdict = "text"
        else:
            self.verdict = "cut" if self._streaming else "call"

    def _note(self, piece: str, before: str = "string", depth: int | None = None) -> None:
        """Act on what the automaton just took; `before` and `depth` are its state and depth until then."""
        scanner = self._json
        if not self._begun:
            self._outlet.hold(piece)
        if self._streaming:
            self._outlet.arguments(piece)
            self._streaming = len(scanner.stack) > self._level
        elif self._raw is not None:
            self._raw.append(piece)
            self._collected()
        elif depth == self._level and piece not in BLANKS:
            if before in {"key", "first key"} and scanner.state == "string":
                self._raw = [piece]
                self._guessing = self._bare and not self._begun
            elif before == "value":
                self._value(piece)
        if scanner.state == "end" and self.verdict is None:
            self._end()
        self._level = min(self._level, max(len(scanner.stack), 1)) if self._level else 0

    def _collected(self) -> None:
        """Act on a key or value that grew."""
        scanner, raw = self._json, self._raw or []
        if scanner.in_key and scanner.state == "colon" and len(scanner.stack) == self._level:
            self._key, self._raw = json.loads("".join(raw), strict=False), None
            if self._bare and not self._begun and self._key not in CALL_KEYS:
                self.verdict = "text"
        elif len(scanner.stack) == self._level and scanner.state == "after":
            self._raw = None
            self._known("".join(raw))
        elif self._guessing and len(scanner.stack) == self._level:
            candidates = CALL_KEYS if scanner.in_key else self._names if self._key in NAME_KEYS else None
            start = "".join(raw[1:])
            self._guessing = scanner.state == "string"  # a string with escapes is judged at its end
            if self._guessing and candidates is not None and not any(word.startswith(start) for word in candidates):
                self.verdict = "text"

    def _value(self, first: str) -> None:
        """Decide by its first character what becomes of a value at the call's own level."""
        if self._key in ARGUMENT_KEYS and self._arguments is None and not self._begun:
            if first == "{" and self._name is not None:
                self._begin()
                self._outlet.arguments(first)
                self._streaming = True
            elif first in '{"n':
                self._raw, self._guessing = [first], False
            else:
                self.verdict = "text"
        elif self._key in NAME_KEYS and self._name is None:
            if first == '"':
                self._raw, self._guessing = [first], self._bare
            elif first == "{" and self._key == "function":
                self._level += 1
            else:
                self.verdict = "text"

    def _known(self, raw: str) -> None:
        """Take the name, or the arguments that could not be sent as they came."""
        if self._key in NAME_KEYS:
            self._name = json.loads(raw, strict=False)
            if self._name not in self._names:
                self.verdict = "text"
                return
        else:
            self._arguments = object_text(json.loads(raw, strict=False) if raw[0] == '"' else raw)
            if self._arguments is None:
                self.verdict = "text"
                return
        if self._name is not None and self._arguments is not None:
            self._begin()
            self._outlet.arguments(self._arguments)

    def _begin(self) -> None:
        self._begun = True
        self._outlet.begin(self._name or "")

    def _end(self) -> None:
        """Decide, now that the object is closed."""
        if not self._begun and self._name is not None and not self._bare:
            self._begin()
            self._outlet.arguments("{}")
        self.verdict = "call" if self._begun else "text"
