"""The benchmark of sampling measures what it says, on a model small enough for a test."""

from __future__ import annotations

from pathlib import Path

from benchmarks import sampling
from tests.tiny_model import save_tiny_model


def test_every_way_is_measured_beside_every_step(tmp_path: Path) -> None:
    """Each round takes a step of all sequences and samples from its logits in each way; shares follow from medians."""
    told: list[str] = []
    plan = sampling.Plan(sequences=3, context=40, rounds=4)
    result = sampling.measure(save_tiny_model(tmp_path / "tiny"), "tiny", plan, told.append)
    assert len(told) == sampling.steps(plan)
    step, greedy, *added = result.series
    assert [one.name for one in added] == [f"{name}: added" for name in sampling.WISHES if name != sampling.OFF]
    assert [len(one.values) for one in result.series] == [4] * (1 + len(sampling.WISHES))
    assert 0 < greedy.median < step.median
    assert [(target.name, target.limit) for target in result.targets] == [
        (f"{name}, share of a step", 0.1) for name in sampling.PROMISED
    ]
    shares = {one.name: one.median / step.median for one in added}
    assert [target.value for target in result.targets] == [shares[f"{name}: added"] for name in sampling.PROMISED]
