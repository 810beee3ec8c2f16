"""What every store promises, over a file, memory and a real Redis-compatible server."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from prefix_store.policy import Policy, PolicyRefused, default_policy
from prefix_store.store import Entry, StoreUnavailable, UnknownPolicy, VersionConflict

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("never_blocked")]

BY = {"by": "ops", "at": 1_700_000_000.5}


def policy(name="chat", version=0, **fields) -> Policy:
    """Return a policy for a model of the same name unless told otherwise."""
    return Policy(name=name, version=version, **{"model": name} | fields)


async def test_an_empty_store_has_the_default_policy(store):
    """Nothing is stored, and the built-in default stands at version 0."""
    assert list((await store.read()).policies) == [default_policy()]
    assert store.known.revision == 0


async def test_a_put_gives_back_what_a_read_gives(store):
    """A stored policy comes back whole, at version 1."""
    stored = await store.put(policy(max_ttl="12h", allowed_ttls=("5s",), default_ttl=None), **BY)
    assert stored == policy(version=1, max_ttl="12h", allowed_ttls=("5s",), default_ttl=None)
    assert (await store.read()).policies.get("chat") == stored
    assert store.known.policies.get("chat") == stored


async def test_versions_count_the_changes_of_one_policy(store):
    """Each change of a policy raises its own version by one, whatever happens to others."""
    first = await store.put(policy(), **BY)
    await store.put(policy("other"), **BY)
    assert (await store.put(first, **BY)).version == 2


async def test_the_default_can_be_changed(store):
    """The built-in default is changed from version 0 like any other policy."""
    stored = await store.put(Policy(name="default", default_ttl="5s"), **BY)
    assert stored.version == 1
    assert (await store.read()).policies.govern(model="m", tenant="t") == stored


@pytest.mark.parametrize("version", [0, 2, 7])
async def test_a_stale_put_changes_nothing(store, version):
    """A put that states another version than the stored one is refused and leaves no trace."""
    stored = await store.put(policy(), **BY)
    with pytest.raises(VersionConflict, match="stands at version 1"):
        await store.put(policy(version=version, priority=1), **BY)
    assert (await store.read()).policies.get("chat") == stored
    assert len(await store.audit()) == 1


async def test_a_put_over_nothing_must_say_so(store):
    """A put that states a version of a policy that does not exist is a conflict."""
    with pytest.raises(VersionConflict, match="does not exist"):
        await store.put(policy(version=3), **BY)


async def test_two_policies_cannot_share_a_selector(store):
    """A second policy for the same requests is refused, naming the field and the first."""
    await store.put(policy(), **BY)
    with pytest.raises(PolicyRefused, match="'chat'") as refused:
        await store.put(policy("twin", model="chat"), **BY)
    assert refused.value.field == "model"
    assert (await store.read()).policies.get("twin") is None


async def test_a_deleted_policy_is_gone_and_its_versions_are_never_given_again(store):
    """After a delete the name is free, but a new policy under it goes on counting."""
    await store.put(policy(), **BY)
    await store.delete("chat", version=1, **BY)
    assert (await store.read()).policies.get("chat") is None
    assert (await store.put(policy(), **BY)).version == 3


async def test_a_delete_of_another_version_is_refused(store):
    """A delete states the version it deletes."""
    await store.put(policy(), **BY)
    with pytest.raises(VersionConflict):
        await store.delete("chat", version=2, **BY)
    assert (await store.read()).policies.get("chat") is not None


async def test_what_is_not_there_cannot_be_deleted(store):
    """Deleting an unknown or already deleted policy says that there is none."""
    with pytest.raises(UnknownPolicy, match="'chat'"):
        await store.delete("chat", version=0, **BY)


async def test_the_default_cannot_be_deleted(store):
    """The policy `default` always exists."""
    with pytest.raises(PolicyRefused, match="always exists"):
        await store.delete("default", version=0, **BY)


async def test_of_two_changes_at_once_one_is_a_conflict(store):
    """Writers that read the same version cannot both win."""
    await store.put(policy(), **BY)
    tries = [store.put(policy(version=1, priority=priority), **BY) for priority in range(4)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Policy", *["VersionConflict"] * 3]


async def test_the_audit_says_who_did_what_when(store):
    """Every change leaves one line with the policy before and after, newest first."""
    first = await store.put(policy(), **BY)
    second = await store.put(msgspec.structs.replace(first, priority=7), by="eve", at=2.0)
    await store.delete("chat", version=2, by="bob", at=3.0)
    plain = [msgspec.json.decode(msgspec.json.encode(changed)) for changed in (first, second)]
    assert await store.audit() == (
        Entry(by="bob", at=3.0, what="policy.delete", subject="chat", before=plain[1]),
        Entry(by="eve", at=2.0, what="policy.put", subject="chat", before=plain[0], after=plain[1]),
        Entry(**BY, what="policy.put", subject="chat", after=plain[0]),
    )


async def test_the_audit_is_read_in_pages(store):
    """`limit` and `skip` count from the newest line; past the end there is nothing."""
    for number in range(5):
        await store.record(Entry(by="ops", at=float(number), what="purge", subject="tenant a", after={"n": number}))
    assert [entry.at for entry in await store.audit(limit=2)] == [4.0, 3.0]
    assert [entry.at for entry in await store.audit(limit=2, skip=3)] == [1.0, 0.0]
    assert [entry.at for entry in await store.audit(limit=3, skip=4)] == [0.0]
    assert await store.audit(limit=0) == await store.audit(skip=5) == ()


async def test_counters_add_up(store):
    """Increments of one space add up and leave other spaces alone."""
    await store.count("broken", {"5m/a": 2, "1h/b": 1}, ttl_s=60)
    await store.count("broken", {"5m/a": 3, "ü ": -1}, ttl_s=60)
    assert await store.counters("broken") == {"5m/a": 5, "1h/b": 1, "ü ": -1}
    assert await store.counters("brok") == {}


async def test_a_space_is_forgotten_after_its_last_increment(store, let_pass):
    """An increment keeps the whole space for its time; then all of it is gone, and a new one begins at zero."""
    await store.count("broken", {"a": 1}, ttl_s=300)
    let_pass(200)
    await store.count("broken", {"b": 1}, ttl_s=300)
    let_pass(200)
    assert await store.counters("broken") == {"a": 1, "b": 1}
    let_pass(100)
    assert await store.counters("broken") == {}
    await store.count("broken", {"b": 4}, ttl_s=300)
    assert await store.counters("broken") == {"b": 4}


async def test_no_increments_keep_nothing_alive(store, let_pass):
    """Adding nothing is not an increment."""
    await store.count("broken", {"a": 1}, ttl_s=300)
    let_pass(200)
    await store.count("broken", {}, ttl_s=300)
    let_pass(100)
    assert await store.counters("broken") == {}


async def test_watchers_hear_of_changes(store):
    """A watcher gets what is known and then each newer snapshot; all end when the store closes."""

    async def listen():
        return [len(snapshot.policies) async for snapshot in store.watch()]

    listener = asyncio.create_task(listen())
    for number in range(3):
        moved = asyncio.create_task(anext(skip_first(store)))
        await asyncio.sleep(0)
        await store.put(policy(f"p{number}"), **BY)
        await moved
    await store.close()
    assert await listener == [1, 2, 3, 4]
    assert [snapshot async for snapshot in store.watch()] == []


async def skip_first(store):
    """Go over the snapshots after the one that is known now."""
    async with contextlib.aclosing(store.watch()) as snapshots:
        await anext(snapshots)
        async for snapshot in snapshots:
            yield snapshot


async def test_a_change_given_up_by_its_caller_is_whole(store):
    """A put whose caller was cancelled is done or not done, and what is known here agrees with the store."""
    putting = asyncio.create_task(store.put(policy(), **BY))
    await asyncio.sleep(0)
    putting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await putting
    snapshot = await store.read()
    done = snapshot.policies.get("chat") is not None
    assert store.known == snapshot
    assert len(await store.audit()) == (1 if done else 0)


@pytest.mark.parametrize("backend", ["file", "redis"], indirect=True)
async def test_what_was_stored_is_there_after_a_restart(opening, opened):
    """Policies, versions, audit and counters outlive the store that wrote them."""
    before = await opened(opening())
    stored = await before.put(policy(), **BY)
    await before.count("broken", {"a": 1}, ttl_s=300)
    lines = await before.audit()
    await before.close()
    after = await opened(opening())
    assert after.known.policies.get("chat") == stored
    assert await after.audit() == lines
    assert await after.counters("broken") == {"a": 1}


async def test_a_store_that_answers_is_not_degraded(store):
    """`degraded` is None while all is well."""
    await store.read()
    assert store.degraded is None


async def test_closing_twice_is_allowed_and_a_closed_store_says_so(store):
    """After `close` nothing is pretended."""
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.put(policy(), **BY)


async def test_kept_values_come_back_byte_for_byte(store):
    """Any bytes under any names are recalled; what was never kept is left out."""
    items = {"a": b"", "ü ": bytes(range(256)), "id:x": b"\x00" * 1000}
    await store.keep("fp:acme", items, ttl_s=60)
    assert await store.recall("fp:acme", ["ü ", "nothing", "a", "id:x"]) == items
    assert await store.recall("fp:acme", []) == {}


async def test_spaces_of_kept_values_are_apart(store):
    """A key in one space says nothing of the same key in another, nor do counters of that name."""
    await store.keep("fp:a", {"b": b"1"}, ttl_s=60)
    await store.keep("fp:", {"ab": b"2"}, ttl_s=60)
    await store.count("fp:a", {"b": 3}, ttl_s=60)
    assert await store.recall("fp:a", ["b", "ab"]) == {"b": b"1"}
    assert await store.recall("fp:", ["b", "ab"]) == {"ab": b"2"}
    assert await store.counters("fp:a") == {"b": 3}


async def test_a_kept_value_is_forgotten_by_itself(store, let_pass):
    """Each value lives for its own time since it was last written, whatever happens to others of its space."""
    await store.keep("fp", {"a": b"1", "b": b"1"}, ttl_s=300)
    let_pass(200)
    await store.keep("fp", {"b": b"2", "c": b"2"}, ttl_s=300)
    assert await store.recall("fp", ["a", "b", "c"]) == {"a": b"1", "b": b"2", "c": b"2"}
    let_pass(100)
    assert await store.recall("fp", ["a", "b", "c"]) == {"b": b"2", "c": b"2"}
    let_pass(200)
    assert await store.recall("fp", ["a", "b", "c"]) == {}


async def test_many_and_large_values_are_kept_in_one_call(store):
    """A thousand values, and one of two megabytes, go in and come out in one call each."""
    items = {f"k{number}": number.to_bytes(2, "big") * 500 for number in range(1000)} | {"large": b"x" * (2 << 20)}
    await store.keep("fp", items, ttl_s=60)
    assert await store.recall("fp", list(items)) == items


async def test_keeping_nothing_is_allowed(store):
    """An empty call does nothing."""
    await store.keep("fp", {}, ttl_s=60)
    assert await store.recall("fp", ["a"]) == {}


@pytest.mark.parametrize("backend", ["file", "redis"], indirect=True)
async def test_kept_values_are_shared_and_outlive_who_kept_them(opening, opened):
    """Another store over the same file or server recalls them, at once and after a restart."""
    one, two = await opened(opening()), await opened(opening())
    await one.keep("fp", {"a": b"1"}, ttl_s=300)
    assert await two.recall("fp", ["a"]) == {"a": b"1"}
    await one.close()
    await two.close()
    assert await (await opened(opening())).recall("fp", ["a"]) == {"a": b"1"}


async def test_a_space_is_forgotten_whole_and_alone(store):
    """Every value of one space goes at once, none of another whose name begins alike, and what comes later stays."""
    many = {f"k{number}": b"1" for number in range(1500)}
    await store.keep("fp:a", many, ttl_s=60)
    await store.keep("fp:a*", {"k1": b"2"}, ttl_s=60)
    await store.keep("fp:", {"ak1": b"3"}, ttl_s=60)
    await store.forget("fp:a")
    assert await store.recall("fp:a", list(many)) == {}
    assert await store.recall("fp:a*", ["k1"]) == {"k1": b"2"}
    assert await store.recall("fp:", ["ak1"]) == {"ak1": b"3"}
    await store.keep("fp:a", {"k1": b"4"}, ttl_s=60)
    assert await store.recall("fp:a", ["k1", "k2"]) == {"k1": b"4"}
    await store.forget("fp:never")


async def test_a_closed_store_neither_keeps_nor_recalls(store):
    """After `close` both say that the store is not there."""
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.keep("fp", {"a": b"1"}, ttl_s=60)
    with pytest.raises(StoreUnavailable):
        await store.recall("fp", ["a"])
