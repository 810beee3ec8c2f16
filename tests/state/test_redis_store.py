"""What only a shared server has: other gateways, lost messages, lost data, users, keys."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import msgspec
import pytest

from prefix_store.breaker import Breaker
from prefix_store.policy import Policy
from prefix_store.redis_link import RedisLink
from prefix_store.redis_store import RedisStore, _read_files
from prefix_store.store import Entry, StateRefused, StoreUnavailable, VersionConflict
from tests.state.servers import SECRET, eventually

pytestmark = pytest.mark.usefixtures("never_blocked")

BY = {"by": "ops", "at": 1.0}
FOLLOWED_S = 1.0


def names(store) -> list[str]:
    """Return the names of the policies that a store knows without asking."""
    return [policy.name for policy in store.known.policies]


async def test_two_gateways_follow_each_other_by_message(shared_server, prefix, opened):
    """With the poll out of reach, a change made here is known there, both ways."""
    settings = shared_server.settings(prefix=prefix)
    one, two = [await opened(RedisStore.open(settings, poll_s=3600.0)) for _ in range(2)]
    channel = settings.key_of("channel")
    await eventually(lambda: shared_server.say("PUBSUB", "NUMSUB", channel).endswith(b":2\r\n"))
    await one.put(Policy(name="a", model="a"), **BY)
    await eventually(lambda: names(two) == ["default", "a"], within_s=FOLLOWED_S)
    await two.delete("a", version=1, **BY)
    await eventually(lambda: names(one) == ["default"], within_s=FOLLOWED_S)


async def test_a_lost_message_heals_within_a_second(shared_server, prefix, opened):
    """A change whose message nobody got is found by the poll."""
    settings = shared_server.settings(prefix=prefix)
    one = await opened(RedisStore.open(settings))
    deaf = RedisStore._listen
    RedisStore._listen = lambda *_: asyncio.sleep(0)
    try:
        two = await opened(RedisStore.open(settings))
    finally:
        RedisStore._listen = deaf
    await one.put(Policy(name="a", model="a"), **BY)
    await eventually(lambda: names(two) == ["default", "a"], within_s=FOLLOWED_S)


async def test_a_watcher_hears_of_the_other_gateways_changes(shared_server, prefix, opened):
    """The feed is the same whoever made the change."""
    settings = shared_server.settings(prefix=prefix)
    one, two = [await opened(RedisStore.open(settings)) for _ in range(2)]
    feed = two.watch()
    assert len((await anext(feed)).policies) == 1
    await one.put(Policy(name="a", model="a"), **BY)
    assert len((await anext(feed)).policies) == 2
    await feed.aclose()


async def test_keys_carry_the_prefix_and_tell_nothing(shared_server, prefix, opened):
    """Every key is the prefix and a digest or two; all but policies, versions and audit expire."""
    settings = shared_server.settings(prefix=prefix)
    store = await opened(RedisStore.open(settings))
    await store.put(Policy(name="chat", tenant="acme"), **BY)
    await store.count("acme/5m", {"broken": 1}, ttl_s=60)
    await store.keep("fp:acme", {"id": b"1", "hash": b"2"}, ttl_s=60)
    keys = shared_server.lines("KEYS", f"{prefix}*")
    assert len(keys) == 6
    assert all(re.fullmatch(re.escape(prefix) + "[0-9a-f]{40}(:[0-9a-f]{40})?", key) for key in keys)
    lasting = {key for key in keys if shared_server.number("PTTL", key) == -1}
    assert lasting == {settings.key_of(kind) for kind in ("meta", "policies", "audit")}


async def test_another_secret_sees_other_keys(shared_server, prefix, opened):
    """A gateway with another secret shares nothing."""
    settings = shared_server.settings(prefix=prefix)
    one = await opened(RedisStore.open(settings))
    other = await opened(
        RedisStore.open(settings.from_parts({"socket": settings.socket, "prefix": prefix}, secret="x"))
    )
    await one.put(Policy(name="a", model="a"), **BY)
    assert names(other) == ["default"] and len((await other.read()).policies) == 1


def test_keys_are_the_same_in_every_process(shared_server):
    """Processes with different hash seeds make equal keys."""
    script = (
        "from prefix_store.redis_settings import RedisSettings\n"
        f"s = RedisSettings.from_url('redis://h', secret={SECRET!r})\n"
        "print(s.key_of('policies'), s.key_of('counters', 'acme/5m'), s.key_of('policy', 'chat'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | seed, capture_output=True, text=True, check=True
        ).stdout
        for seed in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}, {"PYTHONHASHSEED": "random"})
    }
    assert len(printed) == 1


def test_no_two_things_share_a_key(shared_server):
    """Kind and name are framed: moving a letter from one to the other makes another key."""
    key_of = shared_server.settings().key_of
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("", "abc"), key_of("counters", "")}) == 5
    assert len({key_of("a", "b", "c"), key_of("a", "bc"), key_of("a", "", "bc"), key_of("a", "bc", "")}) == 4


async def test_only_its_own_keys_and_channel_are_needed(server, opened):
    """An ACL user that may touch nothing but the prefix can do everything."""
    server.say("ACL", "SETUSER", "kw", "on", ">pa:ss@", "~kw:*", "&kw:*", "+@all", "-@admin", "-@dangerous")
    settings = server.settings(prefix="kw:", username="kw", password="pa:ss@")
    one, two = [await opened(RedisStore.open(settings)) for _ in range(2)]
    await one.put(Policy(name="a", model="a"), **BY)
    await one.keep("x", {"y": b"z"}, ttl_s=60)
    assert await two.recall("x", ["y"]) == {"y": b"z"}
    await one.count("x", {"y": 1}, ttl_s=60)
    await eventually(lambda: names(two) == ["default", "a"], within_s=FOLLOWED_S)
    assert await two.counters("x") == {"y": 1}
    assert len(await two.audit()) == 1


@pytest.mark.parametrize("password", ["wrong", "right"])
async def test_a_server_that_does_not_let_us_in_is_refused_at_start(server, password):
    """A wrong password, or a user without the right to our keys, will not get better by waiting."""
    server.say("ACL", "SETUSER", "kw", "on", ">right", "~other:*", "+@all")
    with pytest.raises(StateRefused, match="Correct the user and password"):
        await RedisStore.open(server.settings(username="kw", password=password))


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [("schema", "2", "later version"), ("revision", "x", "make no sense")],
)
async def test_state_of_a_later_version_is_refused_at_start(shared_server, prefix, opened, field, value, problem):
    """A gateway that is too old for what is stored, or meets what it did not write, does not start on it."""
    settings = shared_server.settings(prefix=prefix)
    store = await opened(RedisStore.open(settings))
    await store.put(Policy(name="a", model="a"), **BY)
    await store.close()
    shared_server.say("HSET", settings.key_of("meta"), field, value)
    with pytest.raises(StateRefused, match=problem):
        await RedisStore.open(settings)


async def test_state_spoilt_while_running_degrades(shared_server, prefix, opened):
    """A record that cannot be read leaves the known policies in force until someone repairs it."""
    settings = shared_server.settings(prefix=prefix)
    store = await opened(RedisStore.open(settings))
    await store.put(Policy(name="a", model="a"), **BY)
    (whole,) = shared_server.lines("HVALS", settings.key_of("policies"))
    field = settings.key_of("policy", "a")
    shared_server.say("HSET", settings.key_of("policies"), field, "{}")
    shared_server.say("HINCRBY", settings.key_of("meta"), "revision", "1")
    await eventually(lambda: "make no sense" in (store.degraded or ""))
    assert len((await store.read()).policies) == 2
    with pytest.raises(StateRefused):
        await store.put(Policy(name="b", model="b"), **BY)
    assert await store.counters("x") == {}
    assert store.degraded is not None
    shared_server.say("HSET", settings.key_of("policies"), field, whole)
    await eventually(lambda: store.degraded is None)


async def test_an_emptied_server_gets_the_highest_versions_back(shared_server, prefix, opened):
    """After a flush the gateways restore what they know, deletions included, and versions go on."""
    settings = shared_server.settings(prefix=prefix)
    one, two = [await opened(RedisStore.open(settings)) for _ in range(2)]
    first = await one.put(Policy(name="a", model="a"), **BY)
    second = await two.put(msgspec.structs.replace(first, priority=7), **BY)
    gone = await one.put(Policy(name="b", model="b"), **BY)
    await one.delete("b", version=gone.version, **BY)
    await eventually(lambda: one.known.revision == two.known.revision)
    for key in shared_server.lines("KEYS", f"{prefix}*"):
        shared_server.say("DEL", key)
    await eventually(lambda: shared_server.number("HLEN", settings.key_of("policies")) == 2, within_s=FOLLOWED_S)
    fresh = await opened(RedisStore.open(settings))
    assert fresh.known.policies.get("a") == second
    with pytest.raises(VersionConflict):
        await fresh.put(first, **BY)
    assert (await fresh.put(Policy(name="b", model="b"), **BY)).version == 3
    assert [entry.what for entry in await fresh.audit()][-1] == "policies.reseed"


async def test_what_was_put_into_an_emptied_server_is_merged(shared_server, prefix, opened):
    """A change made after the loss stands, and beside it what the others remember."""
    settings = shared_server.settings(prefix=prefix)
    old = await opened(RedisStore.open(settings))
    await old.put(Policy(name="a", model="a"), **BY)
    await old.put(Policy(name="c", model="c"), **BY)
    await old.close()
    for key in shared_server.lines("KEYS", f"{prefix}*"):
        shared_server.say("DEL", key)
    new = await opened(RedisStore.open(settings))
    await new.put(Policy(name="b", model="a", priority=1), **BY)
    await new.put(Policy(name="c", model="c", priority=2), **BY)
    await new.put(Policy(name="c", model="c", priority=3, version=1), **BY)
    returning = RedisStore(
        settings, RedisLink(settings, Breaker()), await asyncio.to_thread(_read_files, settings), default()
    )
    returning._feed = old._feed
    merged = await returning._refresh()
    await returning.close()
    assert {policy.name: policy.priority for policy in merged.policies} == {"default": 50, "b": 1, "c": 3}
    assert (merged.records["a"].version, merged.records["a"].policy) == (2, None)
    await eventually(lambda: new.known == merged)


async def test_a_change_that_always_comes_second_is_given_up(shared_server, prefix, opened):
    """A writer that loses every race says so, and a reader that must re-seed too."""
    settings = shared_server.settings(prefix=prefix)
    store, faster = [await opened(RedisStore.open(settings, poll_s=3600.0)) for _ in range(2)]
    await store.put(Policy(name="a", model="a"), **BY)
    commit, number = store._commit, iter(range(1000))

    async def late(*arguments, **rest):
        await faster.put(Policy(name=f"f{next(number)}", tenant=f"t{next(number)}"), **BY)
        return await commit(*arguments, **rest)

    store._commit = late
    with pytest.raises(StoreUnavailable, match="changed too fast"):
        await store.put(Policy(name="b", model="b"), **BY)
    shared_server.say("HSET", settings.key_of("meta"), "epoch", "another life")
    with pytest.raises(StoreUnavailable, match="changed too fast"):
        await store._refresh()


async def test_a_purge_is_audited_like_a_change(shared_server, prefix, opened):
    """`record` is for what is done elsewhere."""
    store = await opened(RedisStore.open(shared_server.settings(prefix=prefix)))
    line = Entry(by="ops", at=1.0, what="purge", subject="tenant acme", after={"tokens": 12})
    await store.record(line)
    assert await store.audit() == (line,)


def default() -> Policy:
    """Return the built-in default."""
    return Policy(name="default")
