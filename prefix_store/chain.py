"""The chain: one hash per block of a prompt, each committing to every token before it and to the namespace.

A pure leaf: knows no tree and no clock. Rule: equal hashes mean equal namespace and equal tokens up to there, in every
process and on every machine, because lengths and field names are framed and byte order is fixed.
"""

from __future__ import annotations

from typing import NewType

import msgspec
import xxhash

BlockHash = NewType("BlockHash", bytes)  # xxh3-128 digest, big-endian

HASH_BYTES = 16
TOKEN_BYTES = 4  # a token id is a little-endian uint32


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """Who may share with whom: prompts under different namespaces never share a block."""

    tenant: str
    model: str
    weights: str  # content digest, so that new weights under an old name are another namespace
    kv_dtype: str
    block_tokens: int
    adapter: str = ""
    rendering: str = ""  # tokenizer and template
    partition: str = ""  # the client's own division


def root(namespace: Namespace) -> BlockHash:
    """Return the hash that every chain of the namespace starts from."""
    framed = xxhash.xxh3_128()
    for field in namespace.__struct_fields__:
        for part in (field, str(getattr(namespace, field))):
            encoded = part.encode("utf-8", "surrogatepass")
            framed.update(len(encoded).to_bytes(8, "little") + encoded)
    return BlockHash(framed.digest())


def chain(parent: BlockHash, tokens: bytes, block_tokens: int) -> bytes:
    """Return the packed hashes, 16 bytes each, of the whole blocks of `tokens` that follow `parent`. O(tokens)."""
    stride = block_tokens * TOKEN_BYTES
    digest = xxhash.xxh3_128_digest
    link: bytes = parent
    links = [link := digest(link + tokens[at : at + stride]) for at in range(0, len(tokens) - stride + 1, stride)]
    return b"".join(links)


def link(packed: bytes, index: int) -> BlockHash:
    """Return one hash of a packed chain."""
    return BlockHash(packed[index * HASH_BYTES : (index + 1) * HASH_BYTES])
