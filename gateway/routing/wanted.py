"""A request as routing sees it: a chain of hashed pieces, and how much work each piece stands for. Pure.

Rule: two requests share a beginning of the chain exactly as far as they share bytes, tenant, model and rendering; the
pieces end where parts of the prompt end, so a conversation that grows goes on from whole pieces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

PIECE_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One request. `ends` are the prompt's tokens, known or estimated, up to and with each piece of `path`."""

    path: bytes  # packed links, 8 bytes each
    ends: Sequence[int]
    tokens: int  # of the whole prompt
    ttl_s: float  # how long what is computed for it is promised
    session: str = ""

    def tokens_at(self, pieces: int) -> int:
        """Return the tokens in the first `pieces` pieces."""
        return self.ends[pieces - 1] if pieces else 0

    def pieces_at(self, tokens: int) -> int:
        """Return how many whole pieces the first `tokens` tokens cover."""
        return bisect_right(self.ends, tokens)


def path_of(root: bytes, parts: Iterable[bytes], piece_bytes: int = PIECE_BYTES) -> tuple[bytes, list[int]]:
    """Hash parts of a prompt, in their order, into a packed chain. Return it and the bytes up to each piece's end.

    `root` must commit to all that keeps prompts apart: a secret, tenant, model. O(bytes).
    """
    digest = xxhash.xxh3_64_digest
    link, links, ends, total = digest(root), [], [], 0
    for part in parts:
        for at in range(0, len(part), piece_bytes):
            piece = part[at : at + piece_bytes]
            link = digest(link + piece)
            links.append(link)
            total += len(piece)
            ends.append(total)
    return b"".join(links), ends
