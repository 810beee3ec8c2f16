"""What is remembered of a request so that a later one can be told why it missed: keyed hashes and counts, never text.

Owns the values and the keyed digests. Knows no store, no tokenizer, no clock. Rules: a digest is BLAKE2b under a secret
and the tenant's name, so equal texts of two tenants have nothing in common; a part's tokens are hashed by their place
in the part, so the same part is the same bytes wherever it stands, and is stored once.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

PartKind = Literal["tool", "system", "user", "assistant", "result", "opening"]

DIGEST_BYTES = 16
SEGMENT_BYTES = 8
TOKEN_HASH_BYTES = 2  # of each token, so 32 bytes a block of 16


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One tool, one message, or the opening of the answer: a stretch of the prompt's tokens, glue before it included.

    The parts of a request cover its prompt without gaps, in rendered order.
    """

    kind: PartKind
    index: int  # among the client's tools, or among its messages
    content: bytes  # digest of what the client sent, however the template writes it
    loose: bytes  # digest of the same without white space
    rendered: bytes  # digest of its tokens: the key of their hashes
    begin: int  # first token in the prompt
    end: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What was answered."""

    content: bytes  # digest of the text and the calls, as they come back in history
    rendered: bytes  # digest of the generated tokens: the key of their hashes
    tokens: int


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request."""

    id: str  # of the answer, as the client was told
    at: float  # wall clock, seconds
    model: str
    weights: str
    rendering: str  # tokenizer and template
    partition: bytes = b""  # digest of the client's cache key
    settings: dict[str, bytes] = {}  # digests of what may shape a prompt beside its parts: effort, verbosity, …
    parts: tuple[Part, ...] = ()
    segments: tuple[bytes, ...] = ()  # short digests of sentences of the system text: what is left when it changes
    answer: Answer | None = None

    @property
    def tokens(self) -> int:
        """Prompt length."""
        return self.parts[-1].end if self.parts else 0


class Keyed:
    """Digests for one tenant."""

    def __init__(self, secret: bytes, tenant: str) -> None:
        """Derive the tenant's key. `secret` is any bytes that all gateways share."""
        key = hashlib.blake2b(secret, digest_size=32).digest()
        self._key = hashlib.blake2b(tenant.encode(), key=key, digest_size=32).digest()

    def digest(self, data: bytes) -> bytes:
        """Return the keyed digest of `data`."""
        return hashlib.blake2b(data, key=self._key, digest_size=DIGEST_BYTES).digest()

    @property
    def seed(self) -> int:
        """A 64-bit number for hashing single tokens."""
        return int.from_bytes(self.digest(b"tokens")[:8], "little")


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Fingerprint).decode
