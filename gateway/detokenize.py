"""Token ids back into text, as they arrive.

`TokenSpelling` knows the bytes that each token stands for; `Detokenizer` joins the bytes of one answer and lets go of
whole characters only. Working on bytes, it never looks back: O(1) amortised per token, and a U+FFFD that the model
really wrote is told apart from a character that is still incomplete.
Rule: special tokens are not text, and a character that the answer's end cut in half is left out.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN_LENGTH = len("<0x00>")
_SPACE = "\u2581"  # how SentencePiece spells a space inside a token


def _byte_alphabet() -> dict[str, int]:
    """Map the 256 printable characters with which byte-level vocabularies spell bytes to them."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the decoder's steps in order, sequences flattened."""
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


class TokenSpelling:
    """Bytes of each token of one tokenizer, looked up once per id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read from the tokenizer's decoder how its vocabulary spells bytes."""
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._alphabet = _byte_alphabet()
        self._known: dict[int, bytes] = {}
        decoder = tokenizer.decoder
        steps = {step["type"]: step for step in _steps(json.loads(decoder.__getstate__()) if decoder else None)}
        self._byte_level = "ByteLevel" in steps
        self._sentencepiece = bool({"ByteFallback", "Metaspace", "Replace"} & steps.keys())
        strips = "Strip" in steps and steps["Strip"]["start"] > 0
        prepends = "Metaspace" in steps and steps["Metaspace"].get("prepend_scheme", "always") != "never"
        self.drops_first_space = not self._byte_level and (strips or prepends)

    def bytes_of(self, token: int) -> bytes:
        """Return the UTF-8 bytes that the token adds; none for a special token or an id outside the vocabulary."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._spell(token)
        return known

    def name_of(self, token: int) -> tuple[str, bytes]:
        """Return how to write the token for people, special or not, and the bytes it adds to a text."""
        added, raw = self._added.get(token), self.bytes_of(token)
        return (raw.decode(errors="replace") if added is None else added.content), raw

    def shown(self, markers: Iterable[str]) -> dict[int, bytes]:
        """Return those of the special tokens `markers` that the vocabulary has, with their spelling."""
        wanted = set(markers)
        return {token: added.content.encode() for token, added in self._added.items() if added.content in wanted}

    def _spell(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else added.content.encode()
        spelling = self._tokenizer.id_to_token(token)
        if spelling is None:
            return b""
        if self._byte_level:
            return bytes(self._alphabet[character] for character in spelling)
        if self._sentencepiece:
            if len(spelling) == _BYTE_TOKEN_LENGTH and spelling.startswith("<0x") and spelling.endswith(">"):
                return bytes([int(spelling[3:5], 16)])
            return spelling.replace(_SPACE, " ").encode()
        before: str = self._tokenizer.decode([token])
        both: str = self._tokenizer.decode([token, token])
        return both[len(before) :].encode()


class Detokenizer:
    """The text of one answer, whole characters at a time."""

    def __init__(self, spelling: TokenSpelling, shown: Mapping[int, bytes] | None = None) -> None:
        """Begin an empty answer. `shown` are special tokens that are to be text all the same."""
        self._spelling = spelling
        self._shown = shown or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = spelling.drops_first_space

    def feed(self, tokens: Iterable[int]) -> str:
        """Take the next tokens and return the characters they complete."""
        spell, shown = self._spelling.bytes_of, self._shown
        text = self._decoder.decode(b"".join(shown.get(token) or spell(token) for token in tokens))
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
