"""The prefix store alone: what chain, lease, publish and sweep cost in a tree of 100,000 nodes, and its memory.

No model and no engine. Prompts are 32,768 tokens, blocks 16; a payload is a block number, as in the engine. Run it by
itself with `python -m benchmarks.store`; the last line is one JSON object.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

from rich.console import Console

from benchmarks import environment, report
from benchmarks.measure import Advance, Result, Series, Target
from engine.core import SWEEP_NODES
from prefix_store.chain import Namespace, chain, root
from prefix_store.leases import Lease
from prefix_store.radix import RadixTree
from prefix_store.retention import Retention

NAME = "store"
BLOCK = 16  # tokens
PROMPT_BLOCKS = 2048
NODES = 100_000
EXPIRING = 10_000  # nodes whose time is up at once
FAN = 100  # children of each inner node of the crowd
REPEATS = 25
SWEEPS = 5  # each needs fresh nodes to expire
MEASURED_NODES = 20_000  # for memory

SPACE = Namespace(tenant="bench", model="bench", weights="bench", kv_dtype="float32", block_tokens=BLOCK)
Tree = RadixTree[int]


class Prompts:
    """Endless new blocks of random tokens, and a number for each."""

    def __init__(self) -> None:
        self._dice = random.Random(13)
        self._numbers: Iterator[int] = itertools.count(1_000_000)

    def tokens(self, blocks: int) -> bytes:
        """Packed token ids of `blocks` whole blocks."""
        return self._dice.randbytes(blocks * BLOCK * 4)

    def payload(self, blocks: int) -> list[int]:
        """One number a block."""
        return list(itertools.islice(self._numbers, blocks))


def steps() -> int:
    """Return how often `run` advances."""
    return 7


def run(advance: Advance = lambda _: None) -> Result:
    """Measure everything; about half a minute."""
    prompts = Prompts()
    memory = {blocks: bytes_per_token(prompts, blocks) for blocks in (BLOCK, 1)}
    advance("memory per token")
    tokens, start = prompts.tokens(PROMPT_BLOCKS), root(SPACE)
    chain_ms = _series("chain of 32,768 tokens", REPEATS, lambda: chain(start, tokens, BLOCK))
    advance("chain")
    tree = crowd(prompts)
    advance("a tree of 100,000 nodes")
    lease_ms = []
    for nodes in (64, PROMPT_BLOCKS):
        prompt = plant(tree, prompts, nodes, PROMPT_BLOCKS // nodes)
        lease_ms.append(_lease(tree, prompt, f"lease of 32,768 tokens over {nodes:,} nodes"))
        advance(f"lease over {nodes:,} nodes")
    publish_ms = _publish(tree, prompts)
    advance("publish")
    sweeps_ms = [
        _longest_sweeps(tree, prompts, f"longest sweep, {EXPIRING:,} of {EXPIRING + NODES:,} nodes expire"),
        _longest_sweeps(RadixTree(BLOCK), prompts, f"longest sweep, all {EXPIRING:,} nodes expire"),
    ]
    advance("sweep")
    return Result(
        name=NAME,
        targets=_targets(chain_ms, lease_ms, publish_ms, sweeps_ms, memory),
        series=(chain_ms, *lease_ms, publish_ms, *sweeps_ms),
        facts={"tree_nodes": NODES, "sweep_budget_nodes": SWEEP_NODES, "block_tokens": BLOCK},
    )


def crowd(prompts: Prompts) -> Tree:
    """Return a tree of `NODES` nodes, one block each: inner nodes with `FAN` leaves."""
    tree: Tree = RadixTree(BLOCK)
    for _ in range(NODES // (FAN + 1)):
        add(tree, prompts, FAN)
    return tree


def add(tree: Tree, prompts: Prompts, leaves: int, ttl_s: float = 1e6) -> None:
    """Add one inner node with `leaves` leaves below."""
    above = prompts.tokens(1)
    for _ in range(leaves):
        write(tree, above, prompts, 1, ttl_s)


def write(tree: Tree, above: bytes, prompts: Prompts, blocks: int, ttl_s: float = 1e6) -> bytes:
    """Publish `above` where it is missing and a node of new blocks below it. Return all its tokens."""
    for fresh in (above, above + prompts.tokens(blocks)):
        lease = tree.lease(SPACE, fresh, 0.0)
        rest = fresh[lease.tokens * 4 :]
        terms = Retention(klass="bench", ttl_s=ttl_s, since=0.0)
        tree.publish(lease, rest, prompts.payload(len(rest) // (BLOCK * 4)), 0.0, terms)
        tree.release(lease, 0.0)
    return fresh


def plant(tree: Tree, prompts: Prompts, nodes: int, blocks: int) -> bytes:
    """Add a path of `nodes` nodes of `blocks` blocks each. Return its tokens."""
    lease, path = tree.lease(SPACE, b"", 0.0), b""
    for _ in range(nodes):
        fresh = prompts.tokens(blocks)
        terms = Retention(klass="bench", ttl_s=1e6, since=0.0)  # another request's: a node of its own
        tree.publish(lease, fresh, prompts.payload(blocks), 0.0, terms)
        path += fresh
    tree.release(lease, 0.0)
    return path


def bytes_per_token(prompts: Prompts, blocks: int) -> float:
    """Return what one cached token costs in tree, queues and payload, at `blocks` blocks a node, all idle leaves."""
    gc.collect()
    tracemalloc.start()
    tree: Tree = RadixTree(BLOCK)
    for _ in range(MEASURED_NODES):
        write(tree, b"", prompts, blocks)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / (tree.stats().blocks * BLOCK)


def _lease(tree: Tree, prompt: bytes, name: str) -> Series:
    leases: list[Lease[int]] = []
    series = _series(name, REPEATS, lambda: leases.append(tree.lease(SPACE, prompt, 1.0)))
    for lease in leases:
        if lease.tokens != PROMPT_BLOCKS * BLOCK:
            raise RuntimeError(f"the tree found {lease.tokens} tokens")
        tree.release(lease, 1.0)
    return series


def _publish(tree: Tree, prompts: Prompts) -> Series:
    fresh = iter([(prompts.tokens(PROMPT_BLOCKS), prompts.payload(PROMPT_BLOCKS)) for _ in range(REPEATS + 1)])
    lease = tree.lease(SPACE, b"", 1.0)

    def publish() -> None:
        tokens, payload = next(fresh)
        tree.publish(lease, tokens, payload, 1.0, Retention(klass="bench", ttl_s=1e6, since=1.0))

    series = _series("publish of 2,048 new blocks", REPEATS, publish)
    tree.release(lease, 1.0)
    return series


def _longest_sweeps(tree: Tree, prompts: Prompts, name: str) -> Series:
    """Return the longest call of each time that `EXPIRING` nodes expire and are swept.

    In time of the processor: the longest of forty calls by the clock would be the one that another process interrupted.
    """
    longest = []
    for round_ in range(SWEEPS):
        for _ in range(EXPIRING // (FAN + 1)):
            add(tree, prompts, FAN, ttl_s=5.0)
        calls, swept = [], [0]
        while swept:
            started = time.thread_time()
            swept = tree.sweep(10.0 + round_, SWEEP_NODES)
            calls.append(1000 * (time.thread_time() - started))
        longest.append(max(calls))
    return Series(name=name, unit="ms", values=tuple(longest))


def _series(name: str, repeats: int, act: Callable[[], object]) -> Series:
    """Time `act` in milliseconds, once to warm up and then `repeats` times."""
    act()
    values = []
    for _ in range(repeats):
        started = time.perf_counter()
        act()
        values.append(1000 * (time.perf_counter() - started))
    return Series(name=name, unit="ms", values=tuple(values))


def _targets(
    chain_ms: Series, lease_ms: list[Series], publish_ms: Series, sweeps_ms: list[Series], memory: dict[int, float]
) -> tuple[Target, ...]:
    chained = f"the chain alone takes {chain_ms.median:.2g} ms"
    few, many = lease_ms
    times = [
        (chain_ms, 2.0, "2,048 digests of 80 bytes each"),
        (few, 1.0, "comparing 128 KiB of tokens once, and a payload list of 2,048"),
        (many, 5.0, f"2,048 look-ups; over 64 nodes it takes {few.median:.2g} ms"),
        (publish_ms, 5.0, chained),
        *((each, 2.0, f"one call frees at most {SWEEP_NODES} nodes, between two engine steps") for each in sweeps_ms),
    ]
    sizes = [
        (BLOCK, 24.0, "4 bytes of token id, 1 of hash and 2.5 of payload are the content"),
        (1, 64.0, "the content again: the rest is a Python object with two lists and two queue entries"),
    ]
    return (
        *(Target(name=each.name, value=each.median, limit=ms, unit="ms", ceiling=what) for each, ms, what in times),
        *(
            Target(name=f"memory, {each}-block nodes", value=memory[each], limit=size, unit="bytes/token", ceiling=what)
            for each, size, what in sizes
        ),
    )


def main() -> None:
    """Print the environment, the tables and one JSON line."""
    console = Console()
    card = environment.take_card()
    report.show_card(console, card)
    result = run()
    report.show_result(console, result)
    print(report.last_line(card, [result]))


if __name__ == "__main__":
    main()
