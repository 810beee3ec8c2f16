"""The two roofs of a machine, reckoned by hand and against the slow sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning.machines import MACHINES
from gateway.planning.parameters import count, weight_bytes
from gateway.planning.roofline import Model, Roofs, break_even, pairs, prefill, step, touched
from gateway.planning.shape import shape_of
from tests.planning.configs import GEMMA3_1B, GPT_OSS_20B, LLAMA_70B, QWEN3_30B_A3B

ROOFS = Roofs(flops=1e15, bandwidth=4e12)


def model_of(config, dtype="bfloat16"):
    """What of a configuration its speed depends on."""
    shape = shape_of(config)
    parameters = count(config, shape)
    assert parameters is not None
    weights = weight_bytes(config, parameters, dtype)
    assert weights is not None
    return Model(
        parameters=parameters, dense_bytes=weights[0], expert_bytes=weights[1], layers=shape.layers, kv_dtype=dtype
    )


@given(st.integers(1, 60), st.integers(0, 60), st.none() | st.integers(1, 80))
def test_pairs_are_what_each_token_sees(new, past, window):
    """The closed form is the sum over new tokens of what each sees."""
    seen = (at + 1 if window is None else min(at + 1, window) for at in range(past, past + new))
    assert pairs(new, past, window) == sum(seen)


def test_a_decode_step_by_hand():
    """One token of Llama 70B after 999: twice its matrices, attention over 1,000 tokens, weights and K and V once."""
    model = model_of(LLAMA_70B)
    cost = step(model, ROOFS, new=1, past=999)
    through = model.parameters.total - model.parameters.embedding
    assert cost.flops == 2 * through + 4 * 80 * 64 * 128 * 1000
    assert cost.bytes == 2 * model.parameters.total + 1000 * 327_680
    assert (cost.bound, cost.seconds) == ("memory", cost.bytes / ROOFS.bandwidth)
    assert cost.memory_s > cost.compute_s == cost.flops / ROOFS.flops


def test_a_sliding_layer_reads_its_window():
    """Past the window, only the layers that see everything read more."""
    model = model_of(GEMMA3_1B)
    one, two = (step(model, ROOFS, new=1, past=past) for past in (4000, 5000))
    assert two.bytes - one.bytes == 4 * 1000 * 1024
    assert two.flops - one.flops == 4 * 4 * 1000 * 4 * 256


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_chunks_compute_the_same_and_read_the_weights_again(new, past):
    """However a prefill is cut, it computes the same; each chunk reads the weights once."""
    model = model_of(LLAMA_70B)
    whole, cut = (prefill(model, ROOFS, new=new, past=past, chunk=chunk) for chunk in (new, 512))
    assert cut.flops == pytest.approx(whole.flops, rel=1e-12)
    chunks = -(-new // 512)
    assert cut.bytes - whole.bytes >= (chunks - 1) * model.dense_bytes * (1 - 1e-12)
    assert cut.seconds >= max(cut.compute_s, cut.memory_s) * (1 - 1e-12)


@given(st.integers(2, 4000), st.data())
def test_a_cached_prefix_never_costs_time(length, data):
    """The more of a prompt is read, the less time its prefill takes."""
    model = model_of(GEMMA3_1B)
    read = data.draw(st.integers(0, length - 1))
    cold = prefill(model, ROOFS, new=length, past=0, chunk=1024)
    warm = prefill(model, ROOFS, new=length - read, past=read, chunk=1024)
    assert warm.flops <= cold.flops
    assert warm.compute_s <= cold.compute_s


@pytest.mark.parametrize("config", [LLAMA_70B, GPT_OSS_20B, QWEN3_30B_A3B, GEMMA3_1B])
def test_the_break_even_batch_is_the_first_bound_by_compute(config):
    """One sequence fewer is bound by memory, that many by computing."""
    model = model_of(config)
    batch = break_even(model, ROOFS, past=0)
    assert batch is not None
    assert [step(model, ROOFS, new=1, past=0, batch=each).bound for each in (batch - 1, batch)] == ["memory", "compute"]


def test_keys_and_values_can_outweigh_computing_at_every_batch():
    """After a long past each sequence brings more bytes than its share of computing, so there is no break-even."""
    assert break_even(model_of(LLAMA_70B), ROOFS, past=100_000) is None


def test_experts_are_read_as_often_as_they_are_chosen():
    """One token touches 8 of 128 experts, and a thousand nearly all; a model without experts none."""
    parameters = model_of(QWEN3_30B_A3B).parameters
    assert touched(parameters, 1) == 1 - 120 / 128
    assert touched(parameters, 2) == pytest.approx(1 - (120 / 128) ** 2)
    assert touched(parameters, 1000) == pytest.approx(1.0)
    assert touched(model_of(LLAMA_70B).parameters, 1) == 0.0


@pytest.mark.parametrize("name", MACHINES)
def test_machines_are_whole(name):
    """Each machine has speeds in the order that hardware has them, and says where they are from."""
    machine = MACHINES[name]
    assert machine.of("bfloat16") == machine.of("fp8") == machine.flops
    assert machine.flops_float32 is None or machine.flops_float32 <= machine.flops
    assert 1e12 < machine.flops < 1e16 and 1e11 < machine.bandwidth < 1e13
    assert machine.source.startswith(("NVIDIA", "AMD"))
