"""Finds tool calls in an answer as it comes: what announces a call, what stands between calls, what ends them.

Pure. One reader serves every convention; a `Spelling` says how they differ. Rules: text goes out as soon as it cannot
announce a call; what turns out not to be a call is text, exactly as written; the outcome never depends on where the
answer was cut. Blanks directly before, between and after calls are dropped. A call begins when its name is known and
its arguments open: if these break off later, what was sent stays sent, and what follows is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.ask import Tool
from gateway.events import CallArguments, CallBegan, Text
from gateway.tools.json_scan import BLANKS
from gateway.tools.scan import CallScanner, Outlet

_State = Callable[[str, int], int]  # takes the text and where to read it, returns how far it read

FENCE = "```"
_LANGUAGE = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a convention spells calls. `opening` may stand anywhere; its first character does not come twice in it."""

    opening: str = ""
    closing: str = ""  # after the calls that `opening` announced
    bare: bool = False  # an answer may also begin with a call, unannounced
    fence: bool = False  # and a Markdown fence may stand around it
    lists: bool = True  # a JSON list of calls counts
    between: str = ""  # a character that may stand between two calls, beside blanks
    named: tuple[str, ...] = ()  # after `opening`: a name, then these markers, the last before the arguments


class Reader:
    """Reads one answer."""

    def __init__(self, spelling: Spelling, tools: Sequence[Tool], new_id: Callable[[], str]) -> None:
        """Begin to read an answer in which `tools` may be called."""
        assert not spelling.opening or spelling.opening[0] not in spelling.opening[1:]
        self._spelling = spelling
        self._names = frozenset(tool.name for tool in tools)
        self._outlet = Outlet(new_id)
        self._state: _State = self._start
        self._call = CallScanner(self._outlet, self._names, bare=True)
        self._marker = ""  # what is being matched
        self._matched = 0
        self._closing = ""  # what ends the calls that are being read
        self._announced = False
        self._listed = False
        self._name = ""  # of a call whose name stands before its arguments
        stops = re.escape(BLANKS + spelling.opening[:1])
        self._run = re.compile(f"[^{stops}]+" if spelling.opening else r"(?s:.+)")

    def feed(self, text: str) -> list[Text | CallBegan | CallArguments]:
        """Take the next piece and return what is certain now."""
        position = 0
        while position < len(text):
            position = self._state(text, position)
        return self._outlet.take()

    def finish(self) -> list[Text | CallBegan | CallArguments]:
        """Return what was held back: the answer is over. Half of what ends a call is not text."""
        if self._outlet.after_call and self._state in {self._after, self._close, self._item, self._separated}:
            self._outlet.drop()
        self._outlet.release()
        return self._outlet.take()

    # Each state takes at least one character or hands it, unseen, to another state that does.

    def _start(self, text: str, position: int) -> int:
        """Nothing but blanks was said."""
        spelling, char = self._spelling, text[position]
        if char in BLANKS:
            return self._hold(char, position)
        if spelling.bare and spelling.fence and char == FENCE[0]:
            return self._match(FENCE, self._fence, position)
        if spelling.bare and self._opens(char):
            return self._item(text, position)
        self._state = self._text
        return position

    def _text(self, text: str, position: int) -> int:
        """Text, in which `opening` may come."""
        run = self._run.match(text, position)
        if run:
            self._outlet.release()
            self._outlet.text(run[0])
            return run.end()
        if text[position] in BLANKS:
            return self._hold(text[position], position)
        return self._match(self._spelling.opening, self._open, position)

    def _open(self, text: str, position: int) -> int:
        """Inside `opening`, or behind it."""
        if self._matching(text[position]):
            return self._hold(text[position], position)
        if self._matched < len(self._marker):
            return self._give_up(position)
        self._announced, self._listed, self._closing = True, False, self._spelling.closing
        if self._spelling.named and not self._opens(text[position]) and text[position] not in BLANKS:
            self._name = ""
            self._state = self._named
            return position
        return self._item(text, position)

    def _fence(self, text: str, position: int) -> int:
        """Inside an opening fence, or behind it, where the language may stand."""
        char = text[position]
        if self._matching(char):
            return self._hold(char, position)
        if self._marker == FENCE and self._matched == len(FENCE) and char == _LANGUAGE[0]:
            return self._match(_LANGUAGE, self._fence, position)
        if self._matched < len(self._marker):
            return self._give_up(position)
        self._closing = FENCE
        return self._item(text, position)

    def _item(self, text: str, position: int) -> int:
        """Where a call must come, or a list of calls."""
        char = text[position]
        self._state = self._item
        if char in BLANKS:
            return self._hold(char, position)
        if char == "[" and self._spelling.lists and not self._listed:
            self._listed = True
            return self._hold(char, position)
        if char != "{":
            return self._give_up(position)
        self._call = CallScanner(self._outlet, self._names, bare=not self._announced)
        self._state = self._in_call
        return position

    def _in_call(self, text: str, position: int) -> int:
        position = self._call.scan(text, position)
        if self._call.verdict == "call":
            self._state = self._after
        elif self._call.verdict is not None:
            self._give_up(position)
        return position

    def _after(self, text: str, position: int) -> int:
        """Behind a call."""
        spelling, char = self._spelling, text[position]
        if char in BLANKS:
            return self._hold(char, position)
        if self._listed and char in ",]":
            return self._in_list(char, position)
        if self._closing and char == self._closing[0]:
            return self._match(self._closing, self._close, position)
        if char == spelling.opening[:1]:
            return self._match(spelling.opening, self._open, position)
        if char == spelling.between:
            self._state = self._separated
            return self._hold(char, position)
        again = char == "{" and not self._listed and (self._closing or spelling.bare)
        return self._item(text, position) if again else self._give_up(position)

    def _in_list(self, char: str, position: int) -> int:
        """Behind a call of a list."""
        if char == ",":
            self._state = self._item
            return self._hold(char, position)
        self._listed = False
        self._outlet.drop()
        return position + 1

    def _separated(self, text: str, position: int) -> int:
        """Behind a separator: a call may come, announced or not."""
        if text[position] == self._spelling.opening[:1]:
            return self._match(self._spelling.opening, self._open, position)
        if text[position] in BLANKS:
            return self._hold(text[position], position)
        return self._item(text, position)

    def _close(self, text: str, position: int) -> int:
        """Inside what ends calls."""
        if not self._matching(text[position]):
            if self._closing[0] == self._spelling.opening[:1]:
                return self._reopen(position)
            return self._give_up(position)
        self._outlet.hold(text[position])
        if self._matched == len(self._marker):
            self._outlet.drop()
            self._closing, self._announced, self._state = "", False, self._after
        return position + 1

    def _reopen(self, position: int) -> int:
        """Go on with what the end and another `opening` share: it may be that."""
        shared = self._marker[: self._matched]
        if not self._spelling.opening.startswith(shared):
            return self._give_up(position)
        self._marker, self._state = self._spelling.opening, self._open
        return position

    def _named(self, text: str, position: int) -> int:
        """Behind `opening`, inside the name of a call."""
        char = text[position]
        if char not in "[{":
            self._name += char
            known = any(name.startswith(self._name) for name in self._names)
            return self._hold(char, position) if known else self._give_up(position)
        if self._name not in self._names:
            return self._give_up(position)
        return self._arguments(text, position)

    def _arguments(self, text: str, position: int) -> int:
        """Behind a name and perhaps its last marker: the arguments must come."""
        char = text[position]
        self._state = self._arguments
        if char in BLANKS:
            return self._hold(char, position)
        if char == "[" and self._marker != self._spelling.named[-1]:
            self._marker, self._matched, self._state = "", 0, self._argument_marker
            return position
        if char != "{":
            return self._give_up(position)
        self._call = CallScanner(self._outlet, self._names, bare=False, name=self._name)
        self._state = self._in_call
        return position

    def _argument_marker(self, text: str, position: int) -> int:
        """Inside a marker between a name and its arguments."""
        marker = self._marker + text[position]
        if not any(known.startswith(marker) for known in self._spelling.named):
            return self._give_up(position)
        self._marker = marker
        if marker in self._spelling.named:
            self._state = self._arguments if marker == self._spelling.named[-1] else self._model_id
        return self._hold(text[position], position)

    def _model_id(self, text: str, position: int) -> int:
        """Behind a marker other than the last: an id that the model made up."""
        if text[position].isalnum():
            return self._hold(text[position], position)
        self._state = self._arguments
        return position

    # ---- moves ----

    def _opens(self, char: str) -> bool:
        return char == "{" or (char == "[" and self._spelling.lists)

    def _hold(self, char: str, position: int) -> int:
        self._outlet.hold(char)
        return position + 1

    def _match(self, marker: str, state: _State, position: int) -> int:
        """Begin to match a marker whose first character is here."""
        self._marker, self._matched, self._state = marker, 0, state
        return position

    def _matching(self, char: str) -> bool:
        """Whether the marker goes on so."""
        going = self._matched < len(self._marker) and self._marker[self._matched] == char
        self._matched += going
        return going

    def _give_up(self, position: int) -> int:
        """Send what was held as text: it is no call. Reading goes on behind it."""
        self._outlet.release()
        self._announced = self._listed = False
        self._closing = ""
        self._state = self._text
        return position
