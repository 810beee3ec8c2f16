"""The gateway's own traffic: sampled, bounded, hashed under the secret, and logged where asked."""

from __future__ import annotations

import json
import random

import pytest

from gateway.advice import traffic as subject
from gateway.advice.trace import Group, read_trace
from gateway.advice.traffic import OTHERS, Traffic
from prefix_store.reuse import WHOLE
from tests.gateway.records import AT, facts, missed, record

BLOCK = 16
TINY = Group("default", "tiny")


def tokens_of(seed: int, blocks: int, spare: int = 0) -> bytes:
    """A prompt's tokens, little-endian uint32; prompts of one seed begin alike."""
    draw = random.Random(seed)
    return b"".join(draw.randrange(50_000).to_bytes(4, "little") for _ in range(blocks * BLOCK + spare))


def traffic(**changes):
    """Traffic that is kept for five minutes."""
    known = {"secret": b"s", "block_tokens": lambda: BLOCK, "ttl": lambda _: ("5m", 300.0)}
    return Traffic(**(known | changes))


def uses(noted):
    """All uses that are remembered."""
    return [use for slot in noted.slots() for use in slot.uses]


def test_a_prompt_is_noted_with_its_whole_blocks():
    """Time, group, TTL and lengths stand; the tokens that fill no block are counted and not hashed."""
    noted = traffic()
    noted.ended(record(), tokens_of(1, 3, spare=5))
    (use,) = uses(noted)
    assert (use.at, use.group, use.ttl, use.tokens, use.covered) == (round(AT * 1000), TINY, 300_000.0, 53, 48)
    assert len(use.blocks) == 3


def test_equal_beginnings_have_equal_hashes_and_other_tenants_or_secrets_do_not():
    """Blocks agree as far as prompts do, for one tenant, one model and one secret."""
    noted, other = traffic(), traffic(secret=b"t")
    noted.ended(record(), tokens_of(1, 3))
    noted.ended(record(), tokens_of(1, 2) + tokens_of(2, 1))
    noted.ended(record(tenant="acme"), tokens_of(1, 3))
    noted.ended(record(model="large"), tokens_of(1, 3))
    other.ended(record(), tokens_of(1, 3))
    first, second, tenant, model, secret = (list(use.blocks) for use in [*uses(noted), *uses(other)])
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert not set(first) & (set(tenant) | set(model) | set(secret))


def test_nothing_that_is_kept_holds_tokens():
    """Neither the sample nor the waiting lines of the log contain a prompt's bytes, its tokens or the secret."""
    noted, tokens = traffic(file="unused", secret=b"very secret"), tokens_of(1, 3)
    noted.ended(record(), tokens)
    kept = b"".join(use.blocks.tobytes() for use in uses(noted)) + b"".join(noted._lines)
    ids = [str(int.from_bytes(tokens[at : at + 4], "little")) for at in range(0, len(tokens), 4)]
    assert tokens[:16] not in kept
    assert ", ".join(ids[:3]).encode() not in kept
    assert b"very secret" not in kept
    assert b"very secret" not in b"".join(noted._roots.values())


def test_what_made_no_prompt_is_not_noted():
    """A refusal before there were tokens leaves nothing."""
    noted = traffic()
    noted.ended(record(prompt=None), b"")
    assert noted.slots() == ()


def test_memory_is_bounded_and_the_counts_stay_whole():
    """Above the bound half of the sample goes by hash, and requests and tokens are still all counted."""
    noted = traffic(most=500)
    for seed in range(300):
        noted.ended(record(at=AT + seed), tokens_of(seed, 10))
        assert noted.blocks <= 500
    assert noted.limit < WHOLE
    assert noted.blocks == sum(len(use.blocks) for use in uses(noted))
    assert all(block < noted.limit for use in uses(noted) for block in use.blocks)
    rest = [counts for slot in noted.slots() for counts in slot.rest.values()]
    assert len(uses(noted)) + sum(counts[0] for counts in rest) == 300
    assert sum(use.tokens for use in uses(noted)) + sum(counts[1] for counts in rest) == 300 * 10 * BLOCK


def test_what_is_older_than_two_days_is_forgotten():
    """Slots go whole when they are out of reach."""
    noted = traffic()
    for day in range(5):
        noted.ended(record(at=AT + day * 86_400), tokens_of(day, 2))
    assert len(noted.slots()) == 3
    assert noted.blocks == 6


def test_groups_beyond_the_bound_are_counted_together():
    """The sixty-fifth tenant is one of the others, and its blocks are still its own."""
    noted = traffic()
    for number in range(subject.MOST_GROUPS + 2):
        noted.ended(record(tenant=f"t{number}"), tokens_of(1, 2))
    groups = [use.group for use in uses(noted)]
    assert groups.count(OTHERS) == 2
    assert len({use.blocks[0] for use in uses(noted)}) == len(groups)


def test_time_never_goes_back():
    """An exchange that began earlier and ended later is noted at the latest time known."""
    noted = traffic()
    noted.ended(record(at=AT + 10), tokens_of(1, 1))
    noted.ended(record(at=AT), tokens_of(1, 1))
    assert [use.at for use in uses(noted)] == [round((AT + 10) * 1000)] * 2


async def test_the_log_can_be_replayed(tmp_path):
    """A logged line is what the design names, readable by its owner alone, and reads back as the same use."""
    file = tmp_path / "traffic.jsonl"
    noted = traffic(file=file)
    async with noted.flushing():
        noted.ended(record(), tokens_of(1, 3, spare=2))
        noted.ended(record(at=AT + 1), tokens_of(1, 3, spare=2))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0] == {
        "at": AT,
        "tenant": "default",
        "model": "tiny",
        "class": "5m",
        "tokens": 50,
        "block_tokens": 16,
        "blocks": list(uses(noted)[0].blocks),
    }
    assert file.stat().st_mode & 0o777 == 0o600
    read = list(read_trace(file, ttl=lambda _group, _class: 300_000.0))
    told = [(use.at, use.group, use.tokens, use.covered, list(use.blocks)) for use in read]
    assert told == [(use.at, use.group, use.tokens, use.covered, list(use.blocks)) for use in uses(noted)]


async def test_a_log_that_cannot_be_written_stops_nothing(tmp_path):
    """Lines are dropped and counted, and the next ones are tried anew."""
    noted = traffic(file=tmp_path / "away" / "traffic.jsonl")
    noted.ended(record(), tokens_of(1, 1))
    await noted.flush()
    assert noted.dropped == 1
    (tmp_path / "away").mkdir()
    noted.ended(record(), tokens_of(1, 1))
    await noted.flush()
    assert len((tmp_path / "away" / "traffic.jsonl").read_text().splitlines()) == 1


def test_lines_that_wait_are_bounded(monkeypatch):
    """Above the bound new lines are dropped and counted."""
    monkeypatch.setattr(subject, "WAITING_BYTES", 500)
    noted = traffic(file="unused")
    for _ in range(10):
        noted.ended(record(), tokens_of(1, 3))
    assert noted._waiting <= 500
    assert noted.dropped + len(noted._lines) == 10


@pytest.mark.parametrize("fate", ["broken_promise", "evicted"])
def test_the_watch_hears_of_missed_tokens(fate):
    """What was missed for a broken promise or an eviction is told to who looks for trouble."""
    noted = traffic()
    for number in range(20):
        lost = facts(prompt=48, read=0, write=48, misses=(missed(fate, 48, fate),))
        noted.ended(record(at=AT + number, prompt=lost), tokens_of(1, 3))
    ids = [alert.id for alert in noted.watch.alerts(AT + 20)]
    assert ids == [{"broken_promise": "broken", "evicted": "bouncing"}[fate] + "|default|tiny"]
