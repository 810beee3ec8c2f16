"""A trace as a simulation reads it: when each prompt comes, how long it is, and the chain over its blocks. Pure.

Rule: prompts of different tenants or models share nothing; all blocks of a trace are of one length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.advice.trace import MOONCAKE_BLOCK, Line, LogLine, covered_by, read_lines
from gateway.routing.simulate import Arrival, path_of_ids, seconds_of


def block_tokens(path: Path) -> int:
    """Return how many tokens each block of a trace stands for, by its first line. Raises Unreadable."""
    return next(read_lines(path, _block_tokens), MOONCAKE_BLOCK)


def arrivals(
    path: Path, *, faster: float = 1.0, advance: Callable[[int], object] = lambda _: None
) -> Iterator[Arrival]:
    """Yield a trace's requests, so many times as fast; the first comes at 0. Raises Unreadable."""
    each: int | None = None
    roots: dict[tuple[str, str], bytes] = {}

    def made(line: Line) -> tuple[float, Arrival]:
        nonlocal each
        size = _block_tokens(line)
        if each is not None and each != size:
            raise ValueError(f"block_tokens: {size}, and {each} in the lines before")
        each = size
        covered_by(line)
        if isinstance(line, LogLine):
            place = line.tenant, line.model
            root = roots.setdefault(place, b"%d:%s%s" % (len(place[0]), place[0].encode(), place[1].encode()))
            return 1000 * line.at, Arrival(0.0, line.tokens, 0, path_of_ids(line.blocks, root))
        return line.timestamp, Arrival(0.0, line.input_length, line.output_length, path_of_ids(line.hash_ids))

    began: float | None = None
    latest = 0.0
    for at_ms, one in read_lines(path, made, advance=advance):
        began = at_ms if began is None else began
        latest = max(latest, seconds_of((at_ms - began) / faster))
        yield Arrival(latest, one.tokens, one.output, one.path)


def _block_tokens(line: Line) -> int:
    return line.block_tokens if isinstance(line, LogLine) else MOONCAKE_BLOCK
