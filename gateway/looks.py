"""What kind of text stands at a place: a time, a UUID, a counter. Pure.

Rule: the narrowest kind that covers the place wins, in the order of the table; what none covers is white space or text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

Look = Literal["time", "date", "uuid", "counter", "hash", "signed_url", "white_space", "number", "text"]

_AROUND: Final = 128  # characters on each side; nothing but a signed URL is longer
_AROUND_URL: Final = 4096

_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_WEEKDAY: Final = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_DAY: Final = r"[0-3]?\d(?:st|nd|rd|th)?"
_YEAR: Final = r"(?:19|20)\d\d"
_CLOCK: Final = r"[0-2]?\d:[0-5]\d(?::[0-6]\d(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?)?"
_ZONE: Final = r"(?:\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?"
_ISO_DATE: Final = rf"{_YEAR}[-/.][01]?\d[-/.][0-3]?\d"
_COUNTED: Final = (
    r"(?:requests?|req|turns?|runs?|attempts?|tries|try|retry|iterations?|iter|steps?|seq(?:uence)?|counts?|counter"
    r"|messages?|msg|no\.|nr\.?|number|session|builds?|calls?|visits?|tickets?|orders?|jobs?|tasks?|index|round|epoch)"
)
_SIGNATURE: Final = (
    r"(?:X-Amz-[A-Za-z-]+|X-Goog-[A-Za-z-]+|sig|signature|expires|expiry|token|hmac|policy|key-pair-id|se|st)="
)

_URL: Final = re.compile(rf"https?://[^\s\"'<>\\]*?[?&]{_SIGNATURE}[^\s\"'<>\\]*", re.IGNORECASE)
_KINDS: Final[tuple[tuple[Look, re.Pattern[str]], ...]] = (
    ("uuid", re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE)),
    (
        "time",
        re.compile(
            rf"(?<!\d){_ISO_DATE}[T ]{_CLOCK}{_ZONE}|(?<![\d:]){_CLOCK}{_ZONE}(?![\d:])"
            rf"|(?<![\w.])1\d{{9}}(?:\d{{3}}|\d{{6}}|\d{{9}})?(?:\.\d+)?(?![\w])|(?<!\d)20\d{{6}}T\d{{4,6}}Z?",
            re.IGNORECASE,
        ),
    ),
    (
        "date",
        re.compile(
            rf"(?<!\d){_ISO_DATE}(?!\d)|(?<!\d)[0-3]?\d[/.][0-3]?\d[/.]{_YEAR}(?!\d)"
            rf"|(?:\b{_WEEKDAY},?\s+)?(?:the\s+)?\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?\b"
            rf"|(?:\b{_WEEKDAY},?\s+)?\b{_MONTH}\s+{_DAY}\b(?:,?\s+{_YEAR})?|\b{_MONTH}\s+{_YEAR}\b"
            rf"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b",
            re.IGNORECASE,
        ),
    ),
    (
        "hash",
        re.compile(
            r"(?<![0-9A-Za-z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{16,128}(?![0-9A-Za-z])"
            r"|(?-i:(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{20,}(?![\w-]))"
            r"|\b(?:cch|hash|etag|nonce|sha\d*|digest|commit|trace|span|session|token|salt|md5)(?:[_ -]?id)?\s*[=:]\s*"
            r"[\"']?(?=[a-z_-]*\d)(?=\d*[a-z_-])[\w-]{5,}",
            re.IGNORECASE,
        ),
    ),
    ("counter", re.compile(rf"\b{_COUNTED}(?:[\s_-]*(?:id|no\.?|number))?[\s_:.#=-]*\d+\b|#\d+\b", re.IGNORECASE)),
    ("number", re.compile(r"(?<!\w)[+-]?\d+(?:[.,]\d+)*|\d+")),
)


class Found(NamedTuple):
    """Text of one kind."""

    looks_like: Look
    begin: int
    end: int


def looks_like(text: str, at: int) -> Look:
    """Say what the text around character `at` looks like."""
    if not text:
        return "text"
    at = min(max(at, 0), len(text) - 1)
    if _covers(_URL, text, at, _AROUND_URL):
        return "signed_url"
    for kind, pattern in _KINDS:
        if _covers(pattern, text, at, _AROUND):
            return kind
    return "white_space" if text[at].isspace() else "text"


def volatile(text: str) -> Iterator[Found]:
    """Yield what tends to be another in each request, in no order: signed URLs, UUIDs, times, dates, hashes, counters.

    What lies within something that was found before is left out. Numbers alone are no sign of anything.
    """
    taken: list[Found] = []
    for kind, pattern in (("signed_url", _URL), *_KINDS[:-1]):
        for match in pattern.finditer(text):
            found = Found(kind, match.start(), match.end())
            if not any(one.begin < found.end and found.begin < one.end for one in taken):
                taken.append(found)
                yield found


def _covers(pattern: re.Pattern[str], text: str, at: int, around: int) -> bool:
    begin = max(0, at - around)
    window = text[begin : at + around]
    return any(match.start() <= at - begin < match.end() for match in pattern.finditer(window))
