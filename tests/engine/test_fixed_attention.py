"""The fixed attention: what the plain reference says, and the same bits however rows and keys are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.attention import Scoring, reference
from engine.attention.fixed import ROWS, TILE, Fixed, Heads, merge
from engine.batch import Batch, Rows
from engine.cascade import Stretch
from engine.window import cut
from tests.engine.workbench import one_thread

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16
BLOCK = 16
SLOTS = 2048
LENGTH = 2 * TILE + 77  # tokens of the sequence, in three tiles
SINKS = torch.linspace(-2.0, 2.0, HEADS)
SCORINGS = {
    "plain": Scoring(0.25),
    "window below a tile": Scoring(0.25, window=100),
    "window of a tile": Scoring(0.25, window=TILE),
    "window over a tile": Scoring(0.25, window=TILE + 44),
    "cap": Scoring(0.25, softcap=3.0),
    "cap and window": Scoring(0.25, softcap=3.0, window=77),
    "sinks": Scoring(0.25, sinks=SINKS),
    "sinks and window": Scoring(0.25, sinks=SINKS, window=77),
}
CUTS = {"single": 1, "odd": 17, "tile": TILE, "more than a tile": TILE + 50}


@pytest.fixture(autouse=True)
def slowly() -> Iterator[None]:
    """One thread: these products are small."""
    with one_thread():
        yield


class Sequence:
    """One sequence's queries, keys and values, computed a few tokens at a time over a pool full of NaN."""

    def __init__(self, seed: int = 0, length: int = LENGTH) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.query, self.key, self.value = (
            torch.randn(length, heads, HEAD_DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        self.length = length
        self.pool = tuple(torch.full((SLOTS, KV_HEADS, HEAD_DIM), float("nan")) for _ in range(2))
        order = torch.randperm(SLOTS // BLOCK, generator=generator).tolist()
        blocks = -(-length // BLOCK)
        self.scattered = tuple((block * BLOCK, BLOCK) for block in order[:blocks])

    def compute(self, start: int, end: int, where: tuple[Stretch, ...], scoring: Scoring, attend) -> Tensor:
        """Write tokens [start, end) and attend from them."""
        places = torch.cat([torch.arange(slot, slot + tokens) for slot, tokens in where])
        for slots, fresh in zip(self.pool, (self.key, self.value), strict=True):
            slots[places[start:end]] = fresh[start:end]
        rows = Rows(0, end - start, tuple(cut(where, 0, start)), True, (), whole=tuple(cut(where, 0, end)))
        new = self.query[start:end], self.key[start:end], self.value[start:end]
        output: Tensor = attend(*new, *self.pool, batch_of(rows), scoring)
        return output

    def all(self, size: int, where: tuple[Stretch, ...], scoring: Scoring, attend) -> Tensor:
        """Attend from every token, `size` of them at a time."""
        cuts = range(0, self.length, size)
        parts = [self.compute(at, min(self.length, at + size), where, scoring, attend) for at in cuts]
        return torch.cat(parts)


def batch_of(*rows: Rows) -> Batch:
    """A batch of so many rows, of which attention needs no more."""
    return Batch(*(torch.zeros(rows[-1].last, dtype=torch.int64),) * 3, rows, torch.zeros(0, dtype=torch.int64), ())


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_it_says_what_the_reference_says(scoring):
    """Over scattered blocks, whole and in pieces, it agrees with the plain reference within float32 noise."""
    sequence = Sequence()
    expected = sequence.all(LENGTH, sequence.scattered, scoring, reference.attend)
    for size in (LENGTH, 50):
        got = sequence.all(size, sequence.scattered, scoring, Fixed())
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_no_cut_and_no_layout_changes_a_bit(scoring, size):
    """Computed at once in one stretch, and in pieces over blocks that lie anywhere, each row has the same bits."""
    whole = Sequence().all(LENGTH, ((BLOCK, LENGTH),), scoring, Fixed())
    pieces = Sequence()
    assert torch.equal(pieces.all(size, pieces.scattered, scoring, Fixed()), whole)


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_no_neighbour_changes_a_bit(scoring):
    """Rows of three sequences in one batch have the bits that each has alone."""
    ours = [Sequence(seed, length) for seed, length in ((1, TILE + 5), (2, 40), (3, TILE))]
    alone, rows, where, at = [], [], 0, 0
    pool = tuple(torch.full((SLOTS, KV_HEADS, HEAD_DIM), float("nan")) for _ in range(2))
    for one, new in zip(ours, (1, 40, 9), strict=True):
        one.pool = pool
        stretch = ((where, one.length),)
        one.compute(0, one.length, stretch, scoring, Fixed())
        alone.append(one.compute(one.length - new, one.length, stretch, scoring, Fixed()))
        rows.append(Rows(at, at + new, (), True, (), whole=stretch))
        where, at = where + one.length, at + new
    new = [torch.cat([getattr(one, name)[-row.count :] for one, row in zip(ours, rows, strict=True)]) for name in NEW]
    together = Fixed()(*new, *pool, batch_of(*rows), scoring)
    assert torch.equal(together, torch.cat(alone))


NEW = ("query", "key", "value")


def test_short_pieces_change_no_bit(monkeypatch):
    """Where a sequence's parts would take too much memory its rows come in shorter pieces, with the same bits."""
    scoring = SCORINGS["plain"]
    whole = Sequence().all(LENGTH, ((0, LENGTH),), scoring, Fixed())
    pieces = []

    def counting(parts, sinks):
        pieces.append(parts)
        return merge(parts, sinks)

    monkeypatch.setattr("engine.attention.fixed.merge", counting)
    monkeypatch.setattr("engine.attention.fixed.MOST_FLOATS", 4_000)
    assert torch.equal(Sequence().all(LENGTH, ((0, LENGTH),), scoring, Fixed()), whole)
    assert len(pieces) > 20


def test_queries_are_padded_to_lots():
    """One KV head's queries are a multiple of the rows that kernels round alike for."""
    heads = Heads(KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    assert [heads.queries(tokens) for tokens in (1, 5, 6, 256)] == [ROWS, ROWS, 2 * ROWS, 768]


def test_tiles_unseen_are_neutral():
    """A part of which a row sees nothing changes no bit of the merge."""
    out, lse = torch.randn(3, 2, ROWS, 8), torch.randn(3, 2, ROWS)
    nothing = torch.zeros(1, 2, ROWS, 8), torch.full((1, 2, ROWS), float("-inf"))
    assert torch.equal(merge([nothing, (out, lse)]), merge([(out[:1], lse[:1]), (out[1:], lse[1:])]))


def test_a_batch_that_does_not_say_where_tokens_lie_is_an_error():
    """Rows without the place of their own tokens are refused, not read from anywhere."""
    one = torch.zeros(2, HEADS, HEAD_DIM), *(torch.zeros(2, KV_HEADS, HEAD_DIM),) * 2
    pool = (torch.zeros(SLOTS, KV_HEADS, HEAD_DIM),) * 2
    with pytest.raises(ValueError, match="where all of its tokens lie"):
        Fixed()(*one, *pool, batch_of(Rows(0, 2, (), True, ())), SCORINGS["plain"])
