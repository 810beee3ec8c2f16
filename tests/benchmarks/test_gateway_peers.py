"""The comparison of gateways: its upstream, its load, and what it makes of the times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from benchmarks.gateway_peers import figures
from benchmarks.gateway_peers.figures import Added
from benchmarks.gateway_peers.gateways import CONFIG
from benchmarks.gateway_peers.load import LARGE, SHAPES, SMALL, Run, Shape, run
from benchmarks.gateway_peers.upstream import MODEL, TOKENS, USAGE, WORD, application
from benchmarks.measure import ratio
from gateway.config_file import read_file

ONE = Shape(size=SMALL, streamed=True, at_once=1)


def timed(first_ms: float, total_ms: float, per_second: float = 100.0) -> Run:
    """A run whose requests all took the same time."""
    return Run(first=(first_ms / 1000,) * 4, total=(total_ms / 1000,) * 4, per_second=per_second)


def rows(**added_ms: float) -> list[Added]:
    """Rows of gateways that add so much to every first token; their rate is a hundred for each millisecond."""
    pairs = {
        (name.replace("_", "-"), shape): [(timed(1.0, 2.0), timed(1.0 + by, 2.0 + by, 100 * by))]
        for name, by in added_ms.items()
        for shape in SHAPES
    }
    return figures.rows(pairs)


async def asked(body: dict[str, Any]) -> str:
    """Ask the upstream, and return all that it says."""
    async with (
        TestServer(application()) as server,
        aiohttp.ClientSession() as http,
        http.post(server.make_url("/v1/chat/completions"), json=body) as response,
    ):
        return await response.text()


async def test_the_upstream_answers_whole() -> None:
    """One JSON object has sixteen words and the usage."""
    answer = json.loads(await asked({"model": MODEL, "messages": []}))
    assert answer["choices"][0]["message"]["content"] == WORD * TOKENS
    assert answer["usage"] == USAGE


@pytest.mark.parametrize("usage", [False, True])
async def test_the_upstream_streams(usage: bool) -> None:
    """A stream has sixteen words, usage only where it is asked for, and ends as OpenAI's do."""
    text = await asked({"model": MODEL, "stream": True, "stream_options": {"include_usage": usage}, "messages": []})
    *events, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    read = [json.loads(event) for event in events]
    words = [choice["delta"].get("content", "") for event in read for choice in event["choices"]]
    assert done == "[DONE]"
    assert "".join(words) == WORD * TOKENS
    assert [event["usage"] for event in read if "usage" in event] == ([USAGE] if usage else [])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_every_request_is_timed(shape: Shape) -> None:
    """A run sends as many as it is told, and each has a first word no later than its end."""
    async with TestServer(application()) as server, aiohttp.ClientSession() as http:
        done = await run(http, str(server.make_url("")).rstrip("/"), "key", shape, 20)
    assert (len(done.first), len(done.total)) == (20, 20)
    assert all(0 < first <= total for first, total in zip(done.first, done.total, strict=True))
    assert done.per_second > 0


async def test_a_wrong_answer_is_no_number() -> None:
    """A gateway that refuses stops the run with its own words."""
    async with TestServer(application()) as server, aiohttp.ClientSession() as http:
        with pytest.raises(RuntimeError, match="answered 404"):
            await run(http, str(server.make_url("/nowhere")), "key", ONE, 1)


def test_what_is_added_is_the_difference_of_each_pair() -> None:
    """Times straight to the upstream are taken off pair by pair, in milliseconds."""
    got = figures.added("a", ONE, [(timed(1, 2), timed(4, 7)), (timed(10, 20), timed(11, 22))])
    assert got.first_p50 == pytest.approx((3.0, 1.0))
    assert got.total_p99 == pytest.approx((5.0, 2.0))
    assert got.per_second == (100.0, 100.0)


def test_targets_hold_ours_against_each_rival() -> None:
    """Ratios of medians against their limits: two of the fastest's latency, one of LiteLLM's, one of streams."""
    targets = figures.result(rows(keepwarm=2.8, vllm_router=2.0, litellm=36.0), {}).targets
    assert [(round(one.value, 3), round(one.limit, 3), one.met) for one in targets] == [
        (1.4, 1.3, False),
        (1.4, 1.5, True),
        (0.078, 0.083, True),
        (0.714, 2.0, True),
    ]


def test_the_best_rival_is_the_one_of_each_column() -> None:
    """The least added, the highest rate; nothing where there is no rival or nothing to divide by."""
    everyone = rows(keepwarm=3.0, vllm_router=2.0, litellm=40.0)
    assert figures.best_rival(everyone, everyone[0], "first_p50") == pytest.approx(2.0)
    assert figures.best_rival(everyone, everyone[0], "per_second") == pytest.approx(4000.0)
    alone = rows(keepwarm=3.0)
    assert figures.best_rival(alone, alone[0], "first_p50") is None
    assert figures.result(alone, {}).targets == ()
    assert [ratio(1.0, 0.0), ratio(1.0, -2.0), ratio(1.0, None)] == [None, None, None]


def test_keepwarms_file_can_be_used(tmp_path: Path) -> None:
    """What Keepwarm is started with is a configuration that it takes, with a key and the one upstream."""
    path = tmp_path / "keepwarm.toml"
    path.write_text(CONFIG.format(sha256="0" * 64, upstream="http://127.0.0.1:1", model=MODEL))
    file = read_file(path)
    assert [key.tenant for key in file.keys] == ["bench"]
    assert [(one.kind, one.models) for one in file.upstreams] == [("vllm", (MODEL,))]


def test_shapes_are_those_of_the_promises() -> None:
    """Both sizes, streamed and whole, one and sixteen at a time."""
    assert {(one.size, one.streamed, one.at_once) for one in SHAPES} == {
        (size, streamed, at_once) for size in (SMALL, LARGE) for streamed in (True, False) for at_once in (1, 16)
    }
