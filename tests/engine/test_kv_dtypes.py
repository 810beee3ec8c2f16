"""Each dtype of keys and values: cold, warm and in pieces say the same, and caches of two dtypes never mix."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from engine.attention.dispatch import refuse_unread
from engine.config import KV_DTYPES, EngineConfig
from engine.errors import ModelRefused
from engine.loading import load
from engine.model import PagedModel
from engine.self_test import self_test
from engine.stored import STORED, Stored
from engine.worker import build_core
from prefix_store.chain import root
from tests.engine.families import FAMILIES, random_model
from tests.engine.test_families import text
from tests.engine.workbench import Bench, close, one_thread, share_from
from tests.tiny_model import save_tiny_model

pytestmark = pytest.mark.usefixtures("slowly")

# Of the largest logit, between cold and warm. What is computed in pieces differs by the noise of float32; a number that
# lies so near to the middle of two of the dtype's is stored as the other one, which weighs most in the fewest bits.
TOLERANCES = {"float32": 2e-4, "bfloat16": 2e-3, "float16": 5e-4, "fp8": 3e-2, "int8": 2e-3}
HITS = (4, 8, 32)  # cached tokens: fewer than the window of six, across it, far beyond it


@pytest.fixture(scope="module")
def slowly():
    """One thread: these matrices are tiny."""
    with one_thread():
        yield


@pytest.fixture(scope="module", params=["llama", "gemma3", "gpt-oss"])
def module(request):
    """A family with full attention, one that slides, one with sinks and experts."""
    return random_model(FAMILIES[request.param])


@pytest.fixture(scope="module")
def llama():
    """The plainest family."""
    return random_model(FAMILIES["llama"])


def bench_of(module, name: str, step_tokens: int = 64, max_num_seqs: int = 1) -> Bench:
    """A fresh engine that stores in `name`."""
    return Bench(module=module, kv_cache_dtype=name, step_tokens=step_tokens, max_num_seqs=max_num_seqs, blocks=128)


@pytest.mark.parametrize("name", STORED)
def test_cold_warm_and_in_pieces_are_the_same(module, name):
    """Prompts in one piece, in many, and read from the cache up to a tail of it, come to the same logits."""
    whole = text(1, 41)
    prompts = [whole, whole, *(whole[:hit] + text(hit, 13) for hit in (*HITS, 30))]
    cold = {}
    for prompt in prompts:
        bench = bench_of(module, name)
        assert bench.ask(prompt, max_tokens=1).prefilled.read == 0
        cold[tuple(prompt)] = bench.first_logits("r0")
    for step_tokens in (3, 16, 64):
        bench = bench_of(module, name, step_tokens)
        reads = [bench.ask(prompt, max_tokens=1).prefilled.read for prompt in prompts]
        assert reads == [0, 40, *HITS, 30]
        for at, prompt in enumerate(prompts):
            assert close(bench.first_logits(f"r{at}"), cold[tuple(prompt)], TOLERANCES[name])
        assert bench.core.cache.pool.spoilt > 0


@pytest.mark.parametrize("name", STORED)
def test_answers_in_one_batch_are_those_of_each_alone(module, name, monkeypatch):
    """Sequences that share a beginning, attended to once for all in pieces, get the logits that each gets alone."""
    monkeypatch.setattr("engine.attention.narrow.PIECE_NUMBERS", 200)
    trunk = text(2, 24)
    prompts = [trunk[:kept] + text(100 + kept + new, new) for kept, new in ((24, 3), (24, 17), (12, 9), (24, 1))]
    alone = []
    for prompt in prompts:
        bench = bench_of(module, name)
        bench.ask(prompt, max_tokens=1)
        alone.append(bench.first_logits("r0"))
    bench = bench_of(module, name, step_tokens=24, max_num_seqs=8)
    bench.ask(trunk, max_tokens=2)
    with share_from(1):
        asked = [bench.submit(prompt, max_tokens=6) for prompt in prompts]
        bench.run()
    assert [bench.answers[one].prefilled.read for one in asked] == [24, 24, 12, 24]
    for one, logits in zip(asked, alone, strict=True):
        assert close(bench.first_logits(one), logits, TOLERANCES[name])


@pytest.mark.parametrize(("name", "most"), [("float16", 0.02), ("bfloat16", 0.15), ("int8", 0.25)])
def test_logits_stay_near_float32(llama, name, most):
    """A random model, whose weights nobody chose to be kind, is off by a bounded share of its largest logit."""
    gaps = []
    for seed in range(6):
        rows = []
        for kind in ("float32", name):
            bench = bench_of(llama, kind)
            bench.ask(text(seed, 41), max_tokens=1)
            rows.append(bench.first_logits("r0"))
        gaps.append(float((rows[1] - rows[0]).abs().max() / rows[0].abs().max()))
    assert min(gaps) > 0.0
    assert max(gaps) < most


def test_caches_of_two_dtypes_never_mix(llama):
    """The same tokens have another root under each dtype, and what one has written, another does not find."""
    bench = bench_of(llama, "int8")
    prompt = text(3, 41)
    roots, reads = set(), []
    for name in (*STORED, *STORED):
        bench.core.card = msgspec.structs.replace(bench.core.card, kv_dtype=name)
        roots.add(root(bench.core._namespace("t", "", "")))
        reads.append(bench.ask(prompt, max_tokens=1).prefilled.read)
    assert len(roots) == len(STORED)
    assert reads == [0] * len(STORED) + [40] * len(STORED)


def test_what_was_computed_in_another_dtype_is_told_apart_too(llama):
    """fp8 of a model in bfloat16 is not fp8 of the same model in float32, and one dtype for both is named once."""
    card = bench_of(llama, "fp8").core.card
    assert card.kv_space == "fp8 of float32"
    assert msgspec.structs.replace(card, dtype="bfloat16").kv_space == "fp8 of bfloat16"
    assert msgspec.structs.replace(card, kv_dtype="float32").kv_space == "float32"


@pytest.mark.parametrize("name", KV_DTYPES)
def test_an_engine_starts_with_each_dtype(tmp_path, name):
    """The card tells what is stored and what is computed, and the same memory holds as many more tokens."""
    folder = save_tiny_model(tmp_path, window=64)
    config = EngineConfig(model="m", model_path=str(folder), kv_bytes=1 << 16, threads=1, kv_cache_dtype=name)
    card = build_core(config).card
    each = {"auto": 256, "float32": 256, "bfloat16": 128, "float16": 128, "fp8": 64, "int8": 96}[name]
    assert (card.dtype, card.kv_dtype) == ("float32", "float32" if name == "auto" else name)
    assert (card.kv_bytes_per_token, card.blocks) == (each, (1 << 16) // (16 * each))


@pytest.mark.parametrize("name", STORED)
def test_the_self_test_passes_each_dtype(module, name):
    """What is stored so serves every family, by the engine's own check."""
    self_test(PagedModel(module, weights="tiny", kv_cache_dtype=name))


def test_the_self_test_finds_a_dtype_that_is_read_wrong(llama):
    """An attention that misreads what is stored, and only that, is refused under the setting's name."""
    model = PagedModel(llama, weights="tiny", kv_cache_dtype="int8")
    right = model.attend

    def wrong(query, key, value, keys, values, batch, scoring):
        if isinstance(keys, Stored) and batch.rows[0].past:
            scoring = replace(scoring, scaling=0.5 * scoring.scaling)
        return right(query, key, value, keys, values, batch, scoring)

    model.attend = wrong
    with pytest.raises(ModelRefused, match="--kv-cache-dtype int8: llama gives other logits for a prompt in two parts"):
        self_test(model)


def test_keys_that_a_dtype_cannot_hold_are_refused(llama, monkeypatch):
    """A dtype whose numbers come out as none is named, before the first request."""
    monkeypatch.setattr("engine.stored.MOST_INT8", float("nan"))
    with pytest.raises(ModelRefused, match="--kv-cache-dtype int8: "):
        self_test(PagedModel(llama, weights="tiny", kv_cache_dtype="int8"))


@pytest.mark.parametrize("name", ["float32", "float16", "fp8", "int8"])
def test_a_device_that_does_not_read_a_dtype_says_so(tmp_path, name):
    """The line names the setting, the device and what would work."""
    with pytest.raises(ModelRefused) as refused:
        load(save_tiny_model(tmp_path), device=torch.device("cuda", 1), kv_cache_dtype=name)
    assert str(refused.value) == (
        f"--kv-cache-dtype {name}: attention on cuda:1 reads keys and values only as the model computes. "
        "Use auto or bfloat16, or --device cpu."
    )


@pytest.mark.parametrize("name", ["auto", "bfloat16"])
def test_a_gpu_reads_what_the_model_computes_in(name):
    """Half precision goes to the kernel as it is."""
    assert refuse_unread(name, torch.bfloat16, torch.device("cuda")) is None
