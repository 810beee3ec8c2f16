"""A rendered text into token ids, where only what was never seen before is tokenised.

The text is cut at the control tokens that its template wrote; what lies between them is looked up, text against text,
in `prefix_store.text`. Owns the knowledge where a tokenizer cuts. Rule: the ids are those of `gateway.encoding`, which
is the truth beside this; a control token at which a tokenizer does not cut cleanly is no border.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.detokenize import TokenSpelling
from gateway.encoding import Encoded, Encoder, StandIns
from prefix_store.chain import TOKEN_BYTES
from prefix_store.text import Segment, SegmentIndex

# What may stand beside a border.
PROBES = ("", " ", "a", " a", "\n", "\n\n", "  a  ", "1", ".", "ä", "漢", "🙂", "a b\n")
CHUNK = 1 << 15  # numbers, about two milliseconds


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text between two borders, or a control token (then `segment` is None), in characters of the rendered text."""

    begin: int
    end: int
    tokens: int  # before it
    segment: Segment | None


class Tokenised:
    """A rendered text's ids, and where in the text they lie."""

    def __init__(self, source: Segmenter, text: str, stand_ins: StandIns | None, pieces: Sequence[_Piece]) -> None:
        self._source = source
        self.text = text
        self._dropped = {} if stand_ins is None else str.maketrans("", "", "".join(stand_ins))
        self._pieces = pieces
        self._begins = [piece.begin for piece in pieces]
        self._firsts = [piece.tokens for piece in pieces]
        self.ids = b"".join(
            source.control_ids[text[piece.begin : piece.end]] if piece.segment is None else piece.segment.ids
            for piece in pieces
        )

    def borders(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return how many tokens end at or before each character place."""
        return tuple(map(self._border, places))

    def place(self, token: int) -> int:
        """Return the character at which a token begins."""
        at = bisect_right(self._firsts, token) - 1
        piece = self._pieces[at]
        if piece.segment is None or token <= piece.tokens:
            return piece.begin
        inside = int(self._source.ends(piece.segment)[min(token - piece.tokens, piece.segment.tokens) - 1])
        return min(piece.begin + inside, piece.end)

    def _border(self, place: int) -> int:
        at = bisect_right(self._begins, place) - 1
        if at < 0:
            return 0
        piece = self._pieces[at]
        if piece.segment is None:
            return piece.tokens + (place >= piece.end)
        inside = self.text[piece.begin : min(place, piece.end)]
        ends = self._source.ends(piece.segment)
        return piece.tokens + int(np.searchsorted(ends, len(inside.translate(self._dropped)), side="right"))


class Segmenter:
    """One tokenizer's fast path. Safe to share between threads."""

    def __init__(self, encoder: Encoder, spelling: TokenSpelling, index: SegmentIndex) -> None:
        """Look text up in `index`; `spelling` knows how many bytes each token stands for."""
        self._encoder = encoder
        self._spelling = spelling
        self._index = index
        self._clean: dict[str, bool] = {}  # control tokens at which cutting was tried, and whether it is clean
        self._lengths = np.full(encoder.tokenizer.get_vocab_size(), -1, dtype=np.int32)  # bytes of each token
        ids = encoder.special_ids
        self.control_ids = {content: token.to_bytes(TOKEN_BYTES, "little") for content, token in ids.items()}

    def encode(self, text: str, tenant: str, stand_ins: StandIns | None = None) -> Tokenised:
        """Encode a rendered text for a tenant. With `stand_ins`, control tokens between them are text."""
        if stand_ins is not None and self._encoder.strips:  # its pieces are not what stands in the text
            told = self._encoder.encode_marked(text, stand_ins)
            return Tokenised(self, text, None, [_Piece(0, len(text), 0, _segment(text, told))])
        pieces: list[_Piece] = []
        tokens = 0
        for begin, end, control in self._cut(text, stand_ins):
            segment = None if control else self._segment(text[begin:end], tenant, stand_ins, at_start=not tokens)
            pieces.append(_Piece(begin, end, tokens, segment))
            tokens += 1 if segment is None else segment.tokens
        return Tokenised(self, text, stand_ins, pieces)

    def ends(self, segment: Segment) -> np.ndarray:
        """Return the character at which each of a segment's tokens ends: for half a character, after it."""
        if segment.ends is None:
            segment.ends = self._ends(segment).astype("<u4").tobytes()
        return np.frombuffer(segment.ends, dtype="<u4")

    def _cut(self, text: str, stand_ins: StandIns | None) -> Iterator[tuple[int, int, bool]]:
        """Yield stretches of the text, and whether each is a control token at which the tokenizer cuts."""
        begin = 0
        for match in self._encoder.controls(text, stand_ins):
            if stand_ins is None and not self._cuts_at(match.group()):
                continue
            if begin < match.start():
                yield begin, match.start(), False
            yield match.start(), match.end(), True
            begin = match.end()
        if begin < len(text):
            yield begin, len(text), False

    def _cuts_at(self, control: str) -> bool:
        """Whether what stands beside a control token never changes how the other side is encoded. Tried once."""
        clean = self._clean.get(control)
        if clean is None:
            pairs = [pair for probe in PROBES for pair in ((probe, "a"), ("a", probe), (probe, probe))]
            clean = self._clean[control] = all(self._apart(*pair, control) for pair in pairs)
        return clean

    def _apart(self, before: str, after: str, control: str) -> bool:
        encoder = self._encoder
        first = encoder.encode_piece(before, at_start=True) if before else []
        last = encoder.encode_piece(after, at_start=False) if after else []
        return encoder.encode(before + control + after) == [*first, encoder.special_ids[control], *last]

    def _segment(self, text: str, tenant: str, stand_ins: StandIns | None, *, at_start: bool) -> Segment:
        forged = stand_ins is not None
        if stand_ins is not None:
            text = text.translate(str.maketrans("", "", "".join(stand_ins)))
        kind = 2 * forged + at_start
        known = self._index.get(tenant, text, kind=kind)
        if known is not None:
            return known
        if forged:
            made = _segment(text, self._encoder.encode_text(text, at_start=at_start))
        else:
            made = Segment(text, _packed(self._encoder.encode_piece(text, at_start=at_start)))
        return self._index.put(tenant, made, kind=kind)

    def _ends(self, segment: Segment) -> np.ndarray:
        raw = segment.text.encode("utf-8", "surrogatepass")
        ids = np.frombuffer(segment.ids, dtype="<u4")
        byte_ends = np.cumsum(self._bytes_of(ids), dtype=np.int64)
        if len(ids) and byte_ends[-1] == len(raw):
            if len(raw) == len(segment.text):
                return byte_ends
            continues = (np.frombuffer(raw, dtype=np.uint8) & 0xC0) == 0x80  # noqa: PLR2004 - UTF-8's later bytes
            begun = np.cumsum(~continues)  # characters, byte by byte
            return begun[np.maximum(byte_ends - 1, 0)]
        told = self._encoder.encode_with_ends(segment.text)  # the vocabulary does not spell the text byte by byte
        if _packed(told.ids) == segment.ids:
            return np.array(told.ends, dtype=np.int64)
        return np.full(len(ids), len(segment.text))  # not to be known: no border inside

    def _bytes_of(self, ids: np.ndarray) -> np.ndarray:
        """Return how many bytes of text each token stands for. The vocabulary is looked at as it is met."""
        unmet = ids[self._lengths[ids] < 0]
        for token in np.unique(unmet).tolist() if len(unmet) else ():
            name, raw = self._spelling.name_of(token)
            self._lengths[token] = len(raw) or len(name.encode())
        lengths: np.ndarray = self._lengths[ids]
        return lengths


def _segment(text: str, told: Encoded) -> Segment:
    """Return a segment whose ends are known."""
    segment = Segment(text, _packed(told.ids))
    segment.ends = _packed(told.ends)
    return segment


def _packed(numbers: Sequence[int]) -> bytes:
    """Pack numbers, some at a time, so that no other thread waits long for the interpreter."""
    chunks = (numbers[begin : begin + CHUNK] for begin in range(0, len(numbers), CHUNK))
    return b"".join(np.array(chunk, dtype="<u4").tobytes() for chunk in chunks)
