"""Titles that state a finding: when there is one, and only then."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.dashboard.made_up import NOW, Json, counts, usage

pytestmark = pytest.mark.asyncio(loop_scope="session")

Run = Callable[[str], Awaitable[Any]]
GOOD = counts(20, read=8200, rest=1800)
BAD = counts(20, read=3100, rest=6900)


async def said(run: Run, answer: Json) -> str:
    """Return the title of the read ratio, with narrow spaces written as plain ones."""
    words: str = await run(f"m.readRatio({json.dumps(answer)})")
    return words.replace("\u202f", " ")


async def test_a_fall_is_told_with_its_time(run: Run) -> None:
    """A ratio that fell and stayed so is told from, to and when."""
    assert await said(run, usage([GOOD] * 10 + [BAD] * 10)) == "Read ratio fell from 82 % to 31 % at 07:50"


async def test_a_rise_is_told_too(run: Run) -> None:
    """So is one that rose."""
    assert await said(run, usage([BAD] * 15 + [GOOD] * 5)) == "Read ratio rose from 31 % to 82 % at 07:55"


async def test_a_dip_is_told_with_its_end(run: Run) -> None:
    """A ratio that is back where it was is told with both times."""
    told = await said(run, usage([GOOD] * 10 + [BAD] * 5 + [GOOD] * 5))
    assert told == "Read ratio fell from 82 % to 31 % at 07:50 and is back at 82 % since 07:55"


@pytest.mark.parametrize("odd", [0, 10, 19])
async def test_one_odd_minute_is_no_finding(run: Run, odd: int) -> None:
    """A single minute, wherever it lies, does not make a title."""
    minutes = [GOOD] * 20
    minutes[odd] = counts(20, read=5100, rest=4900)
    assert (await said(run, usage(minutes))).startswith("Read ratio holds at ")


async def test_few_requests_prove_nothing(run: Run) -> None:
    """A fall seen in fewer than twenty requests is no finding, and few requests in all are told as counts."""
    few = counts(2, read=310, rest=690)
    assert (await said(run, usage([GOOD] * 10 + [few] * 5))).startswith("Read ratio holds at ")
    assert await said(run, usage([few] * 3)) == "930 of 3,000 prompt tokens were read, in 6 requests"


async def test_nothing_is_told_of_nothing(run: Run) -> None:
    """A range without prompts is told in words."""
    assert await said(run, usage([counts()] * 20)) == "Read ratio: no prompts in this range"


async def test_first_tokens_are_compared_when_there_are_enough(run: Run) -> None:
    """A hit is told as so many times sooner, with both times; with few of either, only the measure is named."""
    enough, few = counts(100, read=1, hits=60), counts(100, read=1, hits=95)
    told = await run(f"m.firstToken({json.dumps(enough)})")
    assert told.replace("\u202f", " ") == "A hit answers 7.0 times sooner: first token 200 ms against 1.4 s"
    assert await run(f"m.firstToken({json.dumps(few)})") == "First token, hit against miss, s"


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (counts(20, read=4000, rest=2000, money=True), "Each token written was read 4.0 times: writing pays"),
        (
            counts(20, read=200, rest=2000, money=True),
            "Each token written was read 0.2 times: writing does not pay, it would from 0.3 on",
        ),
        (counts(20, read=4000, rest=2000), "Each token written was read 4.0 times"),
        (counts(), "Nothing was written on request in this range"),
    ],
)
async def test_writing_is_judged_by_its_break_even(run: Run, total: Json, words: str) -> None:
    """Whether writing pays is said where rates say from when on it does."""
    assert await run(f"m.amortisation({json.dumps(total)})") == words


async def test_a_chart_has_its_summary_in_words(run: Run) -> None:
    """The last, lowest and highest value of each series are told with their times; gaps are passed over."""
    asked = {"name": "Read ratio", "times": [NOW - 120, NOW - 60, NOW], "values": {"a": [0.5, None, 0.25], "b": []}}
    series = [{"key": "a", "label": "by tokens"}, {"key": "b", "label": "by requests"}]
    told = await run(
        f"m.summary({{...{json.dumps(asked)}, series: {json.dumps(series)}, format: (v) => m.percent(v)}})"
    )
    assert told.replace("\u202f", " ") == (
        "Read ratio. 3 points from 07:58 to 08:00. by tokens: last 25.0 %, lowest 25.0 % at 08:00, "
        "highest 50.0 % at 07:58; by requests: unknown."
    )


async def test_rates_leave_out_the_bucket_that_still_runs(run: Run) -> None:
    """Tokens a second of a bucket that ends in the future are unknown, not low."""
    answer = usage([GOOD] * 3) | {"to": NOW - 30}
    assert await run(f"m.rate({json.dumps(answer)}, (t) => t.prompt_tokens)") == [10_000 / 60, 10_000 / 60, None]


async def test_classes_are_in_the_order_of_their_lengths(run: Run) -> None:
    """Classes that the server names, and those that only the answer has, stand shortest first."""
    total = {"total": {"write_tokens": {"2h": 1, "5m": 2}}}
    about = {"classes": [{"class": "1h", "ttl_s": 3600}]}
    assert await run(f"m.classes({json.dumps(total)}, {json.dumps(about)})") == ["5m", "1h", "2h"]
