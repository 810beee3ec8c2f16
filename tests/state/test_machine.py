"""SQLite, Redis and a plain dictionary agree on everything, whatever is done in whatever order."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from prefix_store.policy import Policy, PolicyRefused
from prefix_store.redis_store import RedisStore
from prefix_store.sqlite_store import SqliteStore
from prefix_store.store import Entry, StateError, UnknownPolicy, VersionConflict
from tests.state.servers import HandClock, RedisServer

NAMES = ("default", "a", "b", "c")
SELECTORS = ((None, None), ("m", None), (None, "t"), ("m", "t"))
SPACES = ("x", "y")
UNIT_S = 100.0  # times are whole multiples: a busy machine may lose seconds of it by Redis' own clock
_prefixes = (f"m{number}:" for number in itertools.count())


def plain(policy: Policy) -> dict[str, object]:
    """Return the JSON form of a policy."""
    return msgspec.json.decode(msgspec.json.encode(policy), type=dict[str, object])


class Oracle:
    """The slow truth: dictionaries, written without a look at the stores."""

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {}
        self.versions: dict[str, int] = {}
        self.audit: list[Entry] = []
        self.spaces: dict[str, tuple[float, dict[str, int]]] = {}
        self.now = 0.0

    def put(self, policy: Policy, **who: Any) -> Policy:
        """Store, or raise what a store must raise."""
        before = self.policies.get(policy.name)
        if policy.version != (before.version if before else 0):
            raise VersionConflict(policy.name, expected=policy.version, actual=before.version if before else 0)
        rivals = [p for p in self.policies.values() if p.name != policy.name]
        if policy.name != "default" and policy.selector in {(None, None), *(p.selector for p in rivals)}:
            raise PolicyRefused("model", "taken")
        self.versions[policy.name] = version = self.versions.get(policy.name, 0) + 1
        stored = self.policies[policy.name] = msgspec.structs.replace(policy, version=version)
        shown = plain(before) if before else None
        self.audit.append(Entry(**who, what="policy.put", subject=policy.name, before=shown, after=plain(stored)))
        return stored

    def delete(self, name: str, version: int, **who: Any) -> None:
        """Delete, or raise what a store must raise."""
        if name == "default":
            raise PolicyRefused("name", "stays")
        if name not in self.policies:
            raise UnknownPolicy(name)
        if version != self.policies[name].version:
            raise VersionConflict(name, expected=version, actual=self.policies[name].version)
        self.versions[name] += 1
        self.audit.append(Entry(**who, what="policy.delete", subject=name, before=plain(self.policies.pop(name))))

    def count(self, space: str, increments: dict[str, int], ttl_s: float) -> None:
        """Add, forgetting first."""
        if increments:
            counters = dict(self.counters(space))
            for name, by in increments.items():
                counters[name] = counters.get(name, 0) + by
            self.spaces[space] = (self.now + ttl_s, counters)

    def counters(self, space: str) -> dict[str, int]:
        """Return what is not forgotten."""
        forget_at, counters = self.spaces.get(space, (0.0, {}))
        return counters if self.now < forget_at else {}


class StoresAgree(RuleBasedStateMachine):
    """Each step is done to all three; outcomes and what can be read afterwards are equal."""

    server: RedisServer
    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.prefix, self.oracle = HandClock(), next(_prefixes), Oracle()
        self.runner = asyncio.Runner()
        sqlite = self.runner.run(SqliteStore.open(":memory:", clock=self.clock))
        redis = self.runner.run(RedisStore.open(self.server.settings(prefix=self.prefix)))
        self.stores = (sqlite, redis)
        self.at = 0.0

    def teardown(self) -> None:
        """Close what was opened."""
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()

    def everywhere(self, act, expected) -> None:
        """Do one thing to the oracle and to every store; all end in the same value or the same kind of error."""
        outcomes = [outcome(expected)] + [outcome(lambda s=store: self.runner.run(act(s))) for store in self.stores]
        assert outcomes[1:] == outcomes[:1] * 2

    def who(self) -> dict[str, Any]:
        """Return a new author's line."""
        self.at += 1.0
        return {"by": "ops", "at": self.at}

    @rule(
        name=st.sampled_from(NAMES),
        selector=st.sampled_from(SELECTORS),
        off=st.sampled_from((0, 0, 0, 1, -1)),
        priority=st.integers(0, 100),
    )
    def put(self, name: str, selector: tuple[str | None, str | None], off: int, priority: int) -> None:
        """Put a policy, mostly over the version that stands."""
        model, tenant = (None, None) if name == "default" else selector
        standing = self.oracle.policies.get(name)
        version = max(0, (standing.version if standing else 0) + off)
        policy = Policy(name=name, model=model, tenant=tenant, priority=priority, version=version)
        who = self.who()
        self.everywhere(lambda store: store.put(policy, **who), lambda: self.oracle.put(policy, **who))

    @rule(name=st.sampled_from(NAMES), off=st.sampled_from((0, 0, 1)))
    def delete(self, name: str, off: int) -> None:
        """Delete a policy, mostly at the version that stands."""
        standing = self.oracle.policies.get(name)
        version, who = (standing.version if standing else 0) + off, self.who()
        self.everywhere(
            lambda store: store.delete(name, version=version, **who), lambda: self.oracle.delete(name, version, **who)
        )

    @rule(
        space=st.sampled_from(SPACES),
        ttl=st.integers(1, 5),
        increments=st.dictionaries(st.sampled_from(("p", "q")), st.integers(-5, 100)),
    )
    def count(self, space: str, ttl: int, increments: dict[str, int]) -> None:
        """Add to a space."""
        self.everywhere(
            lambda store: store.count(space, increments, ttl_s=ttl * UNIT_S),
            lambda: self.oracle.count(space, increments, ttl * UNIT_S),
        )

    @rule(units=st.integers(1, 4))
    def let_time_pass(self, units: int) -> None:
        """Turn the hand clock, and age Redis' keys by as much on its own clock."""
        self.clock.now += units * UNIT_S
        self.oracle.now += units * UNIT_S
        self.server.age(units * UNIT_S, f"{self.prefix}*")

    @rule(skip=st.integers(0, 3), limit=st.integers(0, 4))
    def page(self, skip: int, limit: int) -> None:
        """Read a page of the audit trail."""
        expected = tuple(self.oracle.audit[::-1][skip : skip + limit])
        self.everywhere(lambda store: store.audit(limit=limit, skip=skip), lambda: expected)

    @invariant()
    def all_read_the_same(self) -> None:
        """Policies and counters are the oracle's."""
        for store in self.stores:
            policies = self.runner.run(store.read()).policies
            stored = {policy.name: policy for policy in policies if policy.version}
            assert stored == self.oracle.policies
            assert store.known.policies == policies
            for space in SPACES:
                assert self.runner.run(store.counters(space)) == self.oracle.counters(space)


def outcome(act) -> object:
    """Return what it gives, or the kind of error it raises."""
    try:
        return act()
    except (StateError, PolicyRefused) as error:
        return type(error).__name__


@pytest.mark.timeout(300)
def test_every_store_is_the_dictionary(shared_server: RedisServer) -> None:
    """Any sequence of puts, deletes, counts, pages and passing time has the same outcomes in all three."""
    machine = type("OverThisServer", (StoresAgree,), {"server": shared_server})
    limits = settings(
        max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(machine, settings=limits)
