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


WHOLE = {  # what both traces give from end to end
    ("conversation", 60_000): Replayed(28_848, 14_759_672),
    ("conversation", 300_000): Replayed(82_941, 42_445_349),
    ("conversation", 900_000): Replayed(102_479, 52_444_139),
    ("conversation", 1_800_000): Replayed(104_868, 53_667_307),
    ("conversation", 10**12): Replayed(105_710, 54_098_411),
    ("synthetic", 60_000): Replayed(39_202, 20_050_390),
    ("synthetic", 300_000): Replayed(71_228, 36_417_948),
    ("synthetic", 900_000): Replayed(77_953, 39_852_661),
    ("synthetic", 1_800_000): Replayed(77_953, 39_852_661),
    ("synthetic", 10**12): Replayed(77_953, 39_852_661),
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


@pytest.mark.parametrize(("name", "ttl_ms"), WHOLE)
def test_a_whole_trace_reads_what_an_unlimited_store_must(folder, name, ttl_ms):
    """From end to end, at every TTL, the tree reaches exactly what is right, and never more."""
    assert through_tree(read_trace(folder, name), ttl_ms) == WHOLE[name, ttl_ms]
