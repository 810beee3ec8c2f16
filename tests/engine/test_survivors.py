"""Which tokens may be drawn, exactly, and with what weight: against rules applied one token at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import Sampling
from engine.sampler import Draw, sample, survivors
from engine.weighing import Weighing, weighs
from tests.engine.workbench import GREEDY

VOCAB = 40
STEPS = st.integers(-12, 12)  # quarters, of which many are equal


def told(weights: list[float], sampling: Sampling) -> list[int]:
    """The slow truth: tokens by weight, equal ones by id; top_k first, then both cuts of what it left, in fractions."""
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = order[: sampling.top_k or None]
    exact = {token: Fraction(weights[token]) for token in order}
    line, before = Fraction(sampling.top_p) * sum(exact.values()), Fraction(0)
    kept = []
    for place, token in enumerate(order):
        inside = before < line or place == 0 or sampling.top_p >= 1.0
        if inside and weights[token] >= sampling.min_p:
            kept.append(token)
        before += exact[token]
    return sorted(kept)


@given(
    steps=st.lists(STEPS, min_size=VOCAB, max_size=VOCAB),
    top_k=st.integers(0, VOCAB + 3),
    top_p=st.sampled_from([1 / 64, 0.1, 0.37, 0.5, 0.75, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 2.0**-20, 0.03, 0.3, 0.9, 1.0]),
)
@settings(max_examples=400, deadline=None)
def test_the_survivors_are_exactly_those_of_the_rules(steps, top_k, top_p, min_p):
    """With weights that are powers of two, sums are exact: each cut keeps the very tokens that the slow rules keep."""
    sampling = Sampling(temperature=1 / math.log(2), top_k=top_k, top_p=top_p, min_p=min_p)
    scores = np.asarray(steps, dtype=np.float64)
    kept, weights = survivors(scores.copy(), sampling)
    truth = [2.0 ** (step - max(steps)) for step in steps]
    places = list(range(VOCAB)) if kept is None else kept.tolist()
    assert places == told(truth, sampling)
    assert np.allclose(weights, [truth[place] for place in places], rtol=1e-12, atol=0.0)


@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.01, 1.0, 4.0, 40.0]),
    temperature=st.sampled_from([0.2, 1.0, 2.0]),
    top_p=st.floats(0.01, 0.999),
)
@settings(max_examples=100, deadline=None)
def test_a_nucleus_is_the_smallest_that_reaches_its_share(seed, spread, temperature, top_p):
    """Over 5,000 tokens, however even: those kept reach top_p, without the least of them they do not."""
    scores = np.random.default_rng(seed).normal(scale=spread, size=5_000)
    kept, weights = survivors(scores.copy(), Sampling(temperature=temperature, top_p=top_p))
    whole = np.exp((scores - scores.max()) / temperature).sum()
    assert kept is not None and len(kept) == len(weights)
    assert weights.sum() >= top_p * whole * (1 - 1e-12)
    assert weights.sum() - weights.min() < top_p * whole * (1 + 1e-12)
    left_out = np.setdiff1d(np.arange(len(scores)), kept)
    assert len(left_out) == 0 or scores[left_out].max() <= scores[kept].min()


WISHES = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.9]),
    top_p=st.sampled_from([0.3, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 7, 200]),
    min_p=st.sampled_from([0.0, 0.01, 0.4]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, 256), st.floats(-3, 3), max_size=3),
)


@given(wishes=st.lists(WISHES, min_size=2, max_size=6), seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=100, deadline=None)
def test_neither_row_nor_neighbours_change_a_token(wishes, seed, data):
    """In any order, among any neighbours and alone, each row's token is the same."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(wishes), 257, generator=generator) * 3
    tokens = torch.randint(0, 257, (30,), generator=generator).numpy().astype("<u4").tobytes()
    draws = [
        Draw(
            sampling=wish,
            seed=seed + place,
            position=30,
            weighing=Weighing(wish, tokens, 20) if weighs(wish) else None,
            withheld=frozenset({place}),
        )
        for place, wish in enumerate(wishes)
    ]
    together = sample(logits, draws)
    assert [sample(logits[place : place + 1], [draw])[0] for place, draw in enumerate(draws)] == together
    order = data.draw(st.permutations(range(len(wishes))))
    assert sample(logits[list(order)], [draws[place] for place in order]) == [together[place] for place in order]


@given(
    prompt=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    answer=st.lists(st.integers(0, 9), max_size=12),
    repetition=st.sampled_from([1.0, 1.5]),
)
def test_counting_token_by_token_is_counting_them_all(prompt, answer, repetition):
    """A sequence's counts after each of its answer's tokens are those of a sequence that begins with them."""
    sampling = Sampling(repetition_penalty=repetition, presence_penalty=1.0)
    packed = [np.asarray(tokens, dtype="<u4").tobytes() for tokens in (prompt, prompt + answer)]
    grown, whole = (Weighing(sampling, tokens, len(prompt)) for tokens in packed)
    for token in answer:
        grown.say(token)
    assert (grown.ids, grown.times) == (whole.ids, whole.times)
    counts = dict(zip(whole.ids, whole.times, strict=True))
    assert counts == {token: answer.count(token) for token in (prompt + answer if repetition != 1.0 else answer)}


def test_nothing_is_weighed_where_nothing_is_asked() -> None:
    """Greedy and plain sampling look at no token of a prompt."""
    assert not weighs(GREEDY) and not weighs(Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=3))
    assert all(
        weighs(Sampling(**wish))
        for wish in (
            {"presence_penalty": 0.1},
            {"frequency_penalty": -0.1},
            {"repetition_penalty": 1.1},
            {"logit_bias": {3: 1.0}},
        )
    )
