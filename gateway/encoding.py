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
from itertools import accumulate
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer


class StandIns(NamedTuple):
    """Two characters that occur in no text of a request: they wrap a control token that a client spelt."""

    start: str
    end: str


class Encoded(NamedTuple):
    """Token ids, and for each the number of characters of the text at which it ends, in ascending order."""

    ids: list[int]
    ends: list[int]


class Encoder:
    """One tokenizer, safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, *, unknown: str | None = None) -> None:
        """Copy `tokenizer`; `unknown` is its token for characters it cannot spell."""
        whole = tokenizer.to_str().replace('"trim_offsets":true', '"trim_offsets":false')  # blanks belong to tokens
        self._whole = Tokenizer.from_str(whole)
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

    def encode_with_ends(self, text: str) -> Encoded:
        """Do the same, and tell where each token ends."""
        return _encoded(self._whole, text)

    def controls(self, text: str, stand_ins: StandIns | None = None) -> Iterator[re.Match[str]]:
        """Find the control tokens that are meant: with `stand_ins`, those that stand outside of them."""
        if stand_ins is None:
            return self._spelt.finditer(text)
        start, end = stand_ins
        either = re.finditer(f"{start}(?:{self._pattern}){end}|({self._pattern})", text)
        return (match for match in either if match.group(1) is not None)

    def encode_piece(self, text: str, *, at_start: bool) -> list[int]:
        """Ids of a piece as it has them between two control tokens, or `at_start`; special tokens in it are meant."""
        if at_start or not self._lead:
            return _ids(self._whole, text)
        ids = _ids(self._whole, "\n" + text)
        lead = len(self._lead)
        return ids[lead:] if ids[:lead] == self._lead else _ids(self._whole, text)

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a text without a template, as the tokenizer itself begins one (BOS where that is its default)."""
        ids: list[int] = self._whole.encode_batch_fast([text], add_special_tokens=True)[0].ids
        return ids

    def encode_marked(self, text: str, stand_ins: StandIns) -> Encoded:
        """Encode a text in which a special token is meant unless it is wrapped by stand-ins, which are no text."""
        ids: list[int] = []
        ends: list[int] = []
        strip_next = False
        for begin, piece, control in self._pieces(text, stand_ins):
            kept = [at for at, character in enumerate(piece, begin) if character not in stand_ins]
            plain = "".join(text[at] for at in kept)
            cut = len(plain) - len(plain.lstrip()) if strip_next else 0
            plain = plain[cut:]
            if control is not None and control[1].lstrip:
                plain = plain.rstrip()
            if plain:
                encoded = self.encode_text(plain, at_start=not ids)
                ids += encoded.ids
                ends += [kept[cut + max(end, 1) - 1] + 1 for end in encoded.ends]  # a blank put first has no place
            if control is not None:
                ids.append(control[0])
                ends.append(begin + len(piece) + len(control[1].content))
                strip_next = control[1].rstrip
        return Encoded(ids, ends)

    def _pieces(self, text: str, stand_ins: StandIns) -> Iterator[tuple[int, str, tuple[int, AddedToken] | None]]:
        """Cut at the template's own control tokens: where a text begins, the text, and the token behind it, if any."""
        begin = 0
        for match in self.controls(text, stand_ins):
            yield begin, text[begin : match.start()], self._control[match.group()]
            begin = match.end()
        yield begin, text[begin:], None

    def encode_text(self, text: str, *, at_start: bool) -> Encoded:
        """Encode a piece in which no special token is meant."""
        encoded = _encoded(self._plain, text) if at_start or not self._lead else self._after_newline(text)
        if self._control_ids.isdisjoint(encoded.ids):
            return encoded
        # The vocabulary itself joins a spelling into its control token: take the characters of each one by one.
        whole, begin = Encoded([], []), 0
        for match in self._spelt.finditer(text):
            self._append(whole, text[begin : match.start()], begin)
            for place, character in enumerate(match.group(), match.start()):
                self._append(whole, character, place)
            begin = match.end()
        self._append(whole, text[begin:], begin)
        return whole

    def _append(self, whole: Encoded, text: str, begin: int) -> None:
        ids, ends = _encoded(self._plain, text)
        whole.ids.extend(ids)
        whole.ends.extend(begin + end for end in ends)

    def _after_newline(self, text: str) -> Encoded:
        """Encode a text that does not open the prompt: some tokenizers put a space only before the very first word."""
        lead = len(self._lead)
        ids, ends = _encoded(self._plain, "\n" + text)
        if ids[:lead] == self._lead:
            return Encoded(ids[lead:], [max(end - 1, 1) for end in ends[lead:]])
        return _encoded(self._plain, text)

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


def _encoded(tokenizer: Tokenizer, text: str) -> Encoded:
    """Encode one text and say where each token ends; of several tokens of one character, all end behind it."""
    encoding = tokenizer.encode_batch([text], add_special_tokens=False)[0]
    return Encoded(encoding.ids, list(accumulate((end for _, end in encoding.offsets), max)))
