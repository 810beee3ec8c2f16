"""Text into token ids, where a control token counts only if the chat template wrote it.

Owns two frozen copies of one tokenizer: one recognises special tokens, one reads them as plain text. Neither is ever
changed after construction, so any number of threads may encode at once ("Already borrowed" is what tokenizers raise
when one thread changes a setting while another encodes). Calls release the interpreter lock while they work.
Rule: text that spells a special token and was not written by the template is encoded as text; harmless text gives the
same ids on both paths.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer


class StandIns(NamedTuple):
    """Two characters that occur in no text of a request: they wrap a control token that a client spelt."""

    start: str
    end: str


class Encoder:
    """One tokenizer, safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, *, unknown: str | None = None) -> None:
        """Copy `tokenizer`; `unknown` is its token for characters it cannot spell."""
        self._whole = Tokenizer.from_str(tokenizer.to_str())
        self._whole.no_truncation()
        self._whole.no_padding()
        self._plain = Tokenizer.from_str(self._whole.to_str())
        self._plain.encode_special_tokens = True
        self._control = {
            added.content: (token, added)
            for token, added in self._whole.get_added_tokens_decoder().items()
            if added.special
        }
        longest_first = sorted(self._control, key=len, reverse=True)
        self._pattern = "|".join(map(re.escape, longest_first)) or "(?!)"  # (?!) never matches
        self._spelt = re.compile(self._pattern)
        self._control_ids = {token for content, (token, _) in self._control.items() if content != unknown}
        self._lead = self._find_lead()
        shrinks = self._whole.normalizer is not None  # such a tokenizer may drop characters before it counts
        self.longest = sys.maxsize if shrinks else max(map(len, self._whole.get_vocab()))  # characters of a token

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that recognises special tokens. Not to be changed."""
        return self._whole

    @property
    def special_ids(self) -> dict[str, int]:
        """Every special token's id by its spelling."""
        return {content: token for content, (token, _) in self._control.items()}

    @property
    def strips(self) -> bool:
        """Whether some special token takes the blanks beside it."""
        return any(added.lstrip or added.rstrip for _, added in self._control.values())

    def spells_control(self, text: str) -> bool:
        """Whether `text` contains the spelling of a special token."""
        return self._spelt.search(text) is not None

    def mark(self, text: str, stand_ins: StandIns) -> str:
        """Wrap every spelling of a special token in `text`."""
        return self._spelt.sub(lambda match: f"{stand_ins.start}{match.group()}{stand_ins.end}", text)

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which every special token is meant. Nothing is added, so a template's BOS is alone."""
        return _ids(self._whole, text)

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a text without a template, as the tokenizer itself begins one (BOS where that is its default)."""
        ids: list[int] = self._whole.encode_batch_fast([text], add_special_tokens=True)[0].ids
        return ids

    def ends(self, text: str) -> list[int]:
        """Return the character at which each token of `encode(text)` ends."""
        return [end for _, end in self._whole.encode(text, add_special_tokens=False).offsets]

    def controls(self, text: str, stand_ins: StandIns | None = None) -> Iterator[re.Match[str]]:
        """Find the control tokens that are meant: with `stand_ins`, those that stand outside of them."""
        if stand_ins is None:
            return self._spelt.finditer(text)
        start, end = stand_ins
        either = re.finditer(f"{start}(?:{self._pattern}){end}|({self._pattern})", text)
        return (match for match in either if match.group(1) is not None)

    def encode_marked(self, text: str, stand_ins: StandIns) -> list[int]:
        """Ids of a text in which a special token is meant unless it is wrapped by stand-ins, which are no text."""
        ids: list[int] = []
        strip_next = False
        for piece, control in self._pieces(text, stand_ins):
            plain = piece.lstrip() if strip_next else piece
            if control is not None and control[1].lstrip:
                plain = plain.rstrip()
            if plain:
                ids += self.encode_text(plain, at_start=not ids)
            if control is not None:
                ids.append(control[0])
                strip_next = control[1].rstrip
        return ids

    def _pieces(self, text: str, stand_ins: StandIns) -> Iterator[tuple[str, tuple[int, AddedToken] | None]]:
        """Cut at the template's own control tokens: the text before each, and the token (none after the last text)."""
        unmarked = str.maketrans("", "", "".join(stand_ins))
        begin = 0
        for match in self.controls(text, stand_ins):
            yield text[begin : match.start()].translate(unmarked), self._control[match.group()]
            begin = match.end()
        yield text[begin:].translate(unmarked), None

    def encode_piece(self, text: str, *, at_start: bool) -> list[int]:
        """Ids of a piece as it has them between two control tokens, or `at_start`; special tokens in it are meant."""
        return _ids(self._whole, text) if at_start or not self._lead else self._after_newline(self._whole, text)

    def encode_text(self, text: str, *, at_start: bool) -> list[int]:
        """Ids of a piece in which no special token is meant."""
        ids = _ids(self._plain, text) if at_start or not self._lead else self._after_newline(self._plain, text)
        if self._control_ids.isdisjoint(ids):
            return ids
        # The vocabulary itself joins a spelling into its control token: take the characters of each one by one.
        ids, begin = [], 0
        for match in self._spelt.finditer(text):
            for piece in (text[begin : match.start()], *match.group()):
                ids += _ids(self._plain, piece)
            begin = match.end()
        return ids + _ids(self._plain, text[begin:])

    def _after_newline(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Ids of a text that does not open the prompt: some tokenizers put a space only before the very first word."""
        lead = len(self._lead)
        ids = _ids(tokenizer, "\n" + text)
        return ids[lead:] if ids[:lead] == self._lead else _ids(tokenizer, text)

    def _find_lead(self) -> list[int]:
        """Ids of the newline that must be put before a cut piece to get the ids it has within the whole; else none."""
        newline = _ids(self._plain, "\n")
        for content in self._control:
            within = self.encode(content + "a")[1:]
            if within == _ids(self._plain, "a"):
                return []
            if newline + within == _ids(self._plain, "\na"):
                return newline
        return []


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of one text. The batch call is the one that releases the interpreter lock and counts no offsets."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids
