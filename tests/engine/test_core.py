"""What the engine's door refuses, and how facts are told."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.messages import Refused, Sampling, Submit
from engine.operator_messages import AskStats
from tests.engine.workbench import VOCAB, Bench, ScriptedRunner, scripted_answer


@pytest.fixture
def bench():
    """An engine with a scripted model and room for 32 tokens."""
    return Bench(ScriptedRunner(4), blocks=8, max_num_seqs=1)


def test_a_prompt_that_is_too_long_is_refused_never_cut(bench):
    """Prompt and answer together are held against the window, and the numbers are said."""
    answer = bench.ask([1] * 30, max_tokens=3)
    assert answer.refused.kind == "PromptTooLong"
    assert (
        "maximum context length is 32 tokens" in answer.refused.message
        and "30 in the messages" in answer.refused.message
    )
    assert bench.ask([1] * 30, max_tokens=2).refused is None


@pytest.mark.parametrize(
    ("prompt", "extra", "field"),
    [
        ([], {}, "messages"),
        ([1], {"max_tokens": -1}, "max_tokens"),
        ([1, VOCAB], {}, "messages"),
        ([1], {"stop_ids": (-3,)}, "stop_token_ids"),
        ([1], {"stop_ids": (2, VOCAB)}, "stop_token_ids"),
        ([1], {"sampling": Sampling(logit_bias={VOCAB: 1.0})}, "logit_bias"),
        ([1], {"sampling": Sampling(logit_bias={-1: 1.0})}, "logit_bias"),
        ([1], {"sampling": Sampling(logit_bias={1: 100.5})}, "logit_bias"),
        ([1], {"sampling": Sampling(logprobs=-1)}, "logprobs"),
        ([1], {"prompt_logprobs": -1}, "prompt_logprobs"),
        ([1], {"grammar": "start: /a/"}, "response_format"),  # this card names no end token
    ],
)
def test_the_door_names_the_field(bench, prompt, extra, field):
    """An empty prompt, an unknown token id wherever it stands and a number out of range are refused with the field."""
    answer = bench.ask(prompt, **extra)
    assert (answer.refused.kind, answer.refused.field) == ("RequestRefused", field)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
def test_numbers_that_are_none_are_refused_and_name_their_field(bench, field, value):
    """NaN and infinity never reach the arithmetic, while a running answer goes on."""
    running = bench.submit([1, 2, 3], max_tokens=4)
    bench.step()
    refused = bench.ask([1], sampling=Sampling(**{field: value})).refused
    assert (refused.kind, refused.field) == ("RequestRefused", field)
    assert bench.ask([1], sampling=Sampling(logit_bias={1: value})).refused.field == "logit_bias"
    assert bench.answers[running].tokens == scripted_answer([1, 2, 3], 4)


def test_a_full_queue_says_when_to_come_back():
    """One more than the queue holds is told to retry; the others are served."""
    bench = Bench(ScriptedRunner(4), blocks=8, max_waiting=2)
    ids = [bench.submit([1, 2, 3]) for _ in range(3)]
    assert bench.answers[ids[2]].refused.kind == "Overloaded"
    assert bench.answers[ids[2]].refused.retry_after_s > 0
    bench.run()
    assert all(bench.answers[i].finished for i in ids[:2])


def test_waiting_too_long_for_room_is_told():
    """Behind a long answer, a request that waits beyond the limit is told to come back; the running one goes on."""
    bench = Bench(ScriptedRunner(4), blocks=64, max_num_seqs=1, queue_timeout_s=5.0)
    first, late = bench.submit([1, 2], max_tokens=20), bench.submit([3, 4])
    for _ in range(4):
        bench.clock.tick(2.0)
        bench.step()
    assert (bench.answers[late].refused.kind, bench.answers[late].refused.retry_after_s) == ("QueueTimeout", 1.0)
    bench.run()
    assert len(bench.answers[first].tokens) == 20


def test_one_id_twice_is_refused_and_hurts_nobody(bench):
    """A second request under an id that is under way is refused; the first one's answer is whole."""
    first = bench.submit([1, 2, 3], max_tokens=4)
    tokens = (7).to_bytes(4, "little")
    answer = bench.core.handle(Submit(id=first, tokens=tokens, max_tokens=4))
    assert isinstance(answer, Refused) and answer.kind == "RequestRefused"
    bench.run()
    assert bench.answers[first].tokens == scripted_answer([1, 2, 3], 4)


def test_what_could_never_fit_the_pool_is_refused_with_the_numbers():
    """Were a pool smaller than the window, a request beyond the pool would be refused, and one within it served."""
    bench = Bench(ScriptedRunner(4), blocks=4, max_model_len=64)
    refused = bench.ask([1] * 10, max_tokens=7).refused
    assert refused.kind == "PromptTooLong"
    assert "length is 16 tokens" in refused.message and "requested 17 tokens (10 in the messages, 7" in refused.message
    assert bench.ask([1] * 10, max_tokens=6).finished


def test_requests_that_share_a_prefix_run_together():
    """Six requests on a prefix that fills most of the pool need only their own ends, so all of them run at once."""
    bench = Bench(ScriptedRunner(4), blocks=64, step_tokens=512, max_num_seqs=8)
    prefix = [at % 50 for at in range(160)]
    bench.ask(prefix, max_tokens=1)
    for end in range(6):
        bench.submit([*prefix, end, end], max_tokens=8)
    bench.step()
    assert (bench.core.stats().running, bench.core.stats().waiting) == (6, 0)
    bench.run()


def test_a_stop_token_ends_the_answer_unseen():
    """The stop token is counted as generated and not part of the answer."""
    truth = scripted_answer([5, 6], 10)
    bench = Bench(ScriptedRunner(4))
    answer = bench.ask([5, 6], max_tokens=10, stop_ids=(truth[3],))
    cut = truth.index(truth[3])
    assert answer.tokens == truth[:cut]
    assert (answer.finished.reason, answer.finished.generated) == ("stop", cut + 1)


def test_stats_count_what_happened(bench):
    """Counters are sums of the answers' facts; asking twice changes nothing."""
    first, second = bench.ask([1] * 9), bench.ask([1] * 9)
    stats = bench.core.handle(AskStats())
    assert stats == bench.core.handle(AskStats())
    assert stats.prompt_tokens_total == 18
    assert stats.read_tokens_total == first.prefilled.read + second.prefilled.read == 8
    assert stats.projected_tokens_total == first.finished.projected + second.finished.projected
    assert (stats.requests_finished_total, stats.generated_tokens_total) == (2, 6)


def test_times_are_kept_apart(bench):
    """Queueing, prefill and decode are measured each on its own."""
    blocker = bench.submit([1, 2, 3], max_tokens=2)
    waiting = bench.submit([3, 2, 1], max_tokens=3)
    for _ in range(10):
        bench.step()
        bench.clock.tick(1.0)
    assert bench.answers[blocker].prefilled.queue_s == 0
    facts = bench.answers[waiting]
    assert facts.prefilled.queue_s > 0
    assert facts.finished.decode_s == 2.0


def test_an_abort_of_an_unknown_request_is_ignored(bench):
    """The answer may just have ended when the client leaves."""
    bench.abort("nobody")
    assert bench.core.stats().requests_cancelled_total == 0


@pytest.mark.parametrize(
    "wrong", [{"block_tokens": 0}, {"kv_bytes": 0}, {"step_tokens": 4}, {"kv_cache_dtype": "int4"}]
)
def test_a_configuration_that_cannot_work_is_refused(wrong):
    """The message names the field."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EngineConfig(model="m", model_path="p", **wrong)
