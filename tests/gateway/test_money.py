"""What the cache saves and costs at stated rates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.money import Prices, Rates, Used


def rates(**changes: Any) -> Rates:
    """Three dollars a million tokens, a tenth for a read, writes a quarter or twice as dear."""
    known: dict[str, Any] = {"model": "tiny", "currency": "USD", "input": 3.0, "read_multiplier": 0.1}
    return Rates(**known | {"write_multipliers": {"5m": 1.25, "1h": 2.0}} | changes)


def test_net_is_saved_less_paid() -> None:
    """A million reads save nine tenths of their price, and writes cost what they are dearer than plain tokens."""
    money = Prices([rates()]).money([Used(model="tiny", read=1_000_000, written={"5m": 400_000, "1h": 100_000})])
    assert money is not None
    assert (money.currency, money.unpriced_tokens) == ("USD", 0)
    assert [money.saved_by_reads, money.paid_for_writes] == pytest.approx([2.7, 0.3 + 0.3])
    assert money.net == pytest.approx(2.1)
    assert money.reads_per_written == 2.0


@pytest.mark.parametrize(("klass", "even"), [("5m", 0.25 / 0.9), ("1h", 1 / 0.9)])
def test_break_even_is_what_each_written_token_must_be_read(klass: str, even: float) -> None:
    """At 1.25 times a write pays after 0.28 reads, at twice after 1.11."""
    money = Prices([rates()]).money([Used(model="tiny", written={klass: 1000})])
    assert money is not None
    assert money.break_even == pytest.approx(even)


@given(st.integers(0, 10**9), st.dictionaries(st.sampled_from(["5m", "1h"]), st.integers(1, 10**9), min_size=1))
def test_net_has_the_sign_that_break_even_says(read: int, written: dict[str, int]) -> None:
    """Reads per written token above the break-even mean a gain, below it a loss."""
    money = Prices([rates()]).money([Used(model="tiny", read=read, written=written)])
    assert money is not None and money.break_even is not None and money.reads_per_written is not None
    over = money.reads_per_written - money.break_even
    assert abs(over) < 1e-6 or (over > 0) == (money.net > 0)


def test_a_prewarm_costs_all_that_it_costs() -> None:
    """Reading, writing and computing for a pre-warm are paid in full, since nobody would have asked."""
    warm = Used(model="tiny", warm_read=1_000_000, warm_written={"1h": 1_000_000}, warm_uncached=1_000_000)
    money = Prices([rates()]).money([warm])
    assert money is not None
    assert money.paid_for_writes == pytest.approx(3.0 * (0.1 + 2.0 + 1.0))
    assert money.saved_by_reads == 0


def test_tokens_without_a_rate_are_told() -> None:
    """A model or class that has no rate is left out and counted; where no model has one there is no money."""
    prices = Prices([rates()])
    used = [Used(model="tiny", read=10, prompt=30, written={"30m": 7}), Used(model="other", prompt=50)]
    money = prices.money(used)
    assert money is not None
    assert (money.unpriced_tokens, money.paid_for_writes, money.reads_per_written) == (57, 0, 10 / 7)
    assert prices.money(used[1:]) is None
    assert Prices().money(used) is None


def test_ratios_of_nothing_are_unknown() -> None:
    """Without writes there is no break-even, and where reads are no cheaper there is none either."""
    money = Prices([rates()]).money([Used(model="tiny", read=10)])
    assert money is not None and (money.reads_per_written, money.break_even) == (None, None)
    dear = Prices([rates(read_multiplier=1.0)]).money([Used(model="tiny", written={"5m": 10})])
    assert dear is not None and dear.break_even is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": " "}, "model"),
        ({"currency": ""}, "currency"),
        ({"input": -1.0}, "input"),
        ({"output": float("inf")}, "output"),
        ({"read_multiplier": float("nan")}, "read_multiplier"),
        ({"write_multipliers": {"5m": -0.1}}, "write_multipliers.5m"),
    ],
)
def test_what_is_no_price_is_refused(changes: dict[str, Any], field: str) -> None:
    """Negative, endless and missing numbers are refused naming the field."""
    with pytest.raises(ValueError, match=f"^{field}: "):
        rates(**changes)


def test_two_currencies_cannot_be_added() -> None:
    """Rates of one model twice, or in two currencies, are refused."""
    with pytest.raises(ValueError, match=r"^model: 'tiny'"):
        Prices([rates(), rates()])
    with pytest.raises(ValueError, match=r"^currency: 'EUR'"):
        Prices([rates(), rates(model="b", currency="EUR")])
