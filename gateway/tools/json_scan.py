"""JSON in the making: an automaton that says of each character whether it can come.

Pure, and no recursion: depth costs a list entry. Strict, but for raw control characters in strings: models write line
breaks there and mean them, so they are taken, and written as their escapes.
"""

from __future__ import annotations

import json

BLANKS = " \t\r\n"

_DIGITS = "0123456789"
_HEX = "0123456789abcdefABCDEF"
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_NUMBERS = {  # state → what may come → next state
    "minus": {"0": "zero", **dict.fromkeys("123456789", "int")},
    "zero": {".": "dot", "e": "e", "E": "e"},
    "int": {**dict.fromkeys(_DIGITS, "int"), ".": "dot", "e": "e", "E": "e"},
    "dot": dict.fromkeys(_DIGITS, "fraction"),
    "fraction": {**dict.fromkeys(_DIGITS, "fraction"), "e": "e", "E": "e"},
    "e": {"+": "sign", "-": "sign", **dict.fromkeys(_DIGITS, "exponent")},
    "sign": dict.fromkeys(_DIGITS, "exponent"),
    "exponent": dict.fromkeys(_DIGITS, "exponent"),
}
_INSIDE = frozenset({"string", "escape", "hex", "word"})
_COMPLETE = ("zero", "int", "fraction", "exponent")


class Json:
    """A JSON value. `state` says what may come; `stack` holds what must close the objects and lists that are open."""

    __slots__ = ("_left", "in_key", "stack", "state")

    def __init__(self) -> None:
        self.state = "value"
        self.stack: list[str] = []
        self.in_key = False
        self._left = ""  # of a word or a \u escape

    def take(self, char: str) -> bool:
        """Move by one character; False where it cannot come here, and then nothing more may come."""
        if self.state in _NUMBERS:
            return self._number(char)
        if self.state in _INSIDE:
            return self._inside(char)
        return char in BLANKS or self._between(char)

    def _inside(self, char: str) -> bool:
        """Take a character inside a string or a word."""
        possible = True
        match self.state:
            case "string" if char == '"':
                self.state = "colon" if self.in_key else self._next()
            case "string" if char == "\\":
                self.state = "escape"
            case "escape":
                self.state, self._left = ("hex", "0000") if char == "u" else ("string", "")
                possible = char in '"\\/bfnrtu'
            case "hex":
                self._left = self._left[1:]
                self.state = "hex" if self._left else "string"
                possible = char in _HEX
            case "word":
                possible = char == self._left[0]
                self._left = self._left[1:]
                self.state = "word" if self._left else self._next()
        return possible

    def _number(self, char: str) -> bool:
        """Take a character inside a number, or the one that ends it."""
        following = _NUMBERS[self.state].get(char)
        if following is not None:
            self.state = following
            return True
        if self.state not in _COMPLETE:
            return False
        self.state = self._next()
        return self.take(char)

    def _between(self, char: str) -> bool:
        """Take a character that is neither blank nor inside a scalar."""
        match self.state, char:
            case (("key" | "first key"), '"'):
                self.state, self.in_key = "string", True
            case "colon", ":":
                self.state = "value"
            case "after", ",":
                self.state = "key" if self.stack[-1] == "}" else "value"
            case (("after" | "first key" | "first item"), ("}" | "]")) if self._closes(char):
                self.stack.pop()
                self.state = self._next()
            case (("value" | "first item"), _):
                return self._value(char)
            case _:
                return False
        return True

    def _closes(self, char: str) -> bool:
        return bool(self.stack) and self.stack[-1] == char

    def _value(self, char: str) -> bool:
        """Take the first character of a value."""
        if char == "{":
            self.stack.append("}")
            self.state = "first key"
        elif char == "[":
            self.stack.append("]")
            self.state = "first item"
        elif char == '"':
            self.state, self.in_key = "string", False
        elif char in _WORDS:
            self.state, self._left = "word", _WORDS[char]
        elif char == "-":
            self.state = "minus"
        elif char in _DIGITS:
            self.state = "zero" if char == "0" else "int"
        else:
            return False
        return True

    def _next(self) -> str:
        return "after" if self.stack else "end"


def object_text(text: str) -> str | None:
    """Return `text` as the JSON object that it spells; None where it spells none. Nothing and null are `{}`."""
    text = text.strip(BLANKS)
    if text in {"", "null"}:
        return "{}"
    scanner = Json()
    letters = []
    for char in text:
        letters.append(written(char) if scanner.state == "string" else char)
        if not scanner.take(char):
            return None
    return "".join(letters) if text[0] == "{" and scanner.state == "end" else None


def written(char: str) -> str:
    """Return a character of a JSON string, escaped if it may not stand there raw."""
    return char if char >= " " else json.dumps(char)[1:-1]
