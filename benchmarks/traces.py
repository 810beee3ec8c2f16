"""Replay public request traces through the real tree, and hold the result against a plain replay.

A line of a trace is one request: time in milliseconds, length in tokens, one id per 512 tokens. A block is reusable
while `now − last use < TTL`; read tokens are min(512 × leading reusable blocks, length). Run:
`KEEPWARM_TRACE_DATA=FOLDER python -m benchmarks.traces`.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from prefix_store.chain import Namespace
from prefix_store.radix import RadixTree
from prefix_store.retention import Retention

VARIABLE = "KEEPWARM_TRACE_DATA"
BLOCK = 512  # tokens
NAMES = ("conversation", "synthetic")
TTLS_MS = (60_000, 300_000, 900_000, 1_800_000, 10**12)
SWEEP_NODES = 64
SPACE = Namespace(tenant="default", model="trace", weights="", kv_dtype="", block_tokens=BLOCK)


@dataclass(frozen=True, slots=True)
class Request:
    """One line of a trace."""

    at_ms: int
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay read."""

    blocks_read: int
    tokens_read: int


def read_trace(folder: Path, name: str, limit: int | None = None) -> Iterator[Request]:
    """Yield a trace's requests in file order, all of them or the first `limit`."""
    with gzip.open(folder / f"mooncake_{name}_trace.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in islice(lines, limit):
            row = json.loads(line)
            yield Request(row["timestamp"], row["input_length"], tuple(row["hash_ids"]))


def through_tree(requests: Iterable[Request], ttl_ms: int) -> Replayed:
    """Replay through the radix tree with unlimited room; times are whole milliseconds."""
    tree: RadixTree[int] = RadixTree(BLOCK)
    packed: dict[int, bytes] = {}
    blocks_read = tokens_read = 0
    for request in requests:
        now = float(request.at_ms)
        retention = Retention(klass="trace", ttl_s=float(ttl_ms), since=now)
        parts = [packed.setdefault(block, block.to_bytes(4, "little") * BLOCK) for block in request.blocks]
        prompt = b"".join(parts)
        lease = tree.lease(SPACE, prompt, now)
        found = lease.tokens // BLOCK
        blocks_read += found
        tokens_read += min(lease.tokens, request.tokens)
        tree.release_tail(lease, now)
        tree.publish(lease, prompt[found * BLOCK * 4 :], request.blocks[found:], now, retention)
        tree.release(lease, now)
        tree.sweep(now, SWEEP_NODES)
    return Replayed(blocks_read, tokens_read)


def plainly(requests: Iterable[Request], ttl_ms: int) -> Replayed:
    """Replay by the slow truth: the last use of each prefix of ids, nothing else."""
    used: dict[tuple[int, ...], int] = {}
    blocks_read = tokens_read = 0
    for request in requests:
        found, alive = 0, True
        for end in range(1, len(request.blocks) + 1):
            prefix = request.blocks[:end]
            alive = alive and prefix in used and request.at_ms - used[prefix] < ttl_ms
            found += alive
            used[prefix] = request.at_ms
        blocks_read += found
        tokens_read += min(found * BLOCK, request.tokens)
    return Replayed(blocks_read, tokens_read)


def main() -> None:
    """Replay both traces at every TTL; the last line is one JSON object."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        raise SystemExit(f"set {VARIABLE} to the folder with mooncake_*_trace.jsonl.gz")
    table = Table("trace", "TTL", "blocks read", "tokens read", "read share", "seconds", title="Traces")
    rows = []
    for name in NAMES:
        requests = list(read_trace(Path(folder), name))
        total = sum(request.tokens for request in requests)
        for ttl_ms in TTLS_MS:
            began = time.perf_counter()
            console = Console(stderr=True)
            replayed = through_tree(track(requests, f"{name} {ttl_ms // 1000} s", console=console), ttl_ms)
            row = {
                "trace": name,
                "ttl_s": ttl_ms / 1000,
                "blocks_read": replayed.blocks_read,
                "tokens_read": replayed.tokens_read,
                "read_share": round(replayed.tokens_read / total, 4),
                "seconds": round(time.perf_counter() - began, 2),
            }
            rows.append(row)
            table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console().print(table)
    print(json.dumps({"traces": rows}))


if __name__ == "__main__":
    main()
