"""Traces are read as they are meant, and what is wrong is named by its line."""

from __future__ import annotations

import gzip
import json

import pytest

from gateway.advice.errors import Unreadable
from gateway.advice.trace import MOONCAKE, Group, read_trace
from prefix_store.reuse import WHOLE

PUBLIC = {"timestamp": 1000, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
LOGGED = {
    "at": 2.5,
    "tenant": "acme",
    "model": "tiny",
    "class": "5m",
    "tokens": 40,
    "block_tokens": 16,
    "blocks": [7, 8],
}


def read(path, **rest):
    """All uses of a trace."""
    return list(read_trace(path, **({"ttl": lambda _group, _class: 1.0} | rest)))


def written(folder, *lines, packed=False):
    """A trace file of these lines."""
    data = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    file = folder / "trace.jsonl"
    file.write_bytes(gzip.compress(data) if packed else data)
    return file


@pytest.mark.parametrize("packed", [False, True])
def test_the_public_format(tmp_path, packed):
    """Milliseconds, 512 tokens a block, the last one short; gzipped or not."""
    (use,) = read(written(tmp_path, PUBLIC, packed=packed))
    assert (use.at, use.group, use.tokens, use.covered, use.block_tokens) == (1000, MOONCAKE, 1000, 1000, 512)
    assert use.short == use.blocks[1] != use.blocks[0]


def test_our_own_format(tmp_path):
    """Seconds become milliseconds, and the class is told to who says how long it is kept."""
    asked = []
    (use,) = read(written(tmp_path, "", LOGGED), ttl=lambda group, klass: asked.append((group, klass)) or 5.0)
    assert (use.at, use.ttl, use.tokens, use.covered, use.short) == (2500, 5.0, 40, 32, -1)
    assert asked == [(Group("acme", "tiny"), "5m")]


def test_only_sampled_blocks_are_read(tmp_path):
    """Below a quarter of the space a quarter of many ids remain, each of them one of the whole."""
    file = written(tmp_path, PUBLIC | {"input_length": 512 * 4000, "hash_ids": list(range(4000))})
    (whole,), (some,) = read(file), read(file, limit=lambda: WHOLE >> 2)
    assert len(set(whole.blocks)) == 4000
    assert some.blocks == [block for block in whole.blocks if block < WHOLE >> 2]
    assert 850 < len(some.blocks) < 1150


def test_a_time_that_goes_back_counts_as_the_latest(tmp_path):
    """Lines are in the order in which exchanges ended, and their times in that of their beginnings."""
    uses = read(written(tmp_path, PUBLIC, PUBLIC | {"timestamp": 400}))
    assert [use.at for use in uses] == [1000, 1000]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`"),
        (PUBLIC | {"timestamp": -1}, "timestamp"),
        (PUBLIC | {"timestamp": "soon"}, "timestamp"),
        (PUBLIC | {"input_length": None}, "input_length"),
        (PUBLIC | {"hash_ids": [1, "two"]}, "hash_ids"),
        (PUBLIC | {"hash_ids": [1, 2, 3]}, "hash_ids: 3 ids are too many for an input_length of 1000"),
        ({"timestamp": 1, "input_length": 1}, "hash_ids"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path, line, problem):
    """The file, the line and the field stand in the message."""
    file = written(tmp_path, PUBLIC, "", line)
    with pytest.raises(Unreadable, match=r"trace\.jsonl, line 3: ") as caught:
        read(file)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"blocks": [1, 2, 3]}, "too many for 40 tokens"), ({"blocks": [-1]}, "blocks"), ({"at": 1e300}, "at")],
)
def test_a_wrong_line_of_our_own_is_named_as_well(tmp_path, change, problem):
    """The same for the gateway's log."""
    with pytest.raises(Unreadable, match="line 1: ") as caught:
        read(written(tmp_path, LOGGED | change))
    assert problem in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    """One that is not there, a folder, and a gzip file that ends early."""
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(PUBLIC).encode() * 100)[:-10])
    for file in (tmp_path / "none", tmp_path, cut):
        with pytest.raises(Unreadable, match=file.name):
            read(file)


def test_progress_is_told_in_bytes_of_the_file(tmp_path):
    """The last word is the file's size."""
    file = written(tmp_path, *[PUBLIC] * 1200, packed=True)
    told = []
    assert len(read(file, advance=told.append)) == 1200
    assert told == sorted(told)
    assert told[-1] == file.stat().st_size
