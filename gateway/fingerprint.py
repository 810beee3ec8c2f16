"""What is remembered of a request, made of the request: digests of what the client sent and of its tokens. Pure.

Rules: equal wishes give equal digests, whatever their JSON was spelled like; tokens are hashed by their place in their
part, all parts in one pass. Long texts are first brought down by xxh3 and then keyed, so that a prompt of 100,000
tokens costs about a millisecond; what leaves here is keyed, always.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np
import xxhash

from gateway.ask import Ask, Tool, ToolCall, Turn
from gateway.canonical import canonical, canonical_schema
from prefix_store.chain import TOKEN_BYTES
from prefix_store.fingerprints import SEGMENT_BYTES, TOKEN_HASH_BYTES, Answer, Fingerprint, Keyed, Part, PartKind

NEAR: Final = 4096  # characters at each end of a system text in which segments are looked for
SHORTEST: Final = 24  # characters of a segment
SEGMENTS: Final = 16
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:;])\s+|\n+")
_PLACE: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_FOLD: Final = np.uint64(29)
_HIGH: Final = np.uint64(48)
_WHITE_SPACE: Final = b" \t\n\r\v\f"

Hashes = dict[bytes, bytes]  # `rendered` of a part or an answer → two bytes a token


class Span(Protocol):
    """A stretch of a prompt's tokens and what the client gave for it. A request's spans cover its prompt, in order."""

    @property
    def kind(self) -> PartKind:
        """What it is."""

    @property
    def index(self) -> int:
        """Place among the client's tools, or among its turns."""

    @property
    def begin(self) -> int:
        """First token."""

    @property
    def end(self) -> int:
        """One past the last token."""


def token_hashes(ids: bytes, seed: int) -> bytes:
    """Hash each token of one part by its id and its place: two bytes each. `ids` are little-endian uint32."""
    count = len(ids) // TOKEN_BYTES
    return _hashed(ids, np.arange(count, dtype=np.uint64), seed).tobytes()


def fingerprint(
    keyed: Keyed,
    ask: Ask,
    spans: Sequence[Span],
    tokens: bytes,
    *,
    id: str,  # noqa: A002 - the fingerprint's own word
    at: float,
    model: str,
    weights: str,
    rendering: str,
    settings: Mapping[str, str] | None = None,
) -> tuple[Fingerprint, Hashes]:
    """Return what is to be remembered of a request at wall-clock time `at`, and its parts' token hashes."""
    hashed = _hashed(tokens, _places(spans, len(tokens) // TOKEN_BYTES), keyed.seed).tobytes()
    hashes: Hashes = {}
    parts = []
    for span in spans:
        rendered = _digest(keyed, tokens[span.begin * TOKEN_BYTES : span.end * TOKEN_BYTES])
        if rendered not in hashes:
            hashes[rendered] = hashed[span.begin * TOKEN_HASH_BYTES : span.end * TOKEN_HASH_BYTES]
        content, loose = _contents(keyed, _said(span, ask))
        parts.append(Part(span.kind, span.index, content, loose, rendered, span.begin, span.end))
    made = Fingerprint(
        id=id,
        at=at,
        model=model,
        weights=weights,
        rendering=rendering,
        partition=keyed.digest(ask.partition.encode("utf-8", "surrogatepass")) if ask.partition else b"",
        settings={name: keyed.digest(value.encode()) for name, value in (settings or {}).items()},
        parts=tuple(parts),
        segments=_segments(keyed, ask.turns),
    )
    return made, hashes


def _segments(keyed: Keyed, turns: Sequence[Turn]) -> tuple[bytes, ...]:
    """Return digests of the longest sentences and lines near both ends of the first system text."""
    text = next((turn.text for turn in turns if turn.role == "system"), "")
    near = text if len(text) <= 2 * NEAR else text[:NEAR] + "\n" + text[-NEAR:]
    pieces = {piece for piece in _SENTENCE_END.split(near) if len(piece) >= SHORTEST}
    longest = sorted(pieces, key=lambda piece: (-len(piece), piece))[:SEGMENTS]
    return tuple(_digest(keyed, piece.encode("utf-8", "surrogatepass"))[:SEGMENT_BYTES] for piece in longest)


def answered(keyed: Keyed, turn: Turn, opening: bytes, generated: bytes) -> tuple[Answer, Hashes]:
    """Return what is to be remembered of an answer, as the turn that it is in history.

    Its tokens are hashed behind those of the opening, as they stand in the part that the turn becomes in history.
    """
    whole = opening + generated
    rendered = _digest(keyed, whole)
    made = Answer(turn_content(keyed, turn), rendered, len(generated) // TOKEN_BYTES)
    return made, {rendered: token_hashes(whole, keyed.seed)}


def turn_content(keyed: Keyed, turn: Turn) -> bytes:
    """Return the digest of one turn's content."""
    return _digest(keyed, turn_bytes(turn))


def turn_bytes(turn: Turn) -> bytes:
    """Write what a client chose of a turn so that different turns never look the same. Marks are no content."""
    return _framed(
        turn.role,
        turn.text,
        turn.thinking,
        turn.name or "",
        turn.tool_call_id or "",
        *(word for call in turn.tool_calls for word in _call(call)),
    )


def tool_bytes(tool: Tool) -> bytes:
    """Write what a client chose of a tool likewise."""
    return _framed(tool.name, tool.description, _json(canonical_schema(tool.parameters)))


def _call(call: ToolCall) -> tuple[str, str, str]:
    arguments = call.arguments if isinstance(call.arguments, str) else _json(canonical(call.arguments))
    return call.id, call.name, arguments


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _framed(*words: str) -> bytes:
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    return b"".join((" ".join(str(len(word)) for word in encoded).encode(), b"\n", *encoded))


def _said(span: Span, ask: Ask) -> bytes:
    if span.kind == "opening":
        return b""
    return tool_bytes(ask.tools[span.index]) if span.kind == "tool" else turn_bytes(ask.turns[span.index])


def _contents(keyed: Keyed, said: bytes) -> tuple[bytes, bytes]:
    """Return the digests of a content and of the same without white space, the frame left out."""
    _, _, words = said.partition(b"\n")
    return _digest(keyed, said), _digest(keyed, words.translate(None, _WHITE_SPACE))


def _digest(keyed: Keyed, data: bytes) -> bytes:
    return keyed.digest(xxhash.xxh3_128_digest(data))


def _places(spans: Sequence[Span], count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return each token's place in its part."""
    begins = np.array([span.begin for span in spans], dtype=np.uint64)
    lengths = [span.end - span.begin for span in spans]
    places = np.arange(count, dtype=np.uint64)
    places -= np.repeat(begins, lengths)
    return places


def _hashed(
    ids: bytes, places: np.ndarray[tuple[int], np.dtype[np.uint64]], seed: int
) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    mixed = places * _PLACE
    mixed += np.frombuffer(ids, dtype="<u4")
    mixed ^= np.uint64(seed)
    mixed *= _FIRST
    mixed ^= mixed >> _FOLD
    mixed *= _SECOND
    mixed >>= _HIGH
    return mixed.astype("<u2")
