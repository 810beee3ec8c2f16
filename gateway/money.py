"""What reading from the cache saves and what writing to it costs, at rates that the operator states. Pure.

Knows no price: without `[[rates]]` there is no money anywhere. Rules: everything is compared with the same input
computed without a cache, so a written token costs what it is dearer than a plain one, and a pre-warm, which would not
have been sent, costs all that it costs; tokens without a rate are left out and counted as such.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

MILLION = 1_000_000
PLAIN = 1.0  # what a plain input token costs, as a multiple of itself


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[rates]]` entry: what a million tokens of a model cost; multipliers are of `input`."""

    model: str
    currency: str
    input: float
    read_multiplier: float
    write_multipliers: dict[str, float] = {}  # by retention class
    output: float = 0.0

    def __post_init__(self) -> None:
        """Refuse names that are empty and numbers that are no price."""
        for name in ("model", "currency"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name}: is empty")
        numbers = {name: getattr(self, name) for name in ("input", "read_multiplier", "output")}
        numbers |= {f"write_multipliers.{name}": number for name, number in self.write_multipliers.items()}
        for name, number in numbers.items():
            if not (math.isfinite(number) and number >= 0):
                raise ValueError(f"{name}: expected a number from 0, not {number}")

    def saved(self, read: float) -> float:
        """Return what so many read tokens cost less than computed ones."""
        return read * self.input / MILLION * (PLAIN - self.read_multiplier)

    def paid(self, written: Mapping[str, int]) -> float:
        """Return what tokens written by class cost more than plain ones; classes without a rate are left out."""
        return self._times(written, less=PLAIN)

    def whole(self, *, read: int, written: Mapping[str, int], uncached: int) -> float:
        """Return what an input costs that would not have been sent without a cache."""
        return (read * self.read_multiplier + uncached) * self.input / MILLION + self._times(written, less=0.0)

    def unpriced(self, written: Mapping[str, int]) -> int:
        """Return how many tokens were written under classes without a rate."""
        return sum(tokens for klass, tokens in written.items() if klass not in self.write_multipliers)

    def _times(self, written: Mapping[str, int], *, less: float) -> float:
        known = self.write_multipliers
        return sum(tokens * (known[klass] - less) for klass, tokens in written.items() if klass in known) * (
            self.input / MILLION
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Input tokens of one model: of requests, and of pre-warms apart."""

    model: str
    prompt: int = 0
    read: int = 0
    written: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    warm_read: int = 0
    warm_written: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    warm_uncached: int = 0

    @property
    def tokens(self) -> int:
        """All of them together."""
        return self.prompt + self.warm_read + sum(self.warm_written.values()) + self.warm_uncached


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Saved, paid and what is left. Ratios are None where nothing was written; `unpriced_tokens` have no rate."""

    currency: str
    saved_by_reads: float
    paid_for_writes: float
    net: float
    reads_per_written: float | None
    break_even: float | None  # reads per written token at which the net is nothing
    unpriced_tokens: int


class Prices:
    """Rates by model, all in one currency."""

    def __init__(self, rates: Sequence[Rates] = ()) -> None:
        """Take rates. Raises ValueError for two of one model and for a second currency."""
        self._by_model: dict[str, Rates] = {}
        for one in rates:
            if self._by_model.setdefault(one.model, one) is not one:
                raise ValueError(f"model: {one.model!r} has rates before")
            if one.currency != rates[0].currency:
                raise ValueError(f"currency: {one.currency!r} stands beside {rates[0].currency!r}; use one for all")
        self.currency = rates[0].currency if rates else None

    def rates(self, model: str) -> Rates | None:
        """Return the rates of a model, if it has some."""
        return self._by_model.get(model)

    def worth(self, model: str, read_tokens: float) -> float | None:
        """Return what so many tokens cost less when they are read; None without rates."""
        rates = self.rates(model)
        return None if rates is None else rates.saved(read_tokens)

    def money(self, used: Iterable[Used]) -> Money | None:
        """Add up what models have used; None where none of them has rates."""
        saved = paid = even = 0.0
        read = written = unpriced = 0
        priced = False
        for one in used:
            rates = self.rates(one.model)
            if rates is None:
                unpriced += one.tokens
                continue
            priced = True
            saved += rates.saved(one.read)
            paid += rates.paid(one.written)
            paid += rates.whole(read=one.warm_read, written=one.warm_written, uncached=one.warm_uncached)
            unpriced += rates.unpriced(one.written) + rates.unpriced(one.warm_written)
            stored = sum(one.written.values()) + sum(one.warm_written.values())
            even += rates.saved(stored)
            read += one.read
            written += stored
        if self.currency is None or not priced:
            return None
        return Money(
            currency=self.currency,
            saved_by_reads=saved,
            paid_for_writes=paid,
            net=saved - paid,
            reads_per_written=read / written if written else None,
            break_even=paid / even if even > 0 else None,
            unpriced_tokens=unpriced,
        )
