"""What is stored in fewer bits, what is read back of it, and that attention over it says what the reference says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention import Scoring, packed, reference
from engine.attention.varlen import Varlen
from engine.kv_tensors import KVLayout, KVTensors
from engine.pageable import layout_of
from engine.stored import NAMES, STORED, Stored
from gateway.planning import kv
from gateway.planning.shape import shape_of
from gateway.planning.wanted import KV_DTYPES as PLANNED
from tests.engine.families import FAMILIES
from tests.engine.test_scoring import COUNTS, HEAD_DIM, HEADS, KV_HEADS, PASTS, SLOTS, batch_of

CPU = torch.device("cpu")
NARROW = ("bfloat16", "float16", "fp8", "int8")  # than float32
ERRORS = {"bfloat16": 2**-8, "float16": 2**-11, "fp8": 2**-4, "int8": 0.5 / 127}  # of the largest of a token and head
FAR = {"bfloat16": 3.4e38, "float16": 65504.0, "fp8": 448.0}


@pytest.fixture(autouse=True)
def seeded():
    """The same numbers each time."""
    torch.manual_seed(4)


def pool(name: str, seed: int = 0, slots: int = SLOTS, wide: float = 1.0) -> tuple[Stored, torch.Tensor]:
    """A pool that was written in whole, and what was given to it."""
    given_ = wide * torch.randn(slots, KV_HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    stored = Stored.empty(slots, KV_HEADS, HEAD_DIM, STORED[name], CPU)
    stored.write(torch.arange(slots), given_)
    return stored, given_


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("wide", [1e-3, 1.0, 50.0])
def test_what_is_read_is_near_what_was_written(name, wide):
    """Each number is off by at most half a step of its dtype at the largest number of its token and head."""
    stored, given_ = pool(name, wide=wide)
    off = (stored[0:SLOTS] - given_).abs() / given_.abs().amax(dim=-1, keepdim=True)
    assert float(off.max()) <= ERRORS[name] * 1.001 + (2**-10 / wide if name == "fp8" else 0.0)


@pytest.mark.parametrize("name", NARROW)
def test_a_write_returns_what_any_read_gives(name):
    """What a step attends to of its own is, to the bit, what later steps read: by slice, by index, put together."""
    stored = Stored.empty(40, KV_HEADS, HEAD_DIM, STORED[name], CPU)
    slots = torch.tensor([7, 3, 30, 31, 2])
    written = stored.write(slots, torch.randn(5, KV_HEADS, HEAD_DIM))
    assert torch.equal(written, stored[slots])
    assert torch.equal(written[2:4], stored[30:32])
    assert torch.equal(stored.together([(30, 2), (7, 1)])[0:3], written[[2, 3, 0]])


@pytest.mark.parametrize("name", FAR)
def test_what_is_too_large_is_the_largest_there_is(name):
    """No number is stored as an infinity or as none."""
    stored = Stored.empty(2, 1, 2, STORED[name], CPU)
    written = stored.write(torch.tensor([1]), torch.tensor([[[3.4e38, -3.4e38]]]))
    assert written.flatten().tolist() == pytest.approx([FAR[name], -FAR[name]], rel=0.01)


def test_a_token_of_zeros_is_read_as_zeros():
    """The scale of nothing divides nothing by zero."""
    stored = Stored.empty(2, 1, 4, torch.int8, CPU)
    assert stored.write(torch.tensor([0]), torch.zeros(1, 1, 4)).tolist() == [[[0.0] * 4]]


def test_int8_scales_each_token_and_head_by_itself():
    """A head a thousand times as large as its neighbour takes no precision from it."""
    stored = Stored.empty(2, 2, 2, torch.int8, CPU)
    written = stored.write(torch.tensor([0, 1]), torch.tensor([[[1.0, -0.5], [1000.0, 10.0]], [[0.01, 0.01], [7, 0]]]))
    assert stored.data.tolist() == [[[127, -64], [127, 1]], [[127, 127], [127, 0]]]
    assert written[1].flatten().tolist() == pytest.approx([0.01, 0.01, 7.0, 0.0])


@given(st.binary(min_size=1, max_size=64))
def test_every_fp8_is_read_as_torch_reads_it(bits: bytes) -> None:
    """Reading by shifted bits gives torch's own conversion for each finite number."""
    data = torch.tensor(list(bits), dtype=torch.uint8).view(torch.float8_e4m3fn).view(-1, 1, 1)
    expected = data.float()
    known = expected.isfinite()
    assert torch.equal(Stored(data, None, torch.float32)[0 : len(bits)][known], expected[known])


@pytest.fixture
def soon(monkeypatch):
    """Read a past in pieces of thirteen tokens."""
    monkeypatch.setattr("engine.attention.narrow.PIECE_NUMBERS", 13 * KV_HEADS * HEAD_DIM)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("window", [None, 5, 64, 151])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("sinking", [False, True])
@pytest.mark.parametrize("least", [2, 1000])
def test_packed_equals_reference(name, window, softcap, sinking, least):
    """Over numbers of few bits, whole or in pieces, decodes and prefills agree under every window, cap and sink."""
    sinks = torch.linspace(-2.0, 3.0, HEADS) if sinking else None
    scoring = Scoring(scaling=0.5, window=window, softcap=softcap, sinks=sinks)
    batch = batch_of(COUNTS, PASTS, least)
    query = torch.randn(len(batch.tokens), HEADS, HEAD_DIM)
    key, value = torch.randn(2, len(batch.tokens), KV_HEADS, HEAD_DIM)
    keys, values = (pool(name, seed)[0].seen(torch.float32) for seed in (1, 2))
    got, expected = (one.attend(query, key, value, keys, values, batch, scoring) for one in (packed, reference))
    assert float((got - expected).abs().max()) < 2e-5


@pytest.mark.parametrize(("name", "most"), [("bfloat16", 0.02), ("float16", 0.002), ("fp8", 0.2), ("int8", 0.03)])
def test_attention_over_few_bits_stays_near_float32(name, most):
    """The outputs of attention over 380 random tokens are off by a share of the largest that the dtype explains."""
    batch = batch_of((1,), (((10, 380),),))
    query = torch.randn(1, HEADS, HEAD_DIM)
    new = torch.randn(1, KV_HEADS, HEAD_DIM)
    (keys, plain_keys), (values, plain_values) = pool(name, 1), pool(name, 2)
    scoring = Scoring(scaling=HEAD_DIM**-0.5)
    got = packed.attend(query, new, new, keys.seen(torch.float32), values.seen(torch.float32), batch, scoring)
    exact = packed.attend(query, new, new, plain_keys, plain_values, batch, scoring)
    assert 0.0 < float((got - exact).abs().max() / exact.abs().max()) < most


@pytest.mark.parametrize("name", NARROW)
def test_block_tables_leave_few_bits_to_the_reference(name):
    """Where a kernel lacks the dtype, dispatch takes the plain reference, and never calls the kernel."""

    def kernel(*_: object, **__: object) -> None:
        raise AssertionError("called")

    attend = Varlen(16, kernel=kernel, dtypes=frozenset({torch.float32}))
    batch = batch_of(COUNTS, PASTS)
    query = torch.randn(len(batch.tokens), HEADS, HEAD_DIM)
    key, value = torch.randn(2, len(batch.tokens), KV_HEADS, HEAD_DIM)
    keys, values = (pool(name, seed)[0].seen(torch.float32) for seed in (1, 2))
    assert attend.lacking(query, keys, Scoring(1.0)) == f"queries in torch.float32 over keys in {STORED[name]}"
    got = attend(query, key, value, keys, values, batch, Scoring(0.5))
    torch.testing.assert_close(got, reference.attend(query, key, value, keys, values, batch, Scoring(0.5)))


@pytest.mark.parametrize("name", STORED)
def test_a_copy_takes_the_scales_along(name):
    """Copied slots of every layer read as the ones they were copied from, and their neighbours stay."""
    layout = KVLayout(layers=3, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=STORED[name])
    tensors = KVTensors(layout, blocks=4, block_tokens=4, device=CPU)
    slots = torch.arange(16)
    for layer in range(3):
        tensors.write(layer, slots, *torch.randn(2, 16, KV_HEADS, HEAD_DIM) * (layer + 1))
    before = [[part[0:16].clone() for part in tensors.read(layer, torch.float32)] for layer in range(3)]
    tensors.copy(4, 12, 3)
    for layer in range(3):
        for was, part in zip(before[layer], tensors.read(layer, torch.float32), strict=True):
            assert torch.equal(part[0:16], torch.cat([was[:12], was[4:7], was[15:]]))


def taken(tensors: KVTensors) -> int:
    """Bytes of everything a pool has laid out."""
    parts = [part for pair in tensors.rows for stored in pair for part in (stored.data, stored.scales)]
    return sum(part.nbytes for part in parts if part is not None)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", STORED)
def test_the_pool_takes_what_is_planned(family, name):
    """A token takes the same bytes in the memory laid out, in the layout's arithmetic and in `keepwarm plan`."""
    config = FAMILIES[family]
    layout = layout_of(config, STORED[name])
    shape = shape_of(config.to_dict() | {"model_type": config.model_type})
    assert layout.bytes_per_token == kv.bytes_per_token(shape.layers, name)
    assert taken(KVTensors(layout, blocks=5, block_tokens=4, device=CPU)) == 20 * layout.bytes_per_token


def test_int8_takes_55_percent_of_float16_at_most():
    """With heads of 64, the smallest in common use, a token takes 68 bytes a head in place of 128."""
    sizes = {name: KVLayout(layers=1, kv_heads=1, head_dim=64, dtype=STORED[name]).bytes_per_token for name in STORED}
    assert sizes == {"float32": 512, "bfloat16": 256, "float16": 256, "fp8": 128, "int8": 136}
    assert sizes["int8"] <= 0.55 * sizes["float16"]


def test_the_engine_and_the_plan_name_the_same_dtypes():
    """Whatever can be planned for can be stored, and auto is both."""
    assert set(PLANNED) == {"auto", *STORED} == {"auto", *NAMES.values()}
