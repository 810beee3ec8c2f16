"""From logits to a token: penalties, bias, cuts and log-probabilities against the slow truth, alone and in a crowd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine import logprobs
from engine.messages import Sampling
from engine.sampler import Draw, sample, uniform
from engine.weighing import Weighing, weighs
from tests.engine.workbench import GREEDY, VOCAB, Bench, plain_answer, plain_logits, tiny_module

B = 4  # block_tokens of the bench
SMALL = 8  # tokens of the hand-made vocabulary
SLACK = 1e-6


@pytest.fixture(scope="module")
def module():
    """One tiny model for the whole file."""
    return tiny_module()


@pytest.fixture
def bench(module):
    """A fresh engine with NaN in every slot that nobody has written."""
    return Bench(module=module, block_tokens=B)


def draw(sampling: Sampling, seed: int = 0, position: int = 0, prompt=(), answer=(), **fields) -> Draw:
    """One row's wishes."""
    weighing = Weighing(sampling, packed([*prompt, *answer]), len(prompt)) if weighs(sampling) else None
    return Draw(sampling=sampling, seed=seed, position=position, weighing=weighing, **fields)


def packed(tokens: list[int]) -> bytes:
    """Token ids as they lie in a sequence."""
    return np.asarray(tokens, dtype="<u4").tobytes()


def plainly(logits: list[float], sampling: Sampling, prompt: list[int], answer: list[int]) -> list[float]:
    """The slow truth: every rule for one token at a time, as it is written down."""
    scores = []
    for token, logit in enumerate(logits):
        score = logit
        if token in prompt or token in answer:
            score = score / sampling.repetition_penalty if score > 0 else score * sampling.repetition_penalty
        score -= sampling.frequency_penalty * answer.count(token)
        score -= sampling.presence_penalty * (token in answer)
        scores.append(score + sampling.logit_bias.get(token, 0.0))
    return scores


def shares(logits: list[float], sampling: Sampling) -> list[float]:
    """The slow truth of what may be drawn, and how often: temperature, then top_k, then top_p and min_p."""
    weights = [math.exp((logit - max(logits)) / sampling.temperature) for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: -weights[token])[: sampling.top_k or None]
    whole, before = sum(weights[token] for token in order), 0.0
    kept: list[int] = []
    for token in order:
        if (before < sampling.top_p and weights[token] >= sampling.min_p * weights[order[0]]) or not kept:
            kept.append(token)
        before += weights[token] / whole
    rest = sum(weights[token] for token in kept)
    return [weights[token] / rest if token in kept else 0.0 for token in range(len(logits))]


TOKENS = st.lists(st.integers(0, SMALL - 1), max_size=12)
PENALTIES = st.builds(
    Sampling,
    temperature=st.just(0.0),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.5, 2),
    logit_bias=st.dictionaries(st.integers(0, SMALL - 1), st.floats(-100, 100)),
)
LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=SMALL, max_size=SMALL, unique=True)


@given(logits=LOGITS, sampling=PENALTIES, prompt=TOKENS, answer=TOKENS)
@settings(max_examples=200, deadline=None)
def test_penalties_are_what_is_written_down(logits, sampling, prompt, answer):
    """Greedy with penalties and bias takes the largest of the slowly penalised logits and leaves the logits alone."""
    rows = torch.tensor([logits, logits])
    wish = draw(sampling, prompt=prompt, answer=answer)
    token, neighbour = sample(rows, [wish, draw(GREEDY)])
    expected = plainly(rows[0].tolist(), sampling, prompt, answer)
    assert expected[token] >= max(expected) - 1e-9
    assert neighbour == int(rows[1].argmax())
    assert torch.equal(rows, torch.tensor([logits, logits]))


@given(
    logits=LOGITS,
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0.2, 3),
        top_p=st.floats(0.05, 1),
        top_k=st.integers(0, SMALL + 2),
        min_p=st.floats(0, 1),
    ),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None)
def test_a_draw_inverts_the_distribution_that_the_cuts_leave(logits, sampling, seed):
    """The token drawn at u is the one whose stretch of the slowly cut distribution holds u."""
    rows = torch.tensor([logits])
    token = sample(rows, [draw(sampling, seed)])[0]
    widest, narrowest = (
        shares(rows[0].tolist(), replace(sampling, top_p=sampling.top_p + slack, min_p=sampling.min_p - slack))
        for slack in (SLACK, -SLACK)
    )
    assert widest[token] > 0
    if widest == narrowest:  # no cut falls on a border, where either side is right
        reached = sum(widest[:token])
        assert reached - SLACK <= uniform(seed, 0) <= reached + widest[token] + SLACK


def test_min_p_leaves_out_what_is_far_less_likely_than_the_likeliest():
    """Of 0.6, 0.3, 0.1 a min_p of 0.4 keeps two, of 1 only the likeliest."""
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert {sample(logits, [draw(Sampling(min_p=0.4), seed)])[0] for seed in range(200)} == {0, 1}
    assert {sample(logits, [draw(Sampling(min_p=1.0), seed)])[0] for seed in range(50)} == {0}


def test_greedy_takes_the_largest_and_top_k_one_does_too():
    """Temperature 0 and top_k 1 are the same choice, and a temperature next to nothing is no trap."""
    logits = torch.tensor([[0.1, 3.0, 0.2], [2.0, 1.0, 0.0], [1.0, 7.0, 6.0]])
    wishes = [GREEDY, Sampling(temperature=1.5, top_k=1), Sampling(temperature=5e-324)]
    assert sample(logits, [draw(wish, seed) for seed, wish in enumerate(wishes)]) == [1, 0, 1]


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    """Of 0.5, 0.3, 0.2 a top_p of 0.6 keeps two; the third is never drawn."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert {sample(logits, [draw(Sampling(top_p=0.6), seed)])[0] for seed in range(200)} == {0, 1}
    assert {sample(logits, [draw(Sampling(top_p=1e-9), seed)])[0] for seed in range(50)} == {0}


def test_draws_follow_the_distribution():
    """Over 4,000 positions the shares are the probabilities, within four standard errors."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    drawn = [sample(logits, [draw(Sampling(), 7, position)])[0] for position in range(4_000)]
    for token, share in enumerate((0.5, 0.3, 0.2)):
        assert abs(drawn.count(token) / 4_000 - share) < 4 * (share * (1 - share) / 4_000) ** 0.5


def test_uniform_is_decided_by_seed_and_position_alone():
    """Equal arguments give equal numbers in [0, 1); any other seed or position another one."""
    values = {uniform(seed, position) for seed in range(-3, 20) for position in range(20)}
    assert len(values) == 23 * 20 and all(0 <= value < 1 for value in values)
    assert uniform(3, 4) == uniform(3, 4)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(logit_bias={3: 100.0}), Sampling(min_p=0.001)])
def test_what_a_grammar_forbids_is_never_chosen(sampling):
    """Whatever the logits, bias and seed, only allowed tokens are chosen; those beyond the mask are forbidden too."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 30.0, 4.0, 5.0, 6.0, 7.0, 50.0, 60.0]])
    for seed in range(100):
        assert sample(logits, [draw(sampling, seed, allowed=bytes([0b0000_0011]))])[0] in {0, 1}


@given(
    st.lists(st.lists(st.floats(-30, 30, width=32), min_size=SMALL, max_size=SMALL), min_size=1, max_size=150),
    st.integers(0, SMALL + 3),
)
@settings(max_examples=50, deadline=None)
def test_log_probabilities_are_the_models_own(rows, top):
    """Each row tells log-softmax of the raw logits; its alternatives are the likeliest, in order; all sum to 1."""
    logits = torch.tensor(rows)
    tokens = [row % SMALL for row in range(len(rows))]
    told = logprobs.tell(logits, tokens, top)
    truth = logits.double().log_softmax(-1)
    assert [entry.token for entry in told] == tokens
    for entry, expected in zip(told, truth, strict=True):
        assert abs(entry.logprob - expected[entry.token].item()) < 1e-4 and entry.logprob <= 0
        values = [value for _, value in entry.top]
        assert len(values) == min(top, SMALL) and values == sorted(values, reverse=True)
        assert all(abs(expected[token].item() - value) < 1e-4 for token, value in entry.top)
        if top >= SMALL:
            assert abs(sum(math.exp(value) for value in values) - 1) < 1e-4


def test_each_answer_token_comes_with_its_raw_log_probability(bench, module):
    """Penalties, bias and temperature move the choice and not what is told of it; the stop token is told nothing of."""
    prompt = [7, 8, 9, 7, 8]
    wild = Sampling(temperature=1.3, seed=5, presence_penalty=1.0, logit_bias={4: 3.0}, logprobs=3)
    answer = bench.ask(prompt, max_tokens=6, sampling=wild)
    assert [entry.token for entry in answer.logprobs] == answer.tokens and len(answer.tokens) == 6
    for at, entry in enumerate(answer.logprobs):
        truth = plain_logits(module, [*prompt, *answer.tokens[:at]]).log_softmax(-1)
        assert abs(entry.logprob - truth[entry.token].item()) < 1e-4
        assert [token for token, _ in entry.top] == truth.topk(3).indices.tolist()
    stopped = bench.ask(prompt, max_tokens=6, sampling=wild, stop_ids=(answer.tokens[2],))
    assert len(stopped.logprobs) == len(stopped.tokens) == answer.tokens.index(answer.tokens[2])


def test_log_probabilities_are_told_only_where_asked_for(bench):
    """A neighbour that asks for none gets none."""
    asking = bench.submit([1, 2, 3], sampling=Sampling(temperature=0.0, logprobs=0))
    silent = bench.submit([4, 5, 6])
    bench.run()
    assert [entry.top for entry in bench.answers[asking].logprobs] == [()] * 3
    assert bench.answers[silent].logprobs == []


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.5}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.7}],
    ids=lambda penalty: next(iter(penalty)),
)
def test_penalties_count_the_cached_part_too(bench, module, penalty):
    """A prompt that repeats itself, sent twice, gives the slowly penalised answer both times."""
    prompt, sampling = [17, 18] * 20, Sampling(temperature=0.0, **penalty)
    cold, warm = (bench.ask(prompt, max_tokens=8, sampling=sampling) for _ in range(2))
    expected: list[int] = []
    for _ in range(8):
        logits = plain_logits(module, [*prompt, *expected]).tolist()
        scores = plainly(logits, sampling, prompt, expected)
        expected.append(scores.index(max(scores)))
    assert cold.tokens == warm.tokens == expected
    assert (cold.prefilled.read, warm.prefilled.read) == (0, len(prompt) - 1)


def test_a_half_filled_block_under_a_bias_has_one_writer(module):
    """Beside a running answer, the same prompt with a bias to another first token: both are what they are alone."""
    prompt = torch.randint(0, VOCAB, (2 * B + 3,), generator=torch.Generator().manual_seed(0)).tolist()

    def alone(sampling: Sampling) -> list[int]:
        return Bench(module=module, block_tokens=B).ask(prompt, max_tokens=2 * B, sampling=sampling).tokens

    other = (alone(GREEDY)[0] + 1) % VOCAB
    biased = Sampling(temperature=0.0, frequency_penalty=60.0, logit_bias={other: 100.0})
    bench = Bench(module=module, block_tokens=B)
    first = bench.submit(prompt, max_tokens=2 * B)
    for _ in range(3):
        bench.step()
    second = bench.submit(prompt, max_tokens=2 * B, sampling=biased)
    bench.run()
    assert bench.answers[first].tokens == alone(GREEDY)
    assert bench.answers[second].tokens == alone(biased)
    assert bench.answers[second].tokens[0] == other


def test_neighbours_with_wishes_change_nobody(module):
    """Greedy, seeded and penalised answers are the same alone, beside each other, warm, and in a pool that preempts."""
    prompts = [[seed, *range(10, 10 + 3 * B - 1)] for seed in range(4)]
    wishes = [
        GREEDY,
        Sampling(temperature=0.9, seed=11, logprobs=2),
        Sampling(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.5),
        Sampling(temperature=0.9, seed=12, min_p=0.05, logit_bias={3: 5.0}),
    ]
    pairs = list(zip(prompts, wishes, strict=True))
    roomy = Bench(module=module, block_tokens=B)
    alone = [roomy.ask(prompt, max_tokens=12, sampling=wish).tokens for prompt, wish in pairs]
    assert [roomy.ask(prompt, max_tokens=12, sampling=wish).tokens for prompt, wish in pairs] == alone
    crowd = Bench(module=module, blocks=10, block_tokens=B)
    ids = [crowd.submit(prompt, max_tokens=12, sampling=wish) for prompt, wish in pairs]
    crowd.submit([1, 2, 3], max_tokens=12, sampling=Sampling(temperature=0.9))
    crowd.run()
    assert crowd.core.stats().preemptions_total > 0
    assert [crowd.answers[i].tokens for i in ids] == alone


def test_no_stop_comes_before_the_fewest_tokens(bench, module):
    """With min_tokens a stop token is not drawn before so many, greedy or not; then it ends the answer."""
    prompt = [3, 1, 4, 1, 5]
    first, second = plain_answer(module, prompt, 2)
    for sampling in (Sampling(temperature=0.0, min_tokens=3), Sampling(temperature=2.0, seed=1, min_tokens=3)):
        answer = bench.ask(prompt, max_tokens=8, sampling=sampling, stop_ids=(first, second))
        assert len(answer.tokens) >= 3 and not {first, second} & {*answer.tokens}
    stops = tuple(range(VOCAB))
    assert len(bench.ask(prompt, max_tokens=8, sampling=Sampling(min_tokens=8), stop_ids=stops[1:]).tokens) == 8
    assert bench.ask(prompt, max_tokens=8, sampling=Sampling(min_tokens=0), stop_ids=stops).tokens == []


def test_a_grammar_goes_before_the_fewest_tokens():
    """Where a grammar lets only a stop token come, it comes."""
    logits = torch.zeros(1, 8)
    only = Draw(sampling=GREEDY, seed=0, position=0, allowed=bytes([0b100]), withheld=frozenset({2}))
    assert sample(logits, [only]) == [2]
    other = Draw(sampling=GREEDY, seed=0, position=0, allowed=bytes([0b1100]), withheld=frozenset({2}))
    assert sample(logits, [other]) == [3]


def test_more_tokens_than_there_may_be_are_refused(bench):
    """min_tokens above max_tokens is refused by name."""
    answer = bench.ask([1, 2], max_tokens=3, sampling=Sampling(min_tokens=4))
    assert answer.refused is not None and answer.refused.field == "min_tokens"
