"""What a real server shows of its cache adds up with the answers it gave."""

from __future__ import annotations

import urllib.error

import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.test_retention import LONG, ask, call

BLOCK = 16


def test_retention_and_tree_add_up_with_the_answers(start_server: StartServer):
    """Classes, ages, deadlines and the tree tell the same tokens, reads are counted by the block, a look is no use."""
    server = start_server("--kv-bytes", "8MiB")
    admin = f"{server.admin_url}/admin/v1"
    part = {"type": "text", "text": LONG, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"}}
    first = [{"role": "user", "content": [part, {"type": "text", "text": "Go."}]}]
    other = [{"role": "user", "content": [part, {"type": "text", "text": "Stay, and tell me why."}]}]
    reads = [ask(server, messages=messages)[0] for messages in (first, other, first)]
    before = call(f"{admin}/tree")
    shown, after = call(f"{admin}/retention"), call(f"{admin}/tree")
    assert reads[0] == 0 < reads[1] <= reads[2]

    nodes = after["nodes"]
    assert after["total"] == len(nodes) > 1
    for old, new in zip(before["nodes"], nodes, strict=True):
        for looked in ("id", "reads", "tokens", "leases"):
            assert new[looked] == old[looked]
        assert new["left_s"] <= old["left_s"] and new["idle_s"] >= old["idle_s"]
    own = {node["id"]: node["tokens"] for node in nodes}
    for node in nodes:
        below = [child["subtree_tokens"] for child in nodes if child["parent"] == node["id"]]
        assert node["subtree_tokens"] == node["tokens"] + sum(below)

    by_class = {
        line["class"]: sum(line[kept]["tokens"] for kept in ("promised", "held"))
        for line in shown["classes"]
        if line["promised"]["entries"] or line["held"]["entries"]
    }
    assert by_class.keys() == {"5m", "1h"} and sum(by_class.values()) == sum(own.values())
    for what in ("ages", "deadlines"):
        assert {klass: sum(tokens) for klass, tokens in shown[what]["tokens"].items()} == by_class
    assert sum(shown["reuse_gap"]["blocks"]) == sum(read // BLOCK for read in reads)
    assert shown["evictions"] == {"expired": 0, "evicted": 0, "purged": 0}
    call(f"{admin}/purge", {"all": True})
    gone = call(f"{admin}/retention")
    assert gone["evictions"] == {"expired": 0, "evicted": 0, "purged": sum(own.values()) // BLOCK}
    assert sum(gone["lifetime"]["blocks"]) == sum(own.values()) // BLOCK
    assert call(f"{admin}/tree") == {"total": 0, "nodes": []}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        call(f"{admin}/tree?limit=0")
