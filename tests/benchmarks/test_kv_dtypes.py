"""What each dtype of keys and values costs: all of them take their turns, and ratios are of one round."""

from __future__ import annotations

from benchmarks import __main__ as benches
from benchmarks import kv_dtypes
from engine.loading import load
from engine.stored import STORED
from tests.tiny_model import save_tiny_model


def test_every_dtype_is_timed_in_every_round(tmp_path) -> None:
    """A tiny model's decode, attention and suffix are timed as often as there are rounds, the warm-up left out."""
    told: list[str] = []
    model = load(save_tiny_model(tmp_path))
    pools = {name: kv_dtypes.Filled(model, name, 40) for name in STORED}
    times = kv_dtypes.measure(pools, 2, told.append)
    found = kv_dtypes.result(pools, times, "tiny")
    assert {len(each.values) for each in found.series} == {2}
    assert len(found.series) == 3 * len(STORED)
    assert min(value for each in found.series for value in each.values) > 0
    assert len(told) == 2 + 1
    assert found.facts["bytes_per_token_int8"] == 2 * 2 * 2 * (8 + 4)
    assert found.targets[1].value == 96 / 128


def test_a_decode_step_reads_what_is_cached(tmp_path) -> None:
    """A pool that is filled beforehand weighs in a timed step: its token sees every cached one and itself."""
    pool = kv_dtypes.Filled(load(save_tiny_model(tmp_path)), "int8", 40)
    (rows,) = pool._batch(1).rows
    assert (rows.past, rows.causal) == (((0, 41),), False)
    (rows,) = pool._batch(20).rows
    assert (rows.past, rows.causal, rows.count) == (((0, 40),), True, 20)


def test_a_ratio_is_the_median_of_rounds() -> None:
    """A busy round that slows both leaves the ratio as it is."""
    doubled = {(kv_dtypes.DECODE, "int8"): [20.0, 2000.0, 24.0], (kv_dtypes.DECODE, "float32"): [10.0, 1000.0, 10.0]}
    assert kv_dtypes._paired(*doubled.values()) == 2.0


def test_the_bench_command_knows_it() -> None:
    """`make bench ARGS=kv_dtypes` runs it, and the bar advances as often as it says."""
    assert benches.BENCHMARKS[kv_dtypes.NAME] == (kv_dtypes.run, kv_dtypes.steps())
    assert kv_dtypes.steps() == 1 + kv_dtypes.ROUNDS + 1
