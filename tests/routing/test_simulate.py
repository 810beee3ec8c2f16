"""A trace over simulated replicas: exact where the truth is known, the same each time, by the router that serves."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.traces import Request, plainly, read_trace
from gateway.cli import app
from gateway.relay.fleet import Fleet
from gateway.routing.router import Policy
from gateway.routing.simulate import Arrival, Machine, Outcome, Simulation, ideal, path_of_ids, seconds_of
from gateway.simulation.reading import arrivals
from prefix_store.residency import Residency

VARIABLE = "KEEPWARM_TRACE_DATA"
NAME = "mooncake_{}_trace.jsonl.gz"
TABLE = [  # tokens that an endless cache reads of the public traces, at each TTL
    ("conversation", 60, 14_759_672),
    ("conversation", 300, 42_445_349),
    ("conversation", 900, 52_444_139),
    ("conversation", 1800, 53_667_307),
    ("synthetic", 300, 36_417_948),
    ("synthetic", 900, 39_852_661),
]
TALKS = 40


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the public traces are."""
    named = os.environ.get(VARIABLE)
    if named is None:
        pytest.skip(f"{VARIABLE} names no folder with the public traces")
    return Path(named)


def made(requests: int = 600, seed: int = 5) -> list[Request]:
    """Conversations of four applications that grow turn by turn."""
    draw, at, fresh = Random(seed), 0, 100
    talks = [[number % 4] for number in range(TALKS)]
    told = []
    for _ in range(requests):
        at += draw.randrange(900)
        talk = draw.choice(talks)
        talk.append(fresh := fresh + 1)
        told.append(Request(at, 512 * len(talk) - draw.randrange(500), tuple(talk)))
    return told


def coming(requests: list[Request]) -> Iterator[Arrival]:
    """The same as a simulation reads it."""
    for one in requests:
        yield Arrival(seconds_of(one.at_ms), one.tokens, 50, path_of_ids(one.blocks))


def written(file: Path, requests: list[Request]) -> Path:
    """The same as a file in the public format, gzipped where its name says so."""
    rows = [
        {"timestamp": one.at_ms, "input_length": one.tokens, "output_length": 50, "hash_ids": one.blocks}
        for one in requests
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


def played(policy: Policy, requests: list[Request], replicas: int = 4, seed: int = 0, **machine: Any) -> Outcome:
    """What a policy came to."""
    simulation = Simulation(policy, replicas, Machine(**machine), seed=seed)
    for one in coming(requests):
        simulation.feed(one)
    return simulation.outcome


def run(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `keepwarm simulate`."""
    done = CliRunner().invoke(app, ["simulate", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(("name", "ttl_s", "tokens"), TABLE)
def test_the_ideal_is_exact_on_public_traces(folder: Path, name: str, ttl_s: int, tokens: int) -> None:
    """An endless cache reads exactly the table's tokens, but for one of each prompt that was known whole."""
    whole = sum(replayed.tokens == replayed.read for replayed in reads(folder, name, ttl_s))
    best = ideal(arrivals(folder / NAME.format(name)), Machine(ttl_s=float(ttl_s)))
    assert best.read + whole == tokens


def test_the_conversation_trace_at_five_minutes(folder: Path) -> None:
    """Of 144,793,823 tokens 42,445,349 are known, 95 of which are computed again to have something to begin with."""
    best = ideal(arrivals(folder / NAME.format("conversation")), Machine(ttl_s=300.0))
    assert (best.tokens, best.read) == (144_793_823, 42_445_349 - 95)
    assert f"{best.read / best.tokens:.2%}" == "29.31%"


def test_prefix_reads_more_than_turns_on_a_public_trace(folder: Path) -> None:
    """Over eight replicas prefix reads more than twice what round robin reads, and no more than the ideal."""
    told = {}
    policies: tuple[Policy, ...] = ("prefix", "round_robin")
    for policy in policies:
        simulation = Simulation(policy, 8, Machine())
        for one in arrivals(folder / NAME.format("conversation")):
            simulation.feed(one)
        told[policy] = simulation.outcome
    assert 2 * told["round_robin"].read < told["prefix"].read < 42_445_349
    halves = {policy: outcome.first_token(0.5)[0] or 0.0 for policy, outcome in told.items()}
    assert 0.0 < halves["prefix"] < halves["round_robin"]


class Read:
    """One prompt of the slow truth."""

    def __init__(self, tokens: int, read: int) -> None:
        self.tokens, self.read = tokens, read


def reads(folder: Path, name: str, ttl_s: int) -> Iterator[Read]:
    """Replay by the last use of each chain of ids alone."""
    used: dict[int, int] = {}
    for one in read_trace(folder, name):
        found, alive, chain = 0, True, 0
        for block in one.blocks:
            chain = hash((chain, block))
            alive = alive and chain in used and one.at_ms - used[chain] < 1000 * ttl_s
            found += alive
            used[chain] = one.at_ms
        yield Read(one.tokens, min(512 * found, one.tokens))


@given(st.integers(0, 10**6), st.sampled_from([1, 7, 60]))
def test_the_ideal_is_the_slow_truth(seed: int, ttl_s: int) -> None:
    """On any made-up trace the ideal reads what a dictionary of last uses says, less one of each whole prompt."""
    requests = made(80, seed)
    truth = plainly(requests, 1000 * ttl_s).tokens_read
    read = ideal(coming(requests), Machine(ttl_s=float(ttl_s))).read
    assert truth - len(requests) <= read <= truth


def test_one_endless_replica_reads_the_ideal() -> None:
    """With one replica whose room does not end there is nothing to route, and nothing is lost."""
    requests = made()
    one = played("prefix", requests, 1, capacity_blocks=1 << 40)
    assert one.read == one.captured == one.available == ideal(coming(requests), Machine()).read
    assert one.imbalance == 1.0


def test_routing_by_prefix_reads_more_than_by_turns() -> None:
    """Whoever follows a prompt's beginning reads more of it, and believes what is so."""
    requests = made()
    prefix, turns = played("prefix", requests), played("round_robin", requests)
    assert turns.read < prefix.read <= ideal(coming(requests), Machine()).read
    assert prefix.read == prefix.captured <= prefix.available
    assert turns.captured < turns.available


def test_a_small_cache_loses_what_a_large_one_keeps() -> None:
    """Room for ten blocks at each replica reads less than room for all, and never holds more."""
    requests = made()
    simulation = Simulation("prefix", 4, Machine(capacity_blocks=10))
    for one in coming(requests):
        simulation.feed(one)
    assert simulation.outcome.read < played("prefix", requests).read
    assert simulation.held_blocks <= 40


def test_equal_seeds_give_equal_outcomes() -> None:
    """Chance is the seed's: the same twice, and others go other ways."""
    requests = made()
    assert played("prefix", requests, seed=3) == played("prefix", requests, seed=3)
    assert len({str(played("prefix", requests, seed=seed).busy_s) for seed in range(8)}) > 1


def test_the_router_is_the_one_that_serves() -> None:
    """What is simulated is the class by which a fleet routes."""
    assert type(Simulation("prefix", 1, Machine()).router) is type(Fleet((), clock=lambda: 0.0).router("any"))


def test_a_block_lives_until_its_very_millisecond() -> None:
    """A TTL of five minutes ends at 300,000 ms and not before, wherever on the axis it began."""
    for at_ms in range(0, 100_000, 977):
        held = Residency()
        held.note("a", path_of_ids([1]), seconds_of(at_ms) + 300.0, seconds_of(at_ms))
        assert held.match(path_of_ids([1]), seconds_of(at_ms + 299_999))
        assert not held.match(path_of_ids([1]), seconds_of(at_ms + 300_000))


# ---- the command ----


def test_the_command_tells_every_policy_against_the_ideal(tmp_path: Path) -> None:
    """JSON has what the simulations came to, a table names each policy, and the picture has a bar for each."""
    requests = made(200)
    file, svg = written(tmp_path / "trace.jsonl.gz", requests), tmp_path / "read.svg"
    code, out, _ = run(str(file), "--replicas", "3", "--json", "--picture", str(svg))
    told = json.loads(out)
    assert (code, told["requests"], told["replicas"]) == (0, 200, 3)
    assert [row["policy"] for row in told["policies"]] == ["prefix", "least_load", "round_robin"]
    for row in told["policies"]:
        same = played(row["policy"], requests, 3, capacity_blocks=1_000_000 // 512)
        assert (row["read_tokens"], row["imbalance"]) == (same.read, same.imbalance)
        assert row["of_ideal"] == same.read / told["ideal"]["read_tokens"]
        assert [*row["first_token_s"].values()] == same.first_token(0.5, 0.9, 0.99)
    assert svg.read_text().count("<rect") == 1 + 2 * 3
    code, out, _ = run(str(file), "--policy", "round_robin", "--replicas", "3")
    assert (code, "round robin" in out, "least_load" in out, "Peak memory" in out) == (0, True, False, True)


def test_our_own_log_is_a_trace(tmp_path: Path) -> None:
    """What --traffic-log writes is read with its own block length, and tenants share nothing."""
    line = {"at": 1.79e9, "tenant": "a", "model": "m", "class": "5m", "tokens": 40, "block_tokens": 16}
    blocks = [2**63 + 5, 7]
    rows = [line | {"blocks": blocks}, line | {"blocks": blocks}, line | {"blocks": blocks, "tenant": "b"}]
    file = tmp_path / "traffic.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = run(str(file), "--json", "--replicas", "1")
    told = json.loads(out)
    assert (code, told["block_tokens"], told["tokens"], told["ideal"]["read_tokens"]) == (0, 16, 120, 32)


def test_faster_comes_sooner() -> None:
    """A trace twice as fast has all its requests in half the time."""
    requests = [Request(0, 512, (1,)), Request(900_000, 512, (1,))]
    slow = ideal(coming(requests), Machine(ttl_s=500.0))
    assert slow.read == 0


def test_a_trace_three_times_as_fast_is_read(tmp_path: Path) -> None:
    """A gap of 900 s is one of 300 s then, and within a TTL of 500 s."""
    file = written(tmp_path / "t.jsonl", [Request(0, 512, (1,)), Request(900_000, 512, (1,))])
    code, out, _ = run(str(file), "--json", "--ttl", "500s", "--faster", "3")
    assert (code, json.loads(out)["ideal"]["read_tokens"]) == (0, 511)


def test_an_empty_trace_is_said_in_words(tmp_path: Path) -> None:
    """No requests are no numbers, and no division by zero."""
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    assert run(str(file))[:2] == (0, "The trace has no requests.\n")
    told = json.loads(run(str(file), "--json")[1])
    assert (told["ideal"]["read_ratio"], told["policies"][0]["of_ideal"]) == (None, None)


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        ('{"timestamp": 0, "input_length": 9, "hash_ids": [1]}\n{"timestamp": 0}\n', [], ", line 2: "),
        ('{"timestamp": 0, "input_length": 9, "hash_ids": [1, 2]}\n', [], ", line 1: hash_ids: 2 ids are too many"),
        ("\nnot JSON\n", [], ", line 2: "),
        ("", ["--policy", "best"], "--policy: 'best' is not one of prefix, least_load, round_robin"),
        ("", ["--policy", "session"], "--policy: session cannot be simulated"),
        ("", ["--ttl", "soon"], "--ttl: "),
        ("", ["--capacity-tokens", "100"], "--capacity-tokens: 100 are less than one block of 512"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, content: str, words: list[str], said: str) -> None:
    """A line that is no request is named by its number, an option by its name; the exit code is 2."""
    file = tmp_path / "trace.jsonl"
    file.write_text(content)
    code, _, err = run(str(file), *words)
    assert (code, said in err, err.count("\n")) == (2, True, 1)


def test_blocks_of_two_lengths_are_refused(tmp_path: Path) -> None:
    """A log in which the length of a block changes is no one trace; the line is named."""
    line = {"at": 1.0, "tenant": "a", "model": "m", "class": None, "tokens": 40, "blocks": [1]}
    file = tmp_path / "traffic.jsonl"
    file.write_text("".join(json.dumps(line | {"block_tokens": size}) + "\n" for size in (16, 32)))
    code, _, err = run(str(file))
    assert (code, "line 2: block_tokens: 32, and 16 in the lines before" in err) == (2, True)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """So is one that cannot be written."""
    assert run(str(tmp_path / "gone"))[0] == 2
    file = written(tmp_path / "t.jsonl", made(5))
    code, _, err = run(str(file), "--picture", str(tmp_path / "no" / "where.svg"))
    assert (code, "--picture" in err) == (2, True)
