"""The names that operators give to lengths of time: retention classes.

Owns: the mapping from class name to seconds, and the one reading of a duration wherever a class may stand too.
Knows no policy and no clock.
Rule: names live in one gateway's configuration and durations in shared state, so gateways that name their
classes differently still keep the same deadlines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prefix_store.retention import format_duration, parse_duration

BUILT_IN = ("5m", "30m", "1h", "12h", "24h")
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NAME_LENGTH = 64


def is_name(text: str) -> bool:
    """Tell whether `text` can name a policy or a class: 1 to 64 of letters, digits, `.`, `_` and `-`."""
    return 0 < len(text) <= NAME_LENGTH and NAME_CHARACTERS.issuperset(text)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` was most likely meant to be, or None where nothing is close."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


@dataclass(frozen=True, slots=True)
class RetentionClasses:
    """An immutable set of named durations; build it with `named`, or take `CLASSES`, the built-in five."""

    lengths_s: Mapping[str, float]

    @classmethod
    def named(cls, durations: Mapping[str, str] = MappingProxyType({})) -> RetentionClasses:
        """Return the built-in classes and `durations` (name to duration) beside them.

        Raises ValueError for a name that is malformed or that is itself a duration of another length, and for a
        length that is no duration.
        """
        lengths_s = {name: parse_duration(name) for name in BUILT_IN}
        for name, duration in durations.items():
            if not is_name(name):
                raise ValueError(f"class {name!r}: a name is 1 to {NAME_LENGTH} letters, digits, '.', '_' or '-'")
            try:
                lengths_s[name] = parse_duration(duration)
            except ValueError as error:
                raise ValueError(f"class {name!r}: {error}") from error
            if _reads_as(name) not in {None, lengths_s[name]}:
                raise ValueError(f"class {name!r} cannot last {duration!r}: its name already says how long it is")
        return cls(MappingProxyType(lengths_s))

    def seconds(self, text: str) -> float:
        """Return the length of a class name or a duration; raise ValueError when `text` is neither."""
        named_s = self.lengths_s.get(text)
        return parse_duration(text) if named_s is None else named_s

    def spell(self, text: str) -> str:
        """Return the duration that says the same as `text` without needing these names; durations stay as written."""
        if _reads_as(text) is None and text in self.lengths_s:
            return format_duration(self.lengths_s[text])
        return text

    def label(self, length_s: float) -> str:
        """Return the first class of exactly this length, built-in ones first, or the duration in its shortest form."""
        return next((name for name, s in self.lengths_s.items() if s == length_s), format_duration(length_s))

    def durations(self) -> tuple[str, ...]:
        """Return every distinct length as a duration, shortest first, spelt like its class where that is one."""
        return tuple(self.spell(self.label(length_s)) for length_s in sorted(set(self.lengths_s.values())))


def _reads_as(text: str) -> float | None:
    """Return the length of `text` as a plain duration, or None when it is only a name."""
    try:
        return parse_duration(text)
    except ValueError:
        return None


CLASSES = RetentionClasses.named()
