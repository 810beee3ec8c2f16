"""The evaluator that proves boards and rules, proved itself by hand-computed values."""

from __future__ import annotations

import math

import pytest

from tests.promql import Window, operands, parsed, read, selectors

FIRST = """
# TYPE reads counter
reads_total{model="a",cache="read"} 10
reads_total{model="a",cache="write"} 0
reads_total{model="b",cache="read"} 5
# TYPE wait histogram
wait_bucket{le="1.0"} 0
wait_bucket{le="2.0"} 0
wait_bucket{le="+Inf"} 0
wait_sum 0
wait_count 0
"""
LAST = """
# TYPE reads counter
reads_total{model="a",cache="read"} 40
reads_total{model="a",cache="write"} 30
reads_total{model="b",cache="read"} 3
reads_total{model="c",cache="read"} 9
# TYPE free gauge
free{engine="0"} 6
free{engine="1"} 2
# TYPE wait histogram
wait_bucket{le="1.0"} 2
wait_bucket{le="2.0"} 4
wait_bucket{le="+Inf"} 5
wait_sum 9
wait_count 5
"""
WINDOW = Window(read(FIRST), read(LAST), 10.0)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("sum(free)", {"": 8.0}),
        ("max(free)", {"": 6.0}),
        ("min(free)", {"": 2.0}),
        ("avg(free)", {"": 4.0}),
        ("count(free)", {"": 2.0}),
        ('free{engine!="0"}', {"1": 2.0}),
        ('free{engine=~"0|7"}', {"0": 6.0}),
        ('free{engine!~"0|7"}', {"1": 2.0}),
        ("free > 3", {"0": 6.0}),
        ("free == 7", {}),
        ("free / 2", {"0": 3.0, "1": 1.0}),
        ("vector(0.5) + 1", {"": 1.5}),
        ("sum by (model) (rate(reads_total[1m]))", {"a": 6.0, "b": 0.3}),
        ('sum by (model) (increase(reads_total{cache="read"}[5m] offset 1m))', {"a": 30.0, "b": 3.0}),
        ('sum(rate(reads_total{cache="write"}[1m])) / sum(rate(reads_total{model="a"}[1m]))', {"": 0.5}),
        ('sum by (model) (rate(reads_total{cache="write"}[1m])) / sum by (model) (rate(reads_total[1m]))', {"a": 0.5}),
        ("histogram_quantile(0.5, sum by (le) (rate(wait_bucket[1m])))", {"": 1.25}),
        ("histogram_quantile(0.2, rate(wait_bucket[1m]))", {"": 0.5}),
        ("histogram_quantile(0.99, rate(wait_bucket[1m]))", {"": 2.0}),
        ("free and on () sum(reads_total) > 1", {"0": 6.0, "1": 2.0}),
        ("free and on (engine) (free < 3)", {"1": 2.0}),
    ],
)
def test_values(query: str, value: dict[str, float]):
    """Selectors, ranges, aggregations, quantiles and operators give what Prometheus gives."""
    found = WINDOW.vector(parsed(query))
    named = {"".join(text for name, text in labels if name != "__name__"): number for labels, number in found.items()}
    assert named == pytest.approx(value)


def test_what_divides_by_nothing_is_no_number():
    """0/0 is NaN, so a query over silent counters is seen to give none."""
    silent = Window(read(LAST), read(LAST), 10.0)
    (ratio,) = silent.vector(parsed("sum(rate(reads_total[1m])) / sum(rate(reads_total[1m]))")).values()
    (quantile,) = silent.vector(parsed("histogram_quantile(0.5, rate(wait_bucket[1m]))")).values()
    assert math.isnan(ratio)
    assert math.isnan(quantile)


def test_every_series_has_its_target():
    """Labels that Prometheus adds are there, and so is its own series."""
    series = read("x 1\n", job="keepwarm")
    assert series == {
        frozenset({("__name__", "x"), ("job", "keepwarm")}): 1.0,
        frozenset({("__name__", "up"), ("job", "keepwarm")}): 1.0,
    }


def test_both_sides_of_an_alert_are_seen():
    """What is compared and joined comes apart, and every selector is found."""
    query = parsed('(sum(a{x="$v"}) / sum(rate(b[$__rate_interval]))) < 0.5 * sum(c) and on () d > 1')
    assert [str(part) for part in operands(query)] == [
        'sum(a{x=".*"}) / sum(rate(b{}[1m]))',
        "0.5 * sum(c{})",
        "d{}",
        "1",
    ]
    assert [selector.name for selector in selectors(query)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("query", ["predict_linear(free[1m], 60)", "a or b", "-free", "topk(1, free)"])
def test_what_is_not_known_is_refused(query: str):
    """Nothing is guessed."""
    with pytest.raises((NotImplementedError, KeyError)):
        WINDOW.value(parsed(query))
