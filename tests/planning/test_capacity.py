"""What fits, and what stays resident."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning import capacity


@given(st.integers(0, 10_000), st.integers(2, 300), st.data())
def test_one_more_sequence_never_fits(pool, blocks, data):
    """So many fit as are said, with a shared prefix and without, and one more does not."""
    prefix = data.draw(st.integers(0, blocks - 1))
    alone, shared = capacity.sequences(pool, blocks), capacity.sharing(pool, blocks, prefix)
    assert alone * blocks <= pool < (alone + 1) * blocks
    assert shared == 0 or prefix + shared * (blocks - prefix) <= pool
    assert prefix + (shared + 1) * (blocks - prefix) > pool
    assert shared >= alone


@pytest.mark.parametrize(
    ("room", "verdict", "kept", "lives"),
    [
        (47, "fits", 1.0, 300.0),
        (46, "tight", 1.0, 300.0),
        (30, "tight", 1.0, 300.0),
        (15, "too many", 0.5, 150.0),
        (0, "too many", 0.0, 0.0),
    ],
)
def test_littles_law_says_what_is_resident(room, verdict, kept, lives):
    """A new prefix every ten seconds that lives 300 makes 30 of them, 47 at a peak of three deviations."""
    steady = capacity.steady(rate=0.1, life_s=300.0, room=room)
    assert (steady.resident, steady.peak) == (30.0, 47)
    assert (steady.verdict, steady.kept_share, steady.lives_s, steady.most_rate) == (verdict, kept, lives, room / 300)


@given(st.floats(1e-9, 1e9), st.floats(0.001, 1e9), st.integers(0, 10**9))
def test_a_steady_state_is_always_a_number(rate, life_s, room):
    """Nothing is endless or undefined, a life is never longer than asked, and what lives fills the room at most."""
    steady = capacity.steady(rate=rate, life_s=life_s, room=room)
    assert all(math.isfinite(value) for value in (steady.resident, steady.kept_share, steady.lives_s, steady.most_rate))
    assert steady.peak >= steady.resident
    assert 0.0 <= steady.kept_share <= 1.0
    assert steady.lives_s <= life_s
    assert rate * steady.lives_s <= max(room, 1) * (1 + 1e-9) or steady.verdict != "too many"


def test_a_simulated_stream_has_what_the_law_says():
    """Prefixes that come evenly, each for its life, are as many at any moment as rate times life."""
    rate, life_s = 2.0, 50.0
    born = [at / rate for at in range(1000)]
    alive = sum(at <= 400.0 < at + life_s for at in born)
    assert alive == capacity.steady(rate=rate, life_s=life_s, room=1).resident
