"""Traces of requests, read line by line: this gateway's own log, or the public format of the Mooncake traces.

`{"at", "tenant", "model", "class", "tokens", "block_tokens", "blocks"}` with keyed hashes of whole blocks, or
`{"timestamp", "input_length", "output_length", "hash_ids"}` with milliseconds and one id per 512 tokens, each of which
stands for all tokens up to there; the last block may be short. Either may be gzipped; the first line decides.
Rules: a line that cannot be read is named by its number; a time that goes back counts as the latest one before it.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from gateway.advice.errors import Unreadable
from prefix_store.reuse import WHOLE, Use

MOONCAKE_BLOCK = 512  # tokens
GZIP = b"\x1f\x8b"
EVERY = 512  # lines between two signs of progress
MASK = WHOLE - 1
FACTORS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9  # odd, so that no two ids become one

Count = Annotated[int, Meta(ge=0, le=2**53)]


class Group(NamedTuple):
    """Whose traffic it is."""

    tenant: str
    model: str


class LogLine(msgspec.Struct, frozen=True, kw_only=True, rename={"klass": "class"}):
    """One prompt in the gateway's own log. `at` is seconds since the epoch."""

    at: Annotated[float, Meta(ge=0, le=2**40)]
    tenant: str
    model: str
    klass: str | None
    tokens: Count
    block_tokens: Annotated[int, Meta(ge=1, le=2**20)] = 16
    blocks: list[Annotated[int, Meta(ge=0)]]


class MooncakeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the public format."""

    timestamp: Annotated[float, Meta(ge=0, le=2**53)]
    input_length: Count
    output_length: Count = 0
    hash_ids: list[Annotated[int, Meta(ge=0, le=2**53)]]


Line = LogLine | MooncakeLine
Made = TypeVar("Made")

MOONCAKE = Group(tenant="default", model="trace")

_FORMATS: Final[tuple[Callable[[bytes], LogLine], Callable[[bytes], MooncakeLine]]] = (
    msgspec.json.Decoder(LogLine).decode,
    msgspec.json.Decoder(MooncakeLine).decode,
)


def read_trace(
    path: Path,
    *,
    ttl: Callable[[Group, str | None], float],
    limit: Callable[[], int] = lambda: WHOLE,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[Use]:
    """Yield a trace's prompts with their blocks below `limit`. `ttl` says how long each is kept now, in milliseconds.

    `advance` is told how many bytes of the file have been read. Raises Unreadable.
    """

    def use_of(line: Line) -> Use:
        return _mooncake(line, ttl, limit()) if isinstance(line, MooncakeLine) else _logged(line, ttl, limit())

    latest = 0
    for use in read_lines(path, use_of, advance=advance):
        latest = max(latest, use.at)
        yield use if use.at == latest else replace(use, at=latest)


def read_lines(
    path: Path, make: Callable[[Line], Made], *, advance: Callable[[int], object] = lambda _: None
) -> Iterator[Made]:
    """Yield what `make` makes of each line; its ValueError is told with the line's number. Raises Unreadable."""
    try:
        with path.open("rb") as raw:
            lines: BinaryIO = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if raw.peek(2)[:2] == GZIP else raw
            yield from _made(path, lines, raw, make, advance)
            advance(raw.tell())
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _made(
    path: Path, lines: BinaryIO, raw: BinaryIO, make: Callable[[Line], Made], advance: Callable[[int], object]
) -> Iterator[Made]:
    decode: Callable[[bytes], Line] | None = None
    for number, line in enumerate(lines, 1):
        if number % EVERY == 0:
            advance(raw.tell())
        if line.isspace():
            continue
        if decode is None:
            decode = _FORMATS[b'"hash_ids"' in line]
        try:
            made = make(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise Unreadable(f"{path}, line {number}: {error}") from error
        yield made


def covered_by(line: Line) -> int:
    """Return how many tokens a line's blocks stand for. Raises ValueError where they are too many for its prompt."""
    if isinstance(line, LogLine):
        covered = len(line.blocks) * line.block_tokens
        if covered > line.tokens:
            raise ValueError(f"blocks: {len(line.blocks)} blocks are too many for {line.tokens} tokens")
        return covered
    ids, tokens = line.hash_ids, line.input_length
    if ids and (len(ids) - 1) * MOONCAKE_BLOCK >= tokens:
        raise ValueError(f"hash_ids: {len(ids)} ids are too many for an input_length of {tokens}")
    return min(len(ids) * MOONCAKE_BLOCK, tokens)


def _mooncake(line: MooncakeLine, ttl: Callable[[Group, str | None], float], limit: int) -> Use:
    ids, tokens = line.hash_ids, line.input_length
    covered = covered_by(line)
    first, second = FACTORS
    blocks = [
        block
        for number in ids
        if (block := ((mixed := number * first & MASK) ^ mixed >> 29) * second & MASK) < limit  # an id says nothing
    ]
    short = -1
    if covered % MOONCAKE_BLOCK:
        mixed = ids[-1] * first & MASK
        short = (mixed ^ mixed >> 29) * second & MASK
    return Use(
        at=round(line.timestamp),
        group=MOONCAKE,
        ttl=ttl(MOONCAKE, None),
        tokens=tokens,
        covered=covered,
        blocks=blocks,
        block_tokens=MOONCAKE_BLOCK,
        short=short,
    )


def _logged(line: LogLine, ttl: Callable[[Group, str | None], float], limit: int) -> Use:
    covered = covered_by(line)
    group = Group(line.tenant, line.model)
    return Use(
        at=round(line.at * 1000),
        group=group,
        ttl=ttl(group, line.klass),
        tokens=line.tokens,
        covered=covered,
        blocks=[block for block in line.blocks if block < limit],
        block_tokens=line.block_tokens,
    )
