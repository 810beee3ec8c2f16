"""What keys and values take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning import kv
from gateway.planning.shape import Layer, Shape, shape_of
from tests.planning.configs import GEMMA3_1B, GPT_OSS_20B, LLAMA_70B

KIB, MIB = 1 << 10, 1 << 20

heads = st.sampled_from([1, 2, 4, 8])
layers = st.builds(
    lambda kv_heads, groups, head_dim, window, stored: Layer(
        heads=kv_heads * groups, kv_heads=kv_heads, head_dim=head_dim, window=window, stored=stored
    ),
    heads,
    heads,
    st.integers(1, 512),
    st.none() | st.integers(1, 5000),
    st.booleans(),
)
shapes = st.lists(layers, min_size=1, max_size=6).map(
    lambda several: Shape(family="any", layers=tuple(several), hidden=8, vocab=8, max_len=None, dtype=None)
)


@pytest.mark.parametrize(("kv_heads", "each"), [(8, 320 * KIB), (64, 2560 * KIB)])
def test_eighty_layers_take_320_kib_a_token_or_two_and_a_half_mib(kv_heads, each):
    """80 layers of head size 128 in fp16 take 320 KiB with 8 KV heads, 2.5 MiB with 64."""
    shape = shape_of(LLAMA_70B | {"num_key_value_heads": kv_heads})
    assert kv.bytes_per_token(shape.layers, "float16") == each


def test_int8_counts_a_scale_for_each_token_and_head():
    """One float32 scale stands beside each head's K and each head's V: 132 bytes where float16 takes 256."""
    shape = shape_of(LLAMA_70B)
    assert kv.bytes_per_token(shape.layers, "int8") == 80 * 8 * 2 * (128 + 4) == 165 * KIB
    assert kv.bytes_per_token(shape.layers, "fp8") == 160 * KIB


def test_gemma_3_keeps_every_token_here_and_a_window_elsewhere():
    """4 of Gemma 3 1B's 26 layers hold 8,192 tokens; where windows are freed the others hold 33 blocks of 16."""
    shape = shape_of(GEMMA3_1B)
    each = 2 * 1 * 256 * 2  # bytes of a token and layer
    assert kv.bytes_per_token(shape.layers, "bfloat16") == 26 * each
    assert kv.kept_bytes(shape, "bfloat16", 8192, 16) == 26 * 8192 * each == 208 * MIB
    assert kv.windowed_bytes(shape, "bfloat16", 8192, 16) == (4 * 8192 + 22 * 33 * 16) * each


def test_gpt_oss_slides_in_every_other_layer():
    """12 of GPT-OSS 20B's 24 layers hold at most 9 blocks of 16 where windows of 128 are freed."""
    shape = shape_of(GPT_OSS_20B)
    assert [layer.window for layer in shape.layers] == [128, None] * 12
    each = 2 * 8 * 64 * 2
    assert kv.windowed_bytes(shape, "bfloat16", 32768, 16) == 12 * (32768 + 9 * 16) * each


def test_a_layer_that_reads_anothers_keys_keeps_none():
    """Of 6 layers of which the last 2 share, 4 are kept, and a layer's own head size and KV heads count."""
    config = LLAMA_70B | {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "per_layer_config": {"01": {"head_dim": 512, "num_key_value_heads": 2}},
    }
    shape = shape_of(config)
    assert kv.bytes_per_token(shape.layers, "float16") == 2 * 2 * (3 * 8 * 128 + 2 * 512)


@given(st.integers(1, 400), st.integers(1, 40))
def test_a_window_touches_as_many_blocks_as_its_worst_place(window, block):
    """The bound on a window's blocks is reached, and never passed, over all places that it can begin at."""
    touched = [(start + window - 1) // block - start // block + 1 for start in range(block)]
    assert kv.window_blocks(window, block) == max(touched)


@given(shapes, st.sampled_from(sorted(kv.BYTES)), st.integers(1, 20_000), st.integers(1, 64))
def test_freeing_windows_never_takes_more(shape, dtype, tokens, block):
    """Windowed is at most kept, equal where nothing slides, and kept is whole blocks of what a token takes."""
    kept, windowed = (of(shape, dtype, tokens, block) for of in (kv.kept_bytes, kv.windowed_bytes))
    assert windowed <= kept
    assert windowed == kept or any(layer.window is not None for layer in shape.layers)
    each = kv.bytes_per_token(shape.layers, dtype)
    assert tokens * each <= kept == -(-tokens // block) * block * each


def test_variants_name_the_models_own_heads_once():
    """Each kind of heads stands in three dtypes, the model's own once, and MHA takes heads ÷ KV heads as much."""
    found = kv.variants(shape_of(LLAMA_70B), "float16")
    assert [(one.heads, one.kv_heads, one.dtype, one.bytes_per_token // KIB) for one in found] == [
        ("MHA", 64, "float16", 2560),
        ("MHA", 64, "fp8", 1280),
        ("MHA", 64, "int8", 1320),
        ("GQA", 8, "float16", 320),
        ("GQA", 8, "fp8", 160),
        ("GQA", 8, "int8", 165),
        ("MQA", 1, "float16", 40),
        ("MQA", 1, "fp8", 20),
        ("MQA", 1, "int8", 20),
    ]
    assert [one.own for one in found] == [False] * 3 + [True] + [False] * 5


@pytest.mark.parametrize(("kv_heads", "kind"), [(64, "MHA"), (8, "GQA"), (1, "MQA")])
def test_a_kind_is_named_by_its_heads(kv_heads, kind):
    """As many KV heads as heads are MHA, one is MQA, and what lies between GQA."""
    assert kv.kind_of(shape_of(LLAMA_70B | {"num_key_value_heads": kv_heads})) == kind
