"""Earlier requests are found across gateways and restarts, and never across tenants."""

from __future__ import annotations

import asyncio

from gateway.recall import POINTERS
from prefix_store.fingerprints import Keyed
from tests.gateway.recall.recalled import SECRET, TENANT, hashes, remember, request

DAY = 86_400.0


async def test_another_gateway_finds_a_request_by_its_name(gateway):
    """The request that the client named is found with its hashes where another gateway remembered it."""
    here, there = gateway(), gateway()
    old = request("resp_1", "a", "b", partition="p", answer="x")
    remember(there, old)
    await there.flush()
    assert await here.find(TENANT, request("new", "z"), named="resp_1") == old
    assert await here.hashes(TENANT, [*hashes(old), b"unknown"]) == hashes(old)


async def test_what_was_fetched_is_known_from_then_on(gateway, state):
    """Once found, a request and its hashes need no store."""
    here, there = gateway(), gateway()
    old = request("resp_1", "a")
    remember(there, old)
    await there.flush()
    await here.find(TENANT, request("new", "z"), named="resp_1")
    await here.hashes(TENANT, list(hashes(old)))
    await state.close()
    assert await here.find(TENANT, request("new", "z"), named="resp_1") == old
    assert await here.hashes(TENANT, list(hashes(old))) == hashes(old)


async def test_a_named_request_that_nobody_knows_is_none(gateway):
    """A wrong name is not made up for by another request, and the current request is not its own earlier one."""
    here = gateway()
    current = request("new", "a", partition="p", at=1.0)
    remember(here, request("old", "a", partition="p"), current)
    await here.flush()
    for name in ("nobody", "", "new", "\ud800", "x" * 100_000):
        assert await here.find(TENANT, current, named=name) is None


async def test_the_partition_comes_before_the_nearest(gateway):
    """The latest request with the client's key is taken though another shares more."""
    here = gateway()
    remember(here, request("same", "z", partition="p"), request("near", "a", "b", at=1.0))
    assert (await here.find(TENANT, request("new", "a", "b", partition="p", at=2.0), named=None)).id == "same"
    assert (await here.find(TENANT, request("new", "a", "b", at=2.0), named=None)).id == "near"
    assert (await here.find(TENANT, request("new", "a", "b", partition="q", at=2.0), named=None)).id == "near"


async def test_another_gateways_partition_comes_before_the_nearest_here(gateway):
    """A partition that is unknown here is asked for, and the latest request there is taken."""
    here, there = gateway(), gateway()
    remember(there, request("first", "z", partition="p"), request("last", "y", partition="p", at=1.0))
    await there.flush()
    remember(here, request("near", "a"))
    assert (await here.find(TENANT, request("new", "a", partition="p", at=2.0), named=None)).id == "last"


async def test_the_nearest_is_found_at_other_gateways_by_its_large_parts(gateway):
    """Without a name or key a request that shares a large part is found, the one with most in common."""
    here, there = gateway(), gateway()
    small = [f"s{number}" for number in range(2 * POINTERS)]
    remember(there, request("far", "system:500", "x:300", *small), request("near", "system:500", "y:400", at=1.0))
    remember(there, request("none", "else:900", at=2.0))
    await there.flush()
    assert (await here.find(TENANT, request("new", "system:500", "x:300", at=3.0), named=None)).id == "far"
    assert await gateway().find(TENANT, request("new", "nothing"), named=None) is None


async def test_a_request_in_the_store_is_not_compared_with_itself(gateway):
    """Where the latest pointers lead to the current request, the store knows no earlier one."""
    here, there = gateway(), gateway()
    current = request("new", "a", partition="p")
    remember(there, current)
    await there.flush()
    assert await here.find(TENANT, current, named=None) is None


async def test_what_memory_knows_is_not_asked_for(gateway, state):
    """With its store closed a gateway finds what it remembers, by name, partition and parts."""
    here = gateway()
    old = request("old", "a", partition="p")
    remember(here, old)
    await state.close()
    for current, named in (
        (request("new", "z"), "old"),
        (request("new", "z", partition="p"), None),
        (request("new", "a"), None),
        (request("new", "a", partition="q"), None),
    ):
        assert await here.find(TENANT, current, named=named) == old
    assert await here.find(TENANT, request("new", "z"), named=None) is None
    assert await here.hashes(TENANT, [*hashes(old), b"unknown"]) == hashes(old)


async def test_a_tenant_never_finds_anothers(gateway):
    """Name, key and parts of another tenant lead nowhere, here and in the store."""
    here, there = gateway(), gateway()
    mine = request("resp_1", "a", partition="p")
    remember(here, mine)
    await here.flush()
    for other in (here, there):
        assert await other.find("globex", request("new", "a"), named="resp_1") is None
        assert await other.find("globex", request("new", "a", partition="p"), named=None) is None
        assert await other.find("globex", request("new", "a"), named=None) is None
        assert await other.hashes("globex", list(hashes(mine))) == {}


async def test_a_gateway_with_another_secret_finds_nothing(gateway):
    """Records whose digests cannot be compared are not found at all."""
    remember(one := gateway(), request("resp_1", "a", partition="p"))
    await one.flush()
    stranger = gateway(secret=b"another")
    assert await stranger.find(TENANT, request("new", "a", partition="p"), named="resp_1") is None
    assert await stranger.find(TENANT, request("new", "a", partition="p"), named=None) is None


def test_digests_of_one_text_differ_between_tenants_and_secrets(gateway):
    """Equal texts of two tenants have nothing in common; gateways with one secret agree."""
    here = gateway()
    made = {here.keyed(tenant).digest(b"text") for tenant in ("a", "b", "")}
    made.add(gateway(secret=b"another").keyed("a").digest(b"text"))
    assert len(made) == 4
    assert gateway().keyed("a").digest(b"text") == here.keyed("a").digest(b"text") in made
    assert here.keyed("a").seed == Keyed(SECRET, "a").seed != here.keyed("b").seed


async def test_a_forgotten_tenant_is_forgotten_everywhere_that_can_be_reached(gateway):
    """What was here, on its way or shared is gone for one tenant and stays for another, and others find nothing."""
    here, there = gateway(), gateway()
    remember(here, request("resp_1", "a"))
    remember(here, request("resp_1", "a"), tenant="other")
    await here.flush()
    remember(here, request("resp_2", "b"))
    assert here.tenants == (TENANT, "other")
    assert await here.forget(TENANT)
    await here.flush()
    for name in ("resp_1", "resp_2"):
        for each in (here, there):
            assert await each.find(TENANT, request("new", "a", "b"), named=name) is None
    assert await there.hashes(TENANT, list(hashes(request("resp_1", "a")))) == {}
    assert await there.find("other", request("new", "z"), named="resp_1") == request("resp_1", "a")
    assert here.tenants == ("other",)
    here._memory.check()


async def test_what_is_being_handed_over_is_forgotten_too(gateway):
    """A tenant forgotten while its requests are on their way to the shared state is forgotten there as well."""
    here, there = gateway(), gateway()
    remember(here, request("resp_1", "a"))
    _, done = await asyncio.gather(here.flush(), here.forget(TENANT))
    assert done
    assert await there.find(TENANT, request("new", "z"), named="resp_1") is None


async def test_a_tenant_is_remembered_anew_after_it_was_forgotten(gateway):
    """The same request, asked again, is shared whole again."""
    here, there = gateway(), gateway()
    old = request("resp_1", "a")
    remember(here, old)
    await here.flush()
    await here.forget(TENANT)
    remember(here, old)
    await here.flush()
    assert await there.find(TENANT, request("new", "z"), named="resp_1") == old
    assert await there.hashes(TENANT, list(hashes(old))) == hashes(old)


async def test_without_the_shared_state_a_tenant_is_forgotten_here(gateway, state):
    """A store that does not answer keeps what it has, and that is said."""
    here = gateway()
    remember(here, request("resp_1", "a"))
    await state.close()
    assert not await here.forget(TENANT)
    assert here.tenants == ()
