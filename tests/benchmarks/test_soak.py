"""The soak's verdict, and some seconds of it on a real server."""

from __future__ import annotations

import json

import pytest

from benchmarks.soak.__main__ import main
from benchmarks.soak.verdict import Bound, judge

BOUND = Bound(share=0.1, more=1.0)


def test_the_last_third_is_held_against_the_middle_one() -> None:
    """Medians of the thirds are compared, at the limit is flat, and the first third may be anything."""
    verdict = judge("memory", "MiB", [90, 1, 50, 10, 10, 99, 12, 12, 0], BOUND)
    assert (verdict.first, verdict.middle, verdict.last, verdict.most, verdict.limit) == (50, 10, 12, 99, 12)
    assert verdict.flat
    assert not judge("memory", "MiB", [10, 10, 10, 10, 10, 10, 12.1, 12.1, 0], BOUND).flat


def test_samples_that_do_not_divide_go_to_the_first_third() -> None:
    """Of eleven samples the last three are compared with the three before."""
    verdict = judge("files", "", [7] * 5 + [1, 2, 3, 4, 5, 6], BOUND)
    assert (verdict.first, verdict.middle, verdict.last) == (7, 2, 5)


def test_too_few_samples_are_no_verdict() -> None:
    """Two samples have no thirds."""
    with pytest.raises(ValueError, match="memory: 2 samples"):
        judge("memory", "MiB", [1, 2], BOUND)


def test_a_time_too_short_for_its_looks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The command names both options."""
    with pytest.raises(SystemExit):
        main(["--minutes", "0.1", "--every", "5"])
    assert "--minutes must hold at least four looks of --every seconds" in capsys.readouterr().err


@pytest.mark.timeout(400)
def test_some_seconds_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A short soak gets the answers it expects, leaves nothing held, and its exit status is its verdict."""
    status = main(["--minutes", "0.1", "--every", "0.5", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["wrong"] == {}
    assert told["left_over"] == 0
    assert set(told["sent"]) <= {"whole", "stream", "cut", "dropped", "marked", "refused", "purge"}
    assert sum(told["sent"].values()) >= told["happened"]["requests_finished"] > 0
    assert len(told["samples"]) >= 4
    assert status == (0 if told["flat"] else 1)
    assert told["flat"] is all(one["last"] <= one["limit"] for one in told["verdicts"])
