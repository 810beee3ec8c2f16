"""Attention through block tables says what the plain reference says, with a kernel written plainly in its place."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import varlen

from engine.attention import Scoring, reference
from engine.attention.dispatch import attention_for, usable
from engine.attention.packed import attend as on_cpu
from engine.attention.tables import pages_of, plan
from engine.attention.varlen import Varlen
from engine.batch import Batch, Rows
from engine.block_pool import BlockId
from engine.block_table import BlockTable
from engine.cascade import Shared, share
from engine.config import EngineConfig, device_block_tokens
from engine.errors import ModelRefused
from engine.model import PagedModel
from engine.self_test import self_test
from engine.worker import build_core
from tests.engine import paged_kernel
from tests.engine.workbench import Bench, RecordingRunner, Truth, share_from, tiny_module

HEADS, KV_HEADS, HEAD_DIM, PAGE, PAGES = 4, 2, 8, 4, 24
FLOATS = frozenset({torch.float32})
GPU = torch.device("cuda")


class Counting:
    """The plain kernel, and what it was called with."""

    def __init__(self) -> None:
        self.windows: list[tuple[int, int]] = []
        self.tables: list[list[list[int]]] = []
        self.used: list[list[int]] = []

    def __call__(self, *arguments, **named):
        self.windows.append(named["window_size"])
        self.tables.append(named["block_table"].tolist())
        self.used.append(named["seqused_k"].tolist())
        return paged_kernel.varlen_attn(*arguments, **named)


def batch_of(*sequences, least=1):
    """A batch of sequences, each so many new tokens at the end of so many in these blocks."""
    spans, first = [], 0
    for blocks, length, count in sequences:
        table = BlockTable(PAGE, [BlockId(block) for block in blocks])
        whole = tuple(table.extents(length))
        spans.append((first, count, whole if count == 1 else tuple(table.extents(length - count)), whole, table))
        first += count
    shared, own = share([past for _, _, past, _, _ in spans], least=least)
    rows = tuple(
        Rows(at, at + count, past, causal=count > 1, own=rest, whole=whole)
        for (at, count, past, whole, _), rest in zip(spans, own, strict=True)
    )
    slots = [
        slot + step
        for (_, count, _, whole, table) in spans
        for slot, tokens in table.slots(sum(tokens for _, tokens in whole) - count, count)
        for step in range(tokens)
    ]
    nothing = torch.zeros(first, dtype=torch.int64)
    return Batch(nothing, nothing, torch.tensor(slots), rows, torch.zeros(0, dtype=torch.int64), (), shared)


def gap(batch, scoring, kernel, *, seed=1, dtype=torch.float32):
    """Return the largest difference from the reference; slots that nobody holds are not numbers."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    tokens = len(batch.tokens)
    query = normal(tokens, HEADS, HEAD_DIM)
    key, value = (normal(tokens, KV_HEADS, HEAD_DIM) for _ in "kv")
    keys, values = (torch.full((PAGES * PAGE, KV_HEADS, HEAD_DIM), float("nan"), dtype=dtype) for _ in "kv")
    for pool, new in ((keys, key), (values, value)):
        for slot, held in {stretch for rows in batch.rows for stretch in rows.whole}:
            pool[slot : slot + held] = normal(held, KV_HEADS, HEAD_DIM)
        pool[batch.slots] = new
    attend = Varlen(PAGE, kernel=kernel, dtypes=frozenset({dtype}))
    got = attend(query, key, value, keys, values, batch, scoring)
    assert got.dtype == dtype
    return float((got - reference.attend(query, key, value, keys, values, batch, scoring)).abs().max())


TRUNK, BRANCH = [5, 6, 2], [5, 6, 2, 9, 8]
MIXED = (
    (TRUNK + [0], 13, 1),
    (TRUNK + [11, 1], 20, 6),
    (BRANCH + [3], 22, 1),
    (BRANCH + [4, 17], 27, 5),
    ([5, 6, 13], 10, 1),
    ([20, 7], 7, 7),
    ([23], 1, 1),
)


def test_the_plain_kernel_takes_what_the_real_one_takes() -> None:
    """Names, order, kinds and defaults of the arguments are those of the installed torch."""
    ours, theirs = (
        inspect.signature(one).parameters.values() for one in (paged_kernel.varlen_attn, varlen.varlen_attn)
    )
    facts = lambda parameters: [(one.name, one.kind, one.default) for one in parameters]  # noqa: E731
    assert facts(ours) == facts(theirs)


@pytest.mark.parametrize("window", [None, 1, 3, 4, 9, 16, 26, 27, 1000])
@pytest.mark.parametrize("sinking", [False, True])
@pytest.mark.parametrize("least", [1, 10, 1000])
def test_it_equals_the_reference(window, sinking, least):
    """Decodes, cold and warm prefills that share beginnings agree under every window and with sinks."""
    sinks = torch.linspace(-2.0, 3.0, HEADS) if sinking else None
    assert gap(batch_of(*MIXED, least=least), Scoring(0.5, window, None, sinks), Counting()) < 1e-5


def test_half_precision_stays_half() -> None:
    """In bfloat16 parts are merged in float32, and the answer is bfloat16 again."""
    assert gap(batch_of(*MIXED), Scoring(0.5), Counting(), dtype=torch.bfloat16) < 3e-2


def test_what_is_shared_is_one_sequence_of_one_call() -> None:
    """Two pages for five, one more for four, two more for two: then each one's own pages, its new tokens among them."""
    tables = plan(batch_of(*MIXED), PAGE)
    assert tables.shared is not None
    assert tables.shared.pages.tolist() == [[5, 6], [2, 0], [9, 8]]
    assert tables.shared.used.tolist() == [8, 4, 8]
    assert tables.shared.starts_q.tolist() == [0, 14, 27, 33]
    assert tables.gathered.tolist() == [*range(14), *range(13), *range(7, 13)]
    assert tables.levels == ((0, 14), (14, 27), (27, 33))
    assert tables.own.used.tolist() == [1, 8, 2, 7, 2, 7, 1]
    assert tables.own.pages.tolist() == [[0, 0], [11, 1], [3, 0], [4, 17], [13, 0], [20, 7], [23, 0]]
    assert tables.own.starts_q.tolist() == [0, 1, 7, 8, 13, 14, 21, 22]
    assert (tables.own.most_q, tables.own.most_k, tables.longest) == (7, 8, 27)


def test_without_sharing_each_sequence_has_all_its_pages() -> None:
    """There is one call, over whole tables."""
    tables = plan(batch_of(*MIXED), PAGE, sharing=False)
    assert tables.shared is None
    assert tables.own.used.tolist() == [13, 20, 22, 27, 10, 7, 1]
    assert tables.own.pages[0].tolist() == [5, 6, 2, 0, 0, 0, 0]


def test_a_part_of_a_page_is_not_shared() -> None:
    """Where stretches part within a page, both read that page by themselves."""
    batch = batch_of(([0, 1, 2], 12, 1), ([0, 1, 3], 10, 1))
    tables = plan(replace(batch, shared=(Shared(0, 7, (0, 1)),)), PAGE)
    assert tables.shared is not None
    assert tables.shared.pages.tolist() == [[0]]
    assert tables.own.pages.tolist() == [[1, 2], [1, 3]]


def test_a_narrow_window_is_the_kernels_and_a_wide_one_is_none() -> None:
    """A window shorter than the longest sequence is handed over and nothing is shared; else all is as without one."""
    kernel = Counting()
    batch = batch_of(*MIXED)
    gap(batch, Scoring(0.5, window=26), kernel)
    assert kernel.windows == [(25, 0)]
    gap(batch, Scoring(0.5, window=27), kernel)
    assert kernel.windows[1:] == [(-1, 0), (-1, -1)]


def test_single_rows_need_no_mask() -> None:
    """A step of decodes alone is told so, for which the kernel reads K and V once for a group of heads."""
    kernel = Counting()
    assert gap(batch_of(([0, 1], 6, 1), ([4, 3, 2], 11, 1)), Scoring(0.5), kernel) < 1e-5
    assert kernel.windows == [(-1, -1)]


def test_tables_are_worked_out_once_a_step() -> None:
    """Layers of one batch get the same tables, and the next batch its own."""
    attend = Varlen(PAGE)
    one, other = batch_of(([0], 3, 1)), batch_of(([1], 2, 1))
    first = attend._tables_of(one, sharing=True)
    assert attend._tables_of(one, sharing=True) is first
    assert attend._tables_of(one, sharing=False) is not first
    assert attend._tables_of(other, sharing=True).own.pages.tolist() == [[1]]


@pytest.mark.parametrize(
    ("stretches", "wrong"),
    [
        (((2, 3),), "token 0 lies in slot 2"),
        (((0, 3), (7, 2)), "token 3"),
        (((0, 4), (9, 2)), "token 4 lies in slot 9"),
    ],
)
def test_stretches_that_are_no_pages_are_refused(stretches, wrong):
    """A sequence that begins within a page, or leaves one half full, has no block table."""
    with pytest.raises(ValueError, match=wrong):
        pages_of(stretches, PAGE)


def test_rows_that_do_not_say_where_they_lie_are_refused() -> None:
    """Without the place of its new tokens a sequence has no block table."""
    batch = batch_of(([0, 1], 6, 2))
    with pytest.raises(ValueError, match="where all of its tokens lie"):
        plan(replace(batch, rows=(replace(batch.rows[0], whole=()),)), PAGE)


def test_stretches_may_part_within_a_page_and_go_on_there() -> None:
    """Token by token or all at once, the pages are the same."""
    slots = [*range(20, 24), *range(8, 14)]
    assert pages_of([(slot, 1) for slot in slots], PAGE).tolist() == [5, 2, 3]
    assert pages_of([(20, 4), (8, 6)], PAGE).tolist() == [5, 2, 3]


@pytest.mark.parametrize(
    ("scoring", "dtype", "dim", "wanting"),
    [
        (Scoring(0.5, softcap=30.0), torch.float16, 64, "a soft-cap of scores"),
        (Scoring(0.5), torch.float32, 64, "queries in torch.float32 over keys in torch.float32"),
        (Scoring(0.5), torch.bfloat16, 320, "heads of 320"),
        (Scoring(0.5), torch.bfloat16, 84, "heads of 84"),
        (Scoring(0.5, window=9, sinks=torch.zeros(2)), torch.bfloat16, 256, None),
    ],
)
def test_what_the_kernel_lacks_is_known(scoring, dtype, dim, wanting):
    """Soft-caps, full precision and heads too large or uneven are the reference's; windows and sinks are not."""
    query, keys = torch.zeros(1, 2, dim, dtype=dtype), torch.zeros(256, 2, dim, dtype=dtype)
    assert Varlen(256).lacking(query, keys, scoring) == wanting


def test_what_the_kernel_lacks_the_reference_computes() -> None:
    """A soft-capped layer agrees, and the kernel is not called."""
    kernel = Counting()
    assert gap(batch_of(*MIXED), Scoring(0.5, softcap=2.0), kernel) == 0.0
    assert kernel.windows == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_trees_of_blocks_agree(data: st.DataObject) -> None:
    """For random shared beginnings, lengths, new tokens and windows, each row attends as if it stood alone."""
    free = list(range(PAGES))
    trunk = [free.pop() for _ in range(data.draw(st.integers(0, 4)))]
    sequences = []
    for _ in range(data.draw(st.integers(1, 4))):
        kept = trunk[: data.draw(st.integers(0, len(trunk)))]
        blocks = kept + [free.pop() for _ in range(data.draw(st.integers(1, 3)))]
        fresh = data.draw(st.integers(1, (len(blocks) - len(kept)) * PAGE))  # tokens that no other holds
        sequences.append((blocks, len(kept) * PAGE + fresh, data.draw(st.integers(1, fresh))))
    window = data.draw(st.none() | st.integers(1, 30))
    batch = batch_of(*sequences, least=data.draw(st.integers(1, 9)))
    assert gap(batch, Scoring(0.4, window), Counting(), seed=data.draw(st.integers(0, 99))) < 1e-5


def test_an_engine_on_block_tables_answers_as_the_model_itself() -> None:
    """Cold, warm, in chunks and side by side over a shared beginning, greedy answers are plain transformers' own."""
    module = tiny_module()
    kernel = Counting()
    model = PagedModel(module, weights="tiny", attend=Varlen(PAGE, kernel=kernel, dtypes=FLOATS))
    bench = Bench(RecordingRunner(model, blocks=64, block_tokens=PAGE), step_tokens=24)
    truth = Truth(module)
    prefix = [at * 7 % 61 for at in range(41)]
    prompts = [prefix, prefix + [3, 1], prefix + [9], [5, 5, 5]]
    with share_from(4):
        assert bench.ask(prefix).tokens == truth.answer(prefix, 3)
        asked = [bench.submit(prompt) for prompt in prompts]
        bench.run()
    assert [bench.answers[one].tokens for one in asked] == [truth.answer(prompt, 3) for prompt in prompts]
    assert any(max(used) == 40 and window == (-1, -1) for used, window in zip(kernel.used, kernel.windows, strict=True))


def test_the_self_test_goes_through_the_tables() -> None:
    """Before the first request the paged forward is compared on pages of the device's size."""
    kernel = Counting()
    module = tiny_module()
    self_test(PagedModel(module, weights="tiny", attend=Varlen(16, kernel=kernel, dtypes=FLOATS)), block_tokens=16)
    assert kernel.tables == [[[5, 1]]] * 2 + [[[5, 1, 2]]] * 2
    assert kernel.used == [[31]] * 2 + [[48]] * 2


def test_a_cpu_gets_packed_attention() -> None:
    """Nothing changes where there is no GPU: blocks of 16, and the attention there was."""
    config = EngineConfig(model="m", model_path="-")
    assert (config.device, config.block_tokens, device_block_tokens("cpu")) == ("cpu", 16, 16)
    assert attention_for(usable(config.device), config.block_tokens) is on_cpu


def test_a_gpu_gets_block_tables_of_its_own_size() -> None:
    """Blocks are pages of 256 tokens, or of a multiple."""
    assert (device_block_tokens("cuda"), device_block_tokens("cuda:1")) == (256, 256)
    for size in (256, 512):
        attend = attention_for(GPU, size, lambda _: (9, 0))
        assert isinstance(attend, Varlen)
        assert attend.page == size


PAGES_OF_256 = (
    "--block-size 16: the kernel of --device cuda reads pages of 256 tokens. Give 256 or a multiple of it, or leave "
    "--block-size out."
)


@pytest.mark.parametrize(
    ("device", "block", "capability", "told"),
    [
        ("cuda", 16, (9, 0), PAGES_OF_256),
        ("cuda:1", 256, (7, 5), "--device cuda:1: compute capability 7.5, but flash attention needs 8.0 or more."),
        ("meta", 16, (0, 0), "--device meta: there is no attention for meta. Use cpu or cuda."),
    ],
)
def test_devices_that_cannot_are_refused(device, block, capability, told):
    """The line names the device and what it lacks."""
    with pytest.raises(ModelRefused) as refused:
        attention_for(torch.device(device), block, lambda _: capability)
    assert str(refused.value) == told


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    """The engine says so before it looks for a model: what torch finds, and what to do."""
    with pytest.raises(ModelRefused) as refused:
        build_core(EngineConfig(model="m", model_path="-", device="cuda", block_tokens=256))
    assert str(refused.value) == (f"--device cuda: torch {torch.__version__} finds no GPU here. Use --device cpu.")
