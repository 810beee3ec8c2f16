"""Requests to remember, built from words: equal words are equal parts."""

from __future__ import annotations

from gateway.recall import Recall
from prefix_store.fingerprints import Answer, Fingerprint, Keyed, Part

NOON = 1_800_000_000.0
SECRET = b"a secret that all gateways share"
TENANT = "acme"
KEYED = Keyed(SECRET, TENANT)


def digest(*what: object) -> bytes:
    """Return the digest of anything that has a repr."""
    return KEYED.digest(repr(what).encode())


def request(
    name: str,
    *words: str,
    at: float = 0.0,
    tokens: int = 10,
    partition: str = "",
    answer: str = "",
    opening: bool = True,
) -> Fingerprint:
    """Return a request of one message a word, `tokens` tokens each or as many as stand behind a colon in the word."""
    parts, begin = [], 0
    for index, word in enumerate(words):
        end = begin + int(word.partition(":")[2] or tokens)
        parts.append(Part("user", index, digest(word), digest(word.lower()), digest("tokens", word), begin, end))
        begin = end
    if opening:
        parts.append(Part("opening", 0, digest(""), digest(""), digest("tokens", ""), begin, begin + 3))
    return Fingerprint(
        id=name,
        at=NOON + at,
        model="m",
        weights="w",
        rendering="r",
        partition=digest(partition) if partition else b"",
        parts=tuple(parts),
        answer=Answer(digest(answer), digest("tokens", answer), 5) if answer else None,
    )


def hashes(fingerprint: Fingerprint) -> dict[bytes, bytes]:
    """Return two bytes for each token of a request's parts, and of its answer."""
    found = {
        part.rendered: (part.rendered * (part.end - part.begin))[: 2 * (part.end - part.begin)]
        for part in fingerprint.parts
    }
    if fingerprint.answer is not None:
        found[fingerprint.answer.rendered] = fingerprint.answer.rendered[: 2 * fingerprint.answer.tokens]
    return found


def remember(gateway: Recall, *requests: Fingerprint, tenant: str = TENANT) -> None:
    """Remember requests with all their hashes."""
    for fingerprint in requests:
        gateway.remember(tenant, fingerprint, hashes(fingerprint))
