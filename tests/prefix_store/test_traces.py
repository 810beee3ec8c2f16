"""Real traffic: the tree reads from public traces exactly what a plain replay does, and never more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.traces import VARIABLE, Replayed, plainly, read_trace, through_tree

FIRST = 2_000  # requests of each trace
EXACT = {  # what the heads of the traces give at a TTL in milliseconds
    ("conversation", 60_000): Replayed(5_536, 2_832_771),
    ("conversation", 300_000): Replayed(14_709, 7_527_700),
    ("conversation", 900_000): Replayed(15_771, 8_070_959),
    ("synthetic", 60_000): Replayed(4_491, 2_294_842),
    ("synthetic", 300_000): Replayed(14_617, 7_471_780),
    ("synthetic", 900_000): Replayed(16_270, 8_317_098),
}


@pytest.fixture(scope="module")
def folder() -> Path:
    """The traces' folder."""
    if VARIABLE not in os.environ:
        pytest.skip(f"the public traces are not here: set {VARIABLE} to their folder")
    return Path(os.environ[VARIABLE])


@pytest.mark.parametrize(("name", "ttl_ms"), EXACT)
def test_the_tree_reads_what_a_plain_replay_reads(folder, name, ttl_ms):
    """Over the head of each trace, blocks and tokens read are exactly those of the slow truth."""
    requests = list(read_trace(folder, name, FIRST))
    assert len(requests) == FIRST
    assert through_tree(requests, ttl_ms) == plainly(requests, ttl_ms) == EXACT[name, ttl_ms]
