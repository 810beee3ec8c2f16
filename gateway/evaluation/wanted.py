"""What `keepwarm eval needle` is to measure, read from its options. Pure.

Rule: what cannot be measured is refused here, in one line that names the option; what depends on the model (how long a
prompt may be, what a device can store) is asked of the engine that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from engine.config import AUTO, KV_DTYPES
from gateway.evaluation.errors import Unmeasurable

OF_THEIR_OWN: Final = (AUTO, "float16", "bfloat16", "int8", "fp8")  # what is compared where nothing is named
LENGTHS: Final = (512, 1024, 2048, 4096)
DEPTHS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_DEPTHS: Final = 21
MOST_LENGTHS: Final = 16
LONGEST: Final = 1 << 20
MOST_FACTS: Final = 60  # of one haystack: each has a town of its own

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured. `lengths` None: as far as the model's window goes."""

    dtypes: tuple[str, ...] = OF_THEIR_OWN
    lengths: tuple[int, ...] | None = None
    depths: tuple[float, ...] = DEPTHS
    facts: int = 2  # at each depth of each haystack
    seed: int = 0
    fail_under: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if not 1 <= self.facts <= MOST_FACTS:
            raise Unmeasurable(f"--facts: expected a whole number from 1 to {MOST_FACTS}, not {self.facts}")
        if self.facts * len(self.depths) > MOST_FACTS:
            raise Unmeasurable(
                f"--facts {self.facts} at {len(self.depths)} --depths are {self.facts * len(self.depths)} facts in one "
                f"prompt; at most {MOST_FACTS} are told apart"
            )
        if self.fail_under is not None and not 0.0 < self.fail_under <= 1.0:
            raise Unmeasurable(f"--fail-under: expected a share above 0, up to 1, such as 0.95, not {self.fail_under}")

    def lengths_within(self, limit: int) -> tuple[int, ...]:
        """Return the lengths to measure where a prompt and its answer may have `limit` tokens. Raises Unmeasurable."""
        if self.lengths is None:
            return tuple(length for length in LENGTHS if length <= limit) or (limit,)
        if max(self.lengths) > limit:
            raise Unmeasurable(
                f"--lengths: {max(self.lengths)} tokens are more than the {limit} that the model's window and the KV "
                "memory hold"
            )
        return self.lengths


def dtypes_of(given: Sequence[str]) -> tuple[str, ...]:
    """Read KV dtypes, each option one or several between commas; all where none is given. Raises Unmeasurable."""
    names = _each("--kv-cache-dtype", given, str.lower)
    for name in names:
        if name not in KV_DTYPES:
            raise Unmeasurable(f"--kv-cache-dtype: {name!r} is not one of {', '.join(KV_DTYPES)}")
    return names or OF_THEIR_OWN


def lengths_of(given: Sequence[str]) -> tuple[int, ...] | None:
    """Read lengths in tokens such as 512 or 4k, shortest first; None where none is given. Raises Unmeasurable."""
    lengths = sorted(_each("--lengths", given, _length))
    if len(lengths) > MOST_LENGTHS:
        raise Unmeasurable(f"--lengths: {len(lengths)} of them are more than {MOST_LENGTHS}")
    return tuple(lengths) or None


def depths_of(given: Sequence[str]) -> tuple[float, ...]:
    """Read depths in percent, shallowest first, as shares. Raises Unmeasurable."""
    depths = sorted(_each("--depths", given, _depth))
    if len(depths) > MOST_DEPTHS:
        raise Unmeasurable(f"--depths: {len(depths)} of them are more than {MOST_DEPTHS}")
    return tuple(depths) or DEPTHS


def _each(option: str, given: Iterable[str], read: Callable[[str], T]) -> tuple[T, ...]:
    """Read what stands between commas, each thing once."""
    words = [word.strip() for text in given for word in text.split(",")]
    if not all(words):
        raise Unmeasurable(f"{option}: expected values between commas, and one of them is empty")
    return tuple(dict.fromkeys(read(word) for word in words))


def _length(word: str) -> int:
    number, times = (word[:-1], 1024) if word[-1:] in "kK" and len(word) > 1 else (word, 1)
    if not (number.isascii() and number.isdecimal()) or not 1 <= int(number) * times <= LONGEST:
        raise Unmeasurable(f"--lengths: expected tokens such as 512 or 4k, up to {LONGEST}, not {word!r}")
    return int(number) * times


def _depth(word: str) -> float:
    try:
        share = float(word.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:  # not a number is in no range
        raise Unmeasurable(f"--depths: expected percent from 0 to 100, not {word!r}")
    return share
