"""A reused prefix gives the answer that computing it afresh would give. Tiny random model, every trap by name."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from engine.block_table import BlockTable
from engine.messages import Abort, Sampling
from engine.operator_messages import Purge
from tests.engine.workbench import VOCAB, Bench, close, plain_answer, plain_logits, tiny_module

B = 4  # block_tokens of the bench


@pytest.fixture(scope="module")
def module():
    """One tiny model for the whole file."""
    return tiny_module()


@pytest.fixture
def bench(module):
    """A fresh engine with NaN in every slot that nobody has written."""
    return Bench(module=module, block_tokens=B)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Made-up token ids."""
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("length", [B, 2 * B - 1, 2 * B, 2 * B + 1, 1, 2])
def test_a_prompt_cached_whole_still_computes_one_token(bench, module, length):
    """Sent twice, a prompt of any length around a block border reads all but one token and says the same."""
    tokens = prompt(length)
    cold, warm = bench.ask(tokens), bench.ask(tokens)
    assert cold.tokens == warm.tokens == plain_answer(module, tokens, 3)
    assert (cold.prefilled.read, warm.prefilled.read) == (0, length - 1)
    assert close(bench.first_logits("r0"), plain_logits(module, tokens))
    assert close(bench.first_logits("r1"), bench.first_logits("r0"))


@pytest.mark.parametrize("field", ["weights", "name", "kv_dtype"])
def test_one_cache_never_mixes_models(bench, field):
    """In one tree, what was kept under other weights, another name or dtype is not found, and is found again later."""
    tokens, mine = prompt(3 * B), bench.core.card
    bench.ask(tokens)
    bench.core.card = msgspec.structs.replace(mine, **{field: "other"})
    assert bench.ask(tokens).prefilled.read == 0
    bench.core.card = mine
    assert bench.ask(tokens).prefilled.read == 3 * B - 1


def test_the_chain_goes_on_past_the_recomputed_token(bench, module):
    """A prompt that extends one that was cached whole reuses all of it."""
    tokens = prompt(2 * B)
    bench.ask(tokens)
    bench.ask(tokens)
    longer = bench.ask(tokens + prompt(B, seed=1))
    assert longer.prefilled.read >= 2 * B
    assert longer.tokens == plain_answer(module, tokens + prompt(B, seed=1), 3)


def test_the_last_token_is_not_cached_twice(bench, module):
    """Three runs of 37 tokens: K/V reach exactly as far as the tokens, and the logits do not drift."""
    tokens = prompt(37)
    for _ in range(3):
        request_id = bench.submit(tokens, max_tokens=2)
        while bench.answers[request_id].prefilled is None:
            bench.step()
        (sequence,) = bench.core.scheduler._running
        assert (sequence.computed, sequence.length) == (37, 38)
        bench.run()
    assert close(bench.first_logits("r1"), bench.first_logits("r0"))
    assert close(bench.first_logits("r2"), bench.first_logits("r1"), 1e-6)
    assert close(bench.first_logits("r2"), plain_logits(module, tokens))


def test_blocks_of_one_token_work():
    """With one token a block there is no tail to copy, and nothing changes."""
    module = tiny_module()
    bench = Bench(module=module, block_tokens=1)
    answers = [bench.ask(prompt(9)) for _ in range(3)]
    assert [a.tokens for a in answers] == [plain_answer(module, prompt(9), 3)] * 3
    assert answers[1].prefilled.read == 8


def test_a_half_filled_block_has_one_writer(bench, module):
    """Two sequences that part inside a block copy its beginning; neither sees the other's tokens."""
    tokens = prompt(2 * B + 3)
    first = bench.submit(tokens, max_tokens=2 * B)
    for _ in range(3):
        bench.step()
    other = bench.submit([*tokens[:-1], (tokens[-1] + 1) % VOCAB], max_tokens=2 * B)
    bench.run()
    assert bench.answers[first].tokens == plain_answer(module, tokens, 2 * B)
    assert bench.answers[other].tokens == plain_answer(module, [*tokens[:-1], (tokens[-1] + 1) % VOCAB], 2 * B)


def test_the_partial_last_block_is_copied(bench, module):
    """Two prompts that share 2 blocks and 3 tokens: the second reads all 11 tokens."""
    shared = prompt(2 * B + 3)
    bench.ask(shared + [1, 2, 3, 4, 5])
    answer = bench.ask(shared + [9, 8, 7])
    assert answer.prefilled.read == 2 * B + 3
    assert answer.tokens == plain_answer(module, shared + [9, 8, 7], 3)


def test_the_same_cold_prompt_eight_times_at_once(bench, module):
    """Eight at the same moment, twice, with a purge between: alike, nothing claimed uncomputed, and one copy left."""
    tokens = prompt(5 * B)
    expected = plain_answer(module, tokens, 8)
    for _ in range(2):
        ids = [bench.submit(tokens, max_tokens=8) for _ in range(8)]
        bench.run()
        assert [bench.answers[i].tokens for i in ids] == [expected] * 8
        assert sorted(bench.answers[i].prefilled.read for i in ids) == [0] + [5 * B - 1] * 7
        stats = bench.core.stats()
        assert stats.blocks_held == 0 and stats.blocks_free + stats.blocks_cached == 64
        assert stats.blocks_cached == -(-(5 * B + 8 - 1) // B)
        assert bench.ask(tokens).tokens == expected[:3]
        bench.core.handle(Purge(seq=1, tenant="default"))
        assert bench.core.stats().blocks_free == 64


def test_an_aborted_prefill_leaves_only_what_it_computed(module):
    """Cancelled after three chunks of ten, the prompt is reusable for three, and answers stay right."""
    bench = Bench(module=module, block_tokens=B, step_tokens=B, max_num_seqs=2)
    tokens = prompt(10 * B)
    request_id = bench.submit(tokens)
    for _ in range(3):
        bench.step()
    bench.abort(request_id)
    bench.run()
    again = bench.ask(tokens)
    assert again.prefilled.read == 3 * B
    assert again.tokens == plain_answer(module, tokens, 3)
    branch = tokens[: 6 * B] + prompt(B, seed=5)
    assert bench.ask(branch).tokens == plain_answer(module, branch, 3)
    assert bench.core.stats().requests_cancelled_total == 1


def test_a_step_that_fails_inside_the_model_takes_only_its_requests(module):
    """The failed request is told, its finished chunks stay, the engine goes on."""
    bench = Bench(module=module, block_tokens=B, step_tokens=B, max_num_seqs=2)
    tokens = prompt(10 * B)
    bench.runner.fail_at_step = 4
    failed = bench.ask(tokens)
    assert failed.refused.kind == "EngineError" and "RuntimeError" in failed.refused.message
    again = bench.ask(tokens)
    assert again.prefilled.read == 3 * B
    assert again.tokens == plain_answer(module, tokens, 3)
    assert bench.core.stats().requests_failed_total == 1


def test_rows_with_different_cached_lengths_in_one_batch(module):
    """One step computes 0 of 9, 16 of 17 and 32 of 50 cached tokens; each row equals its solo cold run."""
    bench = Bench(module=module, block_tokens=B, step_tokens=128)
    prompts = [prompt(9, seed=1), prompt(17, seed=2), prompt(50, seed=3)]
    bench.ask(prompts[1][:16] + [0], max_tokens=1)
    bench.ask(prompts[2][:32] + [(prompts[2][32] + 1) % VOCAB], max_tokens=1)
    ids = [bench.submit(p) for p in prompts]
    bench.step()
    assert [bench.answers[i].prefilled.read for i in ids] == [0, 16, 32]
    for request_id, tokens in zip(ids, prompts, strict=True):
        assert close(bench.first_logits(request_id), plain_logits(module, tokens))
    bench.run()


def test_eviction_never_takes_what_someone_reads(module):
    """In a pool of 12 blocks newcomers wait or make others wait, and every answer is its solo answer."""
    bench = Bench(module=module, blocks=12, block_tokens=B, max_num_seqs=4)
    prompts = [prompt(4 * B, seed=s) for s in range(4)]
    bench.ask(prompts[0], max_tokens=1)
    ids = [bench.submit(p, max_tokens=3 * B) for p in prompts]
    bench.run()
    assert [bench.answers[i].tokens for i in ids] == [plain_answer(module, p, 3 * B) for p in prompts]
    assert bench.core.stats().blocks_evicted_total > 0


def test_decodes_that_outgrow_the_pool_are_preempted_and_usage_stays(module):
    """Preempted and resumed, an answer and its usage are what they would have been alone."""
    bench = Bench(module=module, blocks=10, block_tokens=B, max_num_seqs=4)
    prompts = [prompt(3 * B, seed=s) for s in range(3)]
    ids = [bench.submit(p, max_tokens=4 * B) for p in prompts]
    bench.run()
    assert bench.core.stats().preemptions_total > 0
    for request_id, tokens in zip(ids, prompts, strict=True):
        answer = bench.answers[request_id]
        assert answer.tokens == plain_answer(module, tokens, 4 * B)
        assert (answer.prefilled.read, answer.prefilled.write, answer.prefilled.uncached) == (0, 3 * B, 0)
        assert answer.finished.projected >= 3 * B + 4 * B - 1


def test_resuming_is_cheap(module):
    """Of what a preempted answer had computed, no more is computed again than the block that was taken from it."""
    bench = Bench(module=module, blocks=10, block_tokens=B, max_num_seqs=2)
    first, second = (bench.submit(prompt(3 * B, seed=s), max_tokens=3 * B) for s in (1, 2))
    bench.run()
    assert bench.core.stats().preemptions_total == 1
    assert bench.answers[second].tokens == plain_answer(module, prompt(3 * B, seed=2), 3 * B)
    alone = 3 * B + 3 * B - 1
    assert bench.answers[first].finished.projected == alone
    assert alone < bench.answers[second].finished.projected <= alone + B + 1


def test_projections_follow_their_definition(bench):
    """Without preemption the projections done are computed + generated − 1."""
    tokens = prompt(13)
    for read in (0, 12):
        answer = bench.ask(tokens, max_tokens=5)
        assert answer.prefilled.read == read
        assert answer.finished.projected == (13 - read) + 5 - 1


def test_a_client_that_leaves_frees_its_memory(bench):
    """Fifty clients that leave in the middle of decoding hold nothing afterwards; full blocks may stay cached."""
    for turn in range(50):
        request_id = bench.submit(prompt(9, seed=turn), max_tokens=40)
        for _ in range(4):
            bench.step()
        bench.abort(request_id)
        bench.step()
        stats = bench.core.stats()
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)
    assert bench.core.stats().requests_cancelled_total == 50


def test_a_seed_does_not_depend_on_neighbours_reuse_or_preemption(module):
    """The same seed gives the same tokens alone, beside others, warm, and in a pool that preempts."""
    tokens, sampling = prompt(3 * B), Sampling(temperature=0.9, seed=11)
    alone = Bench(module=module, block_tokens=B)
    expected = alone.ask(tokens, max_tokens=12, sampling=sampling).tokens
    assert alone.ask(tokens, max_tokens=12, sampling=sampling).tokens == expected
    crowd = Bench(module=module, blocks=10, block_tokens=B)
    crowd.submit(prompt(3 * B, seed=1), max_tokens=12, sampling=Sampling(temperature=0.9))
    crowd.submit(prompt(3 * B, seed=2), max_tokens=12, sampling=Sampling(temperature=0.9, seed=12))
    mine = crowd.submit(tokens, max_tokens=12, sampling=sampling)
    crowd.run()
    assert crowd.core.stats().preemptions_total > 0
    assert crowd.answers[mine].tokens == expected


def test_unseeded_requests_differ(bench):
    """Two unseeded requests of one prompt draw different answers."""
    hot = Sampling(temperature=5.0)
    assert (
        bench.ask(prompt(8), max_tokens=20, sampling=hot).tokens
        != bench.ask(prompt(8), max_tokens=20, sampling=hot).tokens
    )


def test_tenants_partitions_and_renderings_never_share(bench):
    """Equal tokens under another tenant, partition or rendering are a miss."""
    tokens = prompt(4 * B)
    bench.ask(tokens)
    for difference in ({"tenant": "blue"}, {"partition": "blue"}, {"rendering": "blue"}):
        assert bench.ask(tokens, **difference).prefilled.read == 0
        assert bench.ask(tokens, **difference).prefilled.read == 4 * B - 1


def test_a_prefix_is_served_until_its_deadline_and_never_after(module):
    """Sliding five seconds: a hit at 3, a hit at 7 because 3 renewed it, a miss at 13."""
    bench = Bench(module=module, block_tokens=B, ttl_s=5.0)
    tokens, reads = prompt(4 * B), []
    for wait in (0, 3, 4, 6):
        bench.clock.tick(wait)
        reads.append(bench.ask(tokens, max_tokens=1).prefilled.read)
    assert reads == [0, 4 * B - 1, 4 * B - 1, 0]


def test_an_idle_engine_frees_what_has_expired(module):
    """The sweep gives expired blocks back without any request."""
    bench = Bench(module=module, block_tokens=B, ttl_s=5.0)
    bench.ask(prompt(4 * B))
    assert bench.core.stats().blocks_cached > 0
    bench.clock.tick(5.0)
    while bench.core.sweep():
        pass
    assert bench.core.stats().blocks_free == 64
    assert bench.core.stats().blocks_expired_total > 0
    bench.core.cache.check()


def test_a_conversation_reads_everything_it_said_before(bench, module):
    """Each of six turns reads the whole earlier prompt and answer but the token that was never projected."""
    history, before = prompt(11), 0
    for turn in range(6):
        answer = bench.ask(history, max_tokens=5)
        assert answer.tokens == plain_answer(module, history, 5)
        assert answer.prefilled.read == before
        before = len(history) + 4
        history += answer.tokens + prompt(6, seed=turn)


def test_a_conversation_stays_in_one_extent(bench):
    """Each turn writes on in the block that the last one left half full, so that nothing is copied or scattered."""
    tree, history = bench.core.cache.tree, prompt(11)
    for turn in range(6):
        history += bench.ask(history, max_tokens=5).tokens
        (namespace,) = tree.roots
        found = tree.peek(namespace, np.asarray(history, dtype="<u4").tobytes(), bench.clock.now)
        assert found.tail is not None and found.readable == len(history) - 1
        assert len(BlockTable(B, [*found.payload, found.tail.payload]).extents(len(history))) == 1
        history += prompt(6 - (turn == 2), seed=turn + 1)


def test_two_that_go_on_from_one_answer_at_once(bench, module):
    """Of two branches in line together neither takes the half full block for itself: both read all of it."""
    history = prompt(10)
    history += bench.ask(history, max_tokens=5).tokens
    branches = [history + prompt(7, seed=seed) for seed in (1, 2)]
    ids = [bench.submit(branch, max_tokens=4) for branch in branches]
    bench.run()
    assert [bench.answers[i].tokens for i in ids] == [plain_answer(module, branch, 4) for branch in branches]
    assert [bench.answers[i].prefilled.read for i in ids] == [14, 14]


def test_a_client_that_leaves_gives_the_half_full_block_back(bench):
    """What was taken to be written on is read again by the next one, however far who took it came."""
    history = prompt(11)
    history += bench.ask(history, max_tokens=5).tokens
    for _ in range(3):
        request = bench.submit(history + prompt(7), max_tokens=4)
        bench.core.scheduler.plan(now=bench.clock.now)
        bench.core.handle(Abort(id=request))
        bench.core.scheduler.check()
    assert bench.ask(history + prompt(7)).prefilled.read == 15
