"""Windows, soft-caps and sinks: packed attention says what the plain reference says, whoever shares what."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention import Scoring, packed, reference
from engine.batch import Batch, Rows
from engine.cascade import share
from engine.window import cut, within

HEADS, KV_HEADS, HEAD_DIM, SLOTS = 6, 2, 8, 400
TRUNK, BRANCH = ((0, 40),), ((0, 40), (50, 20))
PASTS = (TRUNK, (*TRUNK, (80, 3)), BRANCH, (*BRANCH, (90, 2)), ((0, 30), (44, 4)), ((70, 6),), (), ((100, 150),))
COUNTS = (1, 3, 1, 9, 1, 1, 14, 20)


@pytest.fixture
def short_runs(monkeypatch):
    """Cut long runs of rows, and scores, into pieces that a test reaches."""
    monkeypatch.setattr("engine.window.FEWEST_ROWS", 2)
    monkeypatch.setattr("engine.window.MOST_ROWS", 4)
    monkeypatch.setattr("engine.attention.capped.MOST_SCORES", 300)


def batch_of(counts, pasts, least=2):
    """A batch of sequences with so many rows each, after what they hold; a single row is in its past already."""
    shared, own = share(pasts, least=least)
    rows, first = [], 0
    for count, past, rest in zip(counts, pasts, own, strict=True):
        rows.append(Rows(first, first + count, past, count > 1, rest))
        first += count
    nothing = torch.zeros(0, dtype=torch.int64)
    return Batch(*(torch.zeros(first, dtype=torch.int64),) * 3, tuple(rows), nothing, (), shared)


def gap(batch, scoring, seed):
    """Return the largest difference between packed attention and the reference."""
    generator = torch.Generator().manual_seed(seed)
    tokens = len(batch.tokens)
    query = torch.randn(tokens, HEADS, HEAD_DIM, generator=generator)
    key, value = (torch.randn(tokens, KV_HEADS, HEAD_DIM, generator=generator) for _ in "kv")
    keys, values = (torch.randn(SLOTS, KV_HEADS, HEAD_DIM, generator=generator) for _ in "kv")
    got = packed.attend(query, key, value, keys, values, batch, scoring)
    return float((got - reference.attend(query, key, value, keys, values, batch, scoring)).abs().max())


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("window", [None, 1, 2, 5, 33, 50, 64, 151, 1000])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("sinking", [False, True])
@pytest.mark.parametrize("least", [2, 1000])
def test_packed_equals_reference(window, softcap, sinking, least):
    """Decodes, cold and warm prefills that share beginnings agree under every window, cap and sink."""
    sinks = torch.linspace(-2.0, 3.0, HEADS) if sinking else None
    scoring = Scoring(scaling=0.5, window=window, softcap=softcap, sinks=sinks)
    assert gap(batch_of(COUNTS, PASTS, least), scoring, seed=5) < 1e-5


def test_long_runs_are_cut_and_still_right():
    """A prefill of 300 rows under a window of 20 is cut into runs of 64, each of which sees at most 83 tokens."""
    batch = batch_of((300,), ((),))
    assert gap(batch, Scoring(scaling=0.3, window=20), seed=1) < 1e-5
    rows = within(batch, 20).rows
    assert [one.count for one in rows] == [64, 64, 64, 64, 44]
    assert max(one.band.mask.shape[1] for one in rows) == 64 + 19


def test_a_window_that_reaches_back_to_the_start_changes_nothing():
    """Rows and shared stretches are the batch's own, without a mask."""
    batch = batch_of(COUNTS, PASTS)
    assert within(batch, 170).rows is batch.rows
    assert within(batch, 169).rows is not batch.rows


def test_what_a_window_leaves_is_worked_out_once():
    """All layers with one window get the same answer."""
    batch = batch_of(COUNTS, PASTS)
    assert within(batch, 7) is within(batch, 7)


def test_decodes_share_what_all_of_them_see():
    """Of 40 shared tokens, three rows at 45, 50 and 52 under a window of 30 share the last 18."""
    pasts = tuple((*TRUNK, (slot, more)) for slot, more in ((50, 5), (60, 10), (80, 12)))
    sight = within(batch_of((1, 1, 1), pasts), 30)
    assert [(one.slot, one.tokens, one.members) for one in sight.shared] == [(22, 18, (0, 1, 2))]
    assert [one.own for one in sight.rows] == [((15, 7), (50, 5)), ((20, 2), (60, 10)), ((80, 12),)]


def test_a_straggler_does_not_keep_others_from_sharing():
    """One row that sees only two of the shared tokens reads them by itself, so that two others share 26."""
    pasts = tuple((*TRUNK, (slot, more)) for slot, more in ((50, 3), (60, 4), (80, 28)))
    sight = within(batch_of((1, 1, 1), pasts), 30)
    assert [(one.slot, one.tokens, one.members) for one in sight.shared] == [(14, 26, (0, 1))]
    assert sight.rows[2].own == ((38, 2), (80, 28))


@pytest.mark.usefixtures("short_runs")
@given(st.data())
def test_every_row_sees_each_token_of_its_window_once(data: st.DataObject) -> None:
    """For random trees of stretches, counts and windows, stretches, bands and new tokens are exactly the window."""
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    trunk = tuple((40 * at, tokens) for at, tokens in enumerate(lengths))
    total = sum(lengths)
    pasts, counts = [], []
    for place in range(data.draw(st.integers(1, 4))):
        kept = data.draw(st.integers(0, total))
        more = data.draw(st.integers(0, 9))
        pasts.append((*cut(trunk, 0, kept), *(((300 + 20 * place, more),) if more else ())))
        counts.append(data.draw(st.integers(1 if pasts[-1] else 2, 11)))
    window = data.draw(st.integers(1, 30))
    batch = batch_of(counts, pasts)
    sight = within(batch, window)
    for place, rows in enumerate(sight.rows):
        whole = [(one.slot, one.tokens) for one in sight.shared if place in one.members] + list(rows.own)
        seen = [slot for first, tokens in whole for slot in range(first, first + tokens)]
        (owner,) = (one for one in batch.rows if one.first <= rows.first and rows.last <= one.last)
        held = [slot for first, tokens in owner.past for slot in range(first, first + tokens)]
        held += [-1 - at for at in range(owner.first, owner.last)] if owner.causal else []
        for row in range(rows.first, rows.last):
            banded: list[int] = []
            if rows.band is not None:
                tokens = [slot for first, n in rows.band.past for slot in range(first, first + n)]
                tokens += [-1 - at for at in range(rows.band.first, rows.band.last)]
                banded = [
                    slot for slot, hidden in zip(tokens, rows.band.mask[row - rows.first], strict=True) if not hidden
                ]
            elif rows.causal:
                banded = [-1 - at for at in range(rows.first, row + 1)]
            end = len(held) - (owner.last - 1 - row)
            assert sorted(seen + banded) == sorted(held[max(0, end - window) : end])
