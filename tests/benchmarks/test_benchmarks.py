"""The benchmarks' own arithmetic: statistics, targets, and the forms a result is kept in."""

from __future__ import annotations

import os

import msgspec
import pytest

from benchmarks import report
from benchmarks.environment import cpu_model, take_card
from benchmarks.in_process import InProcess
from benchmarks.measure import Result, Series, Target, slope
from benchmarks.second_turn import targets
from benchmarks.served import KV_BYTES, Served, peak_bytes

TARGET = Target(name="waiting", value=25.0, limit=25.0, unit="ms", ceiling="reading takes 2 ms")
RESULT = Result(
    name="sample",
    targets=(TARGET,),
    series=(Series(name="first token", unit="ms", values=(3.0, 1.0, 2.0)),),
    facts={"tokens": 2900},
)


def series(*values: float) -> Series:
    """A series that needs no name."""
    return Series(name="", unit="", values=values)


def test_series_knows_median_and_p99():
    """The median is the middle value; the p99 of a few values is the largest, of many the nearest rank."""
    assert (series(3.0, 1.0, 2.0).median, series(3.0, 1.0, 2.0).p99) == (2.0, 3.0)
    assert series(*range(1, 201)).p99 == 198


def test_target_is_met_at_its_limit():
    """A value at the limit is met, one above is missed."""
    assert TARGET.met
    assert not Target(name="", value=25.1, limit=25.0, unit="ms", ceiling="").met


def test_slope_is_that_of_the_line():
    """Points on a line give its slope; a scatter gives the least-squares one."""
    assert slope([(1000, 70.0), (2000, 90.0), (3000, 110.0)]) == pytest.approx(0.02)
    assert slope([(0, 0), (1, 2), (2, 1)]) == pytest.approx(0.5)


def test_second_turn_holds_measured_values_against_its_promises():
    """Ratios come from medians, pairs and slope; the memory limit is weights, KV and the spare."""
    outside = Served(
        cold_ms=series(3000.0, 4500.0, 6000.0),
        warm_ms=series(150.0),
        prompt_tokens=2900,
        warm_computed_tokens=20,
        peak_bytes=2_000_000_000,
    )
    inside = InProcess(
        engine_s=series(4.0, 10.0),
        plain_s=series(5.0, 10.0),
        prompt_tokens=2900,
        first_token_ms=((0, series(50.0)), (1024, series(70.48)), (2048, series(90.96))),
        weight_bytes=538_000_000,
        kv_bytes_per_token=46_080,
        read_bytes_per_s=10e9,
    )

    waiting, prefill, prefix, memory = targets(outside, inside)

    assert waiting.value == pytest.approx(1 / 30)
    assert prefill.value == pytest.approx(0.9)
    assert prefix.value == pytest.approx(20.0)
    assert inside.floor_ms_per_1000_cached == pytest.approx(4.608)
    assert memory.limit == pytest.approx((538_000_000 + KV_BYTES + 1.5e9) / 1e9)
    assert [target.met for target in (waiting, prefill, prefix, memory)] == [True] * 4


def test_peak_of_a_process_is_read_from_the_system():
    """This process has had at least a few megabytes."""
    assert peak_bytes(os.getpid()) > 1 << 22


def test_card_describes_the_machine(tmp_path):
    """The card names a processor even where Linux names none."""
    odd = tmp_path / "cpuinfo"
    odd.write_text("processor\t: 0\nmodel name\t: Imaginary 9\n")

    assert cpu_model(odd) == "Imaginary 9"
    assert cpu_model(tmp_path / "missing")
    assert take_card().cores >= 1


def test_result_is_kept_as_json_and_as_a_page(tmp_path):
    """Both files say what was promised, what was measured and where."""
    card = take_card()

    report.write(card, 0.5, RESULT, tmp_path)

    document = msgspec.json.decode((tmp_path / "sample.json").read_bytes())
    page = (tmp_path / "sample.md").read_text()
    assert (document["targets"][0]["value"], document["targets"][0]["met"]) == (25.0, True)
    assert document["environment"]["load_after"] == 0.5
    assert "| waiting | 25 | 25 ms | met | reading takes 2 ms |" in page
    assert "| first token | 2 ms | 3 ms | 3 |" in page
    assert card.cpu in page


def test_last_line_is_one_line_of_json():
    """The last line holds every benchmark and whether all targets were met."""
    line = report.last_line(take_card(), [RESULT])

    assert "\n" not in line
    assert msgspec.json.decode(line)["met"] is True
    assert list(msgspec.json.decode(line)["benchmarks"]) == ["sample"]
