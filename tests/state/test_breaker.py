"""The circuit breaker, by a hand clock."""

from __future__ import annotations

import pytest

from prefix_store.breaker import NEXT, Breaker, Circuit
from tests.state.servers import HandClock

REST_S = 10.0


@pytest.fixture
def breaker(clock: HandClock) -> Breaker:
    """Return a breaker that opens at the second failure."""
    return Breaker(failures=2, rest_s=REST_S, clock=clock)


def opened(breaker: Breaker) -> Breaker:
    """Fail until it opens."""
    for _ in range(2):
        assert breaker.admit()
        breaker.fail()
    return breaker


def test_failures_in_a_row_open_it(breaker):
    """It opens at the limit, not before, and then admits nobody."""
    breaker.fail()
    assert breaker.circuit is Circuit.CLOSED and breaker.admit()
    breaker.fail()
    assert breaker.circuit is Circuit.OPEN and not breaker.admit()


def test_a_success_between_failures_counts_from_zero(breaker):
    """Only failures in a row count."""
    for _ in range(3):
        breaker.fail()
        breaker.succeed()
    assert breaker.circuit is Circuit.CLOSED


def test_it_rests_until_the_time_is_over(breaker, clock):
    """It is open while now < until, and at that very moment lets one caller try."""
    opened(breaker)
    clock.now += REST_S - 0.001
    assert not breaker.admit()
    clock.now += 0.001
    assert [breaker.admit() for _ in range(3)] == [True, False, False]
    assert breaker.circuit is Circuit.TRIAL


def test_a_good_trial_closes_it_and_failures_count_from_zero(breaker, clock):
    """After recovery it takes as many failures as ever to open it."""
    opened(breaker)
    clock.now += REST_S
    assert breaker.admit()
    breaker.succeed()
    breaker.fail()
    assert breaker.circuit is Circuit.CLOSED


@pytest.mark.parametrize("end", ["fail", "abandon"])
def test_a_trial_without_an_answer_opens_it_for_a_whole_rest(breaker, clock, end):
    """A trial that fails, or that its caller gives up, is followed by another full rest."""
    opened(breaker)
    clock.now += REST_S
    assert breaker.admit()
    getattr(breaker, end)()
    assert breaker.circuit is Circuit.OPEN
    clock.now += REST_S - 0.001
    assert not breaker.admit()


def test_calls_from_before_the_opening_do_no_harm(breaker):
    """A late failure changes nothing, a late success closes it, a call given up while closed says nothing."""
    breaker.abandon()
    opened(breaker).fail()
    assert breaker.circuit is Circuit.OPEN
    breaker.abandon()
    breaker.succeed()
    assert breaker.circuit is Circuit.CLOSED


def test_only_listed_moves_are_possible(breaker):
    """The table names every move; another is a bug of ours."""
    assert NEXT.keys() == set(Circuit)
    with pytest.raises(AssertionError, match="is not a move"):
        breaker._go(Circuit.TRIAL)


@pytest.mark.parametrize("limits", [{"failures": 0}, {"rest_s": 0.0}])
def test_limits_make_sense(limits):
    """A breaker that never opens or never rests is refused."""
    with pytest.raises(ValueError, match="at least one failure and a rest above zero"):
        Breaker(**limits)
