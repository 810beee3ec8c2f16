"""Two gateways on one real Redis: where prefixes live, what waits where, and who is still there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from gateway.relay.fleet import Fleet
from gateway.relay.prefix import root_of
from gateway.relay.sharing import PERIOD_S, Sharing
from gateway.relay.upstream import Upstream
from gateway.routing.wanted import Wanted, path_of
from prefix_store.breaker import Breaker
from prefix_store.redis_residency import LOAD_S, RedisFeed
from prefix_store.residency_feed import (
    BATCH_BYTES,
    OVERHEAD,
    PATH_BYTES,
    Batch,
    Kept,
    Load,
    Outbox,
    batch_of,
    load_of,
    packed,
)
from tests.state.servers import HandClock, RedisServer

SECRET = b"shared by all gateways"
MODEL = "m"
NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")


def wanted(text: str, *, tenant: str = "t", secret: bytes = SECRET, ttl_s: float = 300.0) -> Wanted:
    """A prompt, a token a byte, in pieces of ten bytes."""
    path, ends = path_of(root_of(secret, tenant, MODEL), [text.encode()], 10)
    return Wanted(path=path, ends=ends, tokens=ends[-1], ttl_s=ttl_s)


PROMPT = wanted("a system text " * 50)


class Member:
    """One gateway's fleet and its share in the others'."""

    def __init__(self, server: RedisServer, prefix: str, name: str, *, secret: bytes = SECRET) -> None:
        self.clock = HandClock(1000.0)
        upstreams = [
            Upstream(name=one, base_url=f"http://10.0.0.{number}:8000/v1", models=(MODEL,))
            for number, one in enumerate(NAMES)
        ]
        self.fleet = Fleet(upstreams, clock=self.clock, chance=Random(ord(name)))
        self.feed = RedisFeed(server.settings(prefix=prefix), name, breaker=Breaker(failures=1000))
        self.sharing = Sharing(self.fleet, self.feed, secret=secret, gateway=name.encode(), clock=self.clock)

    def answered(self, prompt: Wanted = PROMPT, read: int | None = None) -> str:
        """Send and answer a request; return who answered."""
        replica, choice = self.fleet.choose(MODEL, "chat", prompt, self.clock.now)
        self.fleet.over(self.fleet.router(MODEL), MODEL, choice, prompt, self.clock.now, read=read, computed=True)
        replica.health.gave_up()
        return replica.name

    async def turn(self) -> None:
        """Let one period of the load pass, and tell and hear."""
        self.clock.now += 2 * PERIOD_S
        await self.sharing.turn()

    def holders(self, prompt: Wanted = PROMPT) -> dict[str, int]:
        """How many pieces of a prompt each replica is believed to hold."""
        matched = self.fleet.router(MODEL).residency.match(prompt.path, self.clock.now)
        return {name: held.blocks - held.pending for name, held in matched.items()}

    def load(self, name: str) -> float:
        """The work that is believed to wait at a replica."""
        return self.fleet.router(MODEL).loads.at(name)


Join = Callable[..., Member]


@pytest_asyncio.fixture
async def joining() -> AsyncIterator[Callable[[Member], Member]]:
    """Yield a function that hangs a member up after the test."""
    members: list[Member] = []

    def joined(member: Member) -> Member:
        members.append(member)
        return member

    yield joined
    for member in members:
        await member.feed.close()


@pytest.fixture
def join(joining: Callable[[Member], Member], shared_server: RedisServer, prefix: str) -> Join:
    """Return how a gateway joins under this test's prefix."""
    return lambda name, **options: joining(Member(shared_server, prefix, name, **options))


async def test_two_gateways_agree_where_a_prefix_lives(join: Join) -> None:
    """What an answer to one taught it, the other believes after one batch, for sure and as long."""
    one, two = join("1"), join("2")
    holder = one.answered()
    await one.turn()
    await two.turn()
    assert two.holders() == one.holders() == {holder: 70}
    assert {two.answered() for _ in range(20)} == {holder}
    two.clock.now += 299.0
    assert two.holders() == {holder: 70}
    two.clock.now += 2.0
    assert two.holders() == {}


async def test_equal_cold_prompts_at_one_moment_meet_whichever_gateway_they_reach(join: Join) -> None:
    """Before any word has passed, both gateways send each of a hundred new prompts to one replica, and use them all."""
    one, two = join("1"), join("2")
    prompts = [wanted(f"{number:03} is a new prompt") for number in range(100)]
    sent = [one.answered(prompt) for prompt in prompts]
    assert [two.answered(prompt) for prompt in prompts] == sent
    assert set(sent) == set(NAMES)


async def test_the_work_that_one_gateway_sent_counts_at_the_other(join: Join) -> None:
    """A replica to which the first sent a long prompt has that work for the second too, until the answer ends."""
    one, two = join("1"), join("2")
    replica, choice = one.fleet.choose(MODEL, "chat", PROMPT, one.clock.now)
    for _ in range(2):
        await one.turn()
        await two.turn()
    assert two.load(replica.name) == one.load(replica.name) == 764.0
    one.fleet.over(one.fleet.router(MODEL), MODEL, choice, PROMPT, one.clock.now, read=0, computed=True)
    await one.turn()
    await two.turn()
    assert two.load(replica.name) == one.load(replica.name) == 0.0


async def test_a_gateway_that_died_counts_no_more(join: Join, shared_server: RedisServer, prefix: str) -> None:
    """Its work is gone once its value has expired, and it is taken off the list."""
    one, two = join("1"), join("2")
    replica, _ = one.fleet.choose(MODEL, "chat", PROMPT, one.clock.now)
    for _ in range(2):
        await one.turn()
        await two.turn()
    assert two.load(replica.name) == 764.0
    shared_server.age(LOAD_S, f"{prefix}*")
    await two.turn()
    assert two.load(replica.name) == 0.0
    assert shared_server.number("SCARD", shared_server.settings(prefix=prefix).key_of("loads")) == 1


async def test_a_restart_that_one_gateway_saw_is_known_to_the_other(join: Join) -> None:
    """A replica that lost its cache is believed empty by both; what is learnt after it counts."""
    one, two = join("1"), join("2")
    holder = one.answered()
    await one.turn()
    await two.turn()
    two.fleet.lost(holder)
    await two.turn()
    await one.turn()
    assert one.holders() == two.holders() == {}
    again = one.answered()
    await one.turn()
    await two.turn()
    assert two.holders() == {again: 70}


async def test_what_was_said_before_a_loss_is_not_believed_after_it(join: Join) -> None:
    """News that was on its way when the replica was lost changes nothing."""
    one, two = join("1"), join("2")
    holder = one.answered()
    await one.turn()
    two.fleet.lost(holder)
    await two.turn()
    assert two.holders() == {}
    await one.turn()
    assert one.holders() == {}


async def test_a_removed_upstream_is_believed_empty_by_all(join: Join) -> None:
    """Taking a replica out of one gateway's file ends the beliefs of both."""
    one, two = join("1"), join("2")
    holder = one.answered()
    await one.turn()
    await two.turn()
    one.fleet.replace([each.upstream for each in one.fleet.replicas.values() if each.name != holder])
    await one.turn()
    await two.turn()
    assert two.holders() == {}


async def test_a_belief_that_an_answer_refuted_ends_at_both(join: Join) -> None:
    """A replica that was wiped in silence is found out by one gateway's answer: the other's older beliefs go too."""
    one, two = join("1"), join("2")
    old = wanted("an older prompt " * 50)
    holder = one.answered()
    held = one.fleet.router(MODEL).residency
    held.note(holder, old.path, one.clock.now + 300.0, one.clock.now)
    one.sharing.outbox.kept(one.sharing._place(holder), one.sharing._tag("model", MODEL), old.path, 1300.0, 1000.0)
    await one.turn()
    await two.turn()
    assert two.holders(old) == {holder: 80}
    one.clock.now += 10.0
    two.clock.now += 10.0
    one.answered(read=0)
    await one.turn()
    await two.turn()
    assert (one.holders(old), two.holders(old)) == ({}, {})


async def test_a_newcomer_reads_what_is_kept(join: Join) -> None:
    """A gateway that joins after fifty batches believes what the others do."""
    one = join("1")
    prompts = [wanted(f"{number:03} is a prompt " * 5) for number in range(50)]
    for prompt in prompts:
        one.answered(prompt)
        await one.turn()
    late = join("2")
    await late.turn()
    assert [late.holders(prompt) for prompt in prompts] == [one.holders(prompt) for prompt in prompts]


async def test_what_is_read_late_lives_no_longer(join: Join, shared_server: RedisServer, prefix: str) -> None:
    """Of a prefix that was said to live 300 seconds 200 seconds ago, 100 are left; one that is over is not believed."""
    one = join("1")
    place, model = one.sharing._place("a"), one.sharing._tag("model", MODEL)
    other = wanted("something else" * 5)
    batch = Batch(b"9", [Kept(place, model, PROMPT.path, 300.0, 0.0), Kept(place, model, other.path, 150.0, 0.0)])
    redis = Redis(unix_socket_path=str(shared_server.socket))
    key = shared_server.settings(prefix=prefix).key_of("residency")
    await redis.xadd(key, {b"b": packed(batch)}, id=f"{int((time.time() - 200.0) * 1000)}-0")
    await redis.pexpire(key, 60_000)
    await redis.aclose()
    await one.turn()
    assert (one.holders(), one.holders(other)) == ({"a": 70}, {})
    one.clock.now += 90.0
    assert one.holders() == {"a": 70}
    one.clock.now += 11.0
    assert one.holders() == {}


async def test_an_outage_costs_no_knowledge_and_heals(joining, server: RedisServer) -> None:
    """While the server is gone both go on by what they know and say so; once it is back they go on telling."""
    one, two = (joining(Member(server, "test:", name)) for name in "12")
    held, _ = one.fleet.choose(MODEL, "chat", PROMPT, one.clock.now)
    for _ in range(2):
        await one.turn()
        await two.turn()
    server.kill()
    while two.clock.now < 1003.0:
        await two.turn()
    assert "does not answer" in str(two.sharing.degraded)
    assert two.load(held.name) == 0.0
    unheard = wanted("answered while nobody could hear " * 5)
    holder = two.answered(unheard)
    assert two.holders(unheard) == {holder: 17}
    server.start()
    await two.turn()
    await one.turn()
    assert (one.sharing.degraded, two.sharing.degraded) == (None, None)
    assert one.holders(unheard) == {holder: 17}


async def test_every_key_expires(join: Join, shared_server: RedisServer, prefix: str) -> None:
    """Nothing that gateways share outlives them for long, and no key says what it is."""
    one, two = join("1"), join("2")
    one.answered()
    for member in (one, two, one):
        await member.turn()
    keys = shared_server.lines("KEYS", f"{prefix}*")
    assert len(keys) == 4
    assert all(0 < shared_server.number("PTTL", key) <= 3_600_000 for key in keys)
    assert all(len(key) == len(prefix) + 40 and int(key.removeprefix(prefix), 16) for key in keys)


async def test_another_secret_or_tenant_finds_nothing(join: Join) -> None:
    """Equal text of another tenant is not believed anywhere, and a gateway with another secret understands nothing."""
    one, two, stranger = join("1"), join("2"), join("3", secret=b"another")
    one.answered()
    for member in (one, two, stranger):
        await member.turn()
    assert two.holders(wanted("a system text " * 50, tenant="u")) == {}
    assert stranger.fleet.router(MODEL).residency.nodes == 0
    assert stranger.holders(wanted("a system text " * 50, secret=b"another")) == {}


def test_what_waits_is_bounded_and_losses_are_kept() -> None:
    """Of more than fits the oldest prefixes go first, counted; a loss stays, and a batch keeps within its bound."""
    box = Outbox(most_bytes=100_000)
    box.lost(b"gone")
    for number in range(200):
        box.kept(b"r", b"m", number.to_bytes(8, "little") * 100, 10.0, 0.0)
    assert (box.bytes <= 100_000, len(box), box.dropped) == (True, 116, 85)
    chosen = box.peek(0.0)
    assert chosen[0].key[0] == "lost"
    assert sum(one.size for one in chosen) <= BATCH_BYTES
    box.told(chosen)
    assert len(box) == 116 - len(chosen)
    assert box.peek(10.0) == [] and len(box) == 0


def test_a_loss_takes_what_waits_of_its_replica_with_it() -> None:
    """What was to be told of a replica before it was lost is told no more, and what is said while telling waits on."""
    box = Outbox()
    box.kept(b"r", b"m", b"12345678", 10.0, 0.0)
    box.lost(b"r")
    chosen = box.peek(0.0)
    assert [one.key[0] for one in chosen] == ["lost"]
    box.lost(b"r")
    box.told(chosen)
    assert len(box) == 1
    box.kept(b"r", b"m", b"x" * (2 * PATH_BYTES), 10.0, 0.0)
    assert box.bytes == 2 * OVERHEAD + PATH_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        packed(Batch(b"1", [Kept(b"r", b"m", b"12345678", 1.0, 0.0)]))[:-1],
        packed(Load(b"1", [(b"m", b"r", 1.0)])),
        bytes([0x92, 0xA1]) + b"1" + bytes([0x91, 0x93, 0xA1]) + b"q",
    ],
)
def test_what_is_no_batch_is_nothing(data: bytes) -> None:
    """Bytes that no gateway wrote are told apart, whatever they are."""
    assert batch_of(data) is None


@pytest.mark.parametrize("left_s", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_refused(left_s: float) -> None:
    """A belief that would never end, or a load that is no number, is nothing."""
    import msgspec

    row = ["k", b"r", b"m", b"12345678", left_s, 0.0]
    assert batch_of(msgspec.msgpack.encode([b"1", [row]])) is None
    assert load_of(msgspec.msgpack.encode([b"1", [[b"m", b"r", left_s]]])) is None


async def test_garbage_in_the_stream_stops_nothing(join: Join, shared_server: RedisServer, prefix: str) -> None:
    """An entry that is no batch is counted, and what follows is believed."""
    one, two = join("1"), join("2")
    holder = one.answered()
    await one.turn()
    shared_server.say("XADD", shared_server.settings(prefix=prefix).key_of("residency"), "*", "b", "garbage")
    shared_server.say("XADD", shared_server.settings(prefix=prefix).key_of("residency"), "*", "c", "nothing")
    one.answered(wanted("next"))
    await one.turn()
    await two.turn()
    assert (two.sharing.garbled, two.holders()) == (2, {holder: 70})
    assert set(two.holders(wanted("next")).values()) == {1}
