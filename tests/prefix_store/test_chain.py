"""The chain: what makes two prompts the same, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_store import chain as chain_module
from prefix_store.chain import HASH_BYTES, chain, link, root
from tests.prefix_store.twins import pack, space

ROOT = root(space())

PRINT_CHAIN = """
from prefix_store.chain import Namespace, chain, root
namespace = Namespace(tenant="t", model="m", weights="w", kv_dtype="float32", block_tokens=2, adapter="blue")
print(chain(root(namespace), bytes(range(32)), 2).hex())
"""


def test_one_hash_for_each_whole_block():
    """A packed chain has sixteen bytes a block; the tokens of an unfinished block have none."""
    packed = chain(ROOT, pack(range(9)), 4)
    assert len(packed) == 2 * HASH_BYTES
    assert link(packed, 0) + link(packed, 1) == packed
    assert chain(ROOT, pack(range(3)), 4) == chain(ROOT, b"", 4) == b""


def test_a_chain_goes_on_from_any_link():
    """Hashing the rest after a link gives the same hashes as hashing everything at once."""
    tokens = pack(range(12))
    whole = chain(ROOT, tokens, 4)
    assert chain(link(whole, 0), tokens[16:], 4) == whole[HASH_BYTES:]


@given(tokens=st.lists(st.integers(0, 3), min_size=12, max_size=12), changed=st.integers(0, 11))
def test_a_hash_commits_to_every_token_before_it(tokens, changed):
    """Another token anywhere changes its block's hash and all after it, and none before."""
    other = [*tokens[:changed], tokens[changed] + 4, *tokens[changed + 1 :]]
    one, two = (chain(ROOT, pack(each), 4) for each in (tokens, other))
    same = [link(one, block) == link(two, block) for block in range(3)]
    assert same == [block < changed // 4 for block in range(3)]


def test_every_part_of_a_namespace_counts_under_its_own_name():
    """The name "blue" as tenant, model, adapter and so on gives different roots, and none is the plain one."""
    names = ("tenant", "model", "weights", "kv_dtype", "adapter", "rendering", "partition")
    roots = [root(space()), *(root(space(**{name: "blue"})) for name in names)]
    assert all(one != other for one, other in combinations(roots, 2))


def test_parts_of_a_namespace_do_not_run_into_each_other():
    """Moving letters from one part to its neighbour gives another root."""
    assert root(space(tenant="ab", model="c")) != root(space(tenant="a", model="bc"))
    assert root(space(adapter="", rendering="x")) != root(space(adapter="x", rendering=""))


def test_a_name_that_is_not_valid_unicode_is_still_a_name():
    """A lone surrogate in a tenant's name hashes like any other letter."""
    assert root(space(tenant="\ud800")) != root(space(tenant="\ud801"))


def test_block_size_is_part_of_the_namespace():
    """The same tokens cut otherwise never share."""
    smaller = chain_module.Namespace(tenant="t", model="m", weights="w", kv_dtype="float32", block_tokens=1)
    assert root(smaller) != ROOT


@pytest.fixture(scope="module")
def printed():
    """The same chain as computed by processes with different hash seeds."""
    environments = [{"PYTHONHASHSEED": seed} if seed else {} for seed in ("1", "2", "")]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    processes = [
        subprocess.Popen([sys.executable, "-c", PRINT_CHAIN], env=inherited | each, stdout=subprocess.PIPE, text=True)
        for each in environments
    ]
    return [process.communicate(timeout=60)[0].strip() for process in processes]


def test_chains_are_equal_in_every_process(printed):
    """Python's hash seed does not reach the chain: 1, 2 and none give the same bytes as this process."""
    here = chain(root(space(adapter="blue")), bytes(range(32)), 2).hex()
    assert printed == [here] * 3


def test_bytes_hashed_grow_linearly(monkeypatch):
    """Ten times the tokens, at most twelve times the bytes."""
    hashed = []
    digest = chain_module.xxhash.xxh3_128_digest

    def counted(data: bytes) -> bytes:
        hashed.append(len(data))
        return bytes(digest(data))

    monkeypatch.setattr(chain_module.xxhash, "xxh3_128_digest", counted)
    totals = []
    for tokens in (1_000, 10_000, 100_000):
        hashed.clear()
        chain(ROOT, bytes(4 * tokens), 16)
        totals.append(sum(hashed))
    assert totals[1] <= 12 * totals[0] and totals[2] <= 12 * totals[1]
