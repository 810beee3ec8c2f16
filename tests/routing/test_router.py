"""Where requests go, decided in plain code with times and chance given."""

from __future__ import annotations

from random import Random

import pytest

from gateway.routing.router import Choice, Policy, Router
from gateway.routing.wanted import Wanted, path_of

FOUR = ("a", "b", "c", "d")


def wanted(*parts: str, session: str = "", ttl_s: float = 300.0) -> Wanted:
    """A prompt of parts, a token a byte, in pieces of ten bytes."""
    path, ends = path_of(b"root", [part.encode() for part in parts], 10)
    return Wanted(path=path, ends=ends, tokens=ends[-1], ttl_s=ttl_s, session=session)


SYSTEM = "s" * 1000
ONE = wanted(SYSTEM, "one" * 30)
TWO = wanted(SYSTEM, "two" * 30)


def holders(routes: Router, prompt: Wanted, at: float) -> dict[str, int]:
    """How many pieces of a prompt each replica is believed to hold."""
    return {name: held.blocks for name, held in routes.residency.match(prompt.path, at).items()}


def router(policy: Policy = "prefix") -> Router:
    """A router whose chance is always the same."""
    return Router(policy, chance=Random(7))


def answered(
    routes: Router, prompt: Wanted, at: float, among: tuple[str, ...] = FOUR, read: int | None = None
) -> Choice:
    """A request that is sent and answered at one moment; where `read` is None it reads what was believed."""
    choice = routes.choose(prompt, among, at)
    routes.answering(choice)
    routes.over(choice, prompt, at, read=choice.captured if read is None else read, computed=True)
    return choice


def test_a_prompt_goes_where_its_beginning_is() -> None:
    """The second prompt shares the system text of the first and follows it, whatever chance would draw."""
    routes = router()
    first = answered(routes, ONE, 0.0)
    assert (first.why, first.available, first.captured) == ("chance", 0, 0)
    later = [answered(routes, TWO, float(at)) for at in range(1, 20)]
    assert {(one.replica, one.why) for one in later} == {(first.replica, "prefix")}
    assert [one.captured for one in later] == [1000] + [TWO.tokens - 1] * 18


def test_a_prefix_is_left_where_its_holder_has_more_work_than_it_saves() -> None:
    """With 2,000 tokens waiting at the holder, computing 1,090 elsewhere is less work."""
    routes = router()
    holder = answered(routes, ONE, 0.0).replica
    routes.loads.others({holder: 2_000.0})
    choice = routes.choose(ONE, FOUR, 1.0)
    assert choice.replica != holder
    assert (choice.why, choice.available, choice.captured) == ("load", ONE.tokens - 1, 0)


def test_equal_cold_prompts_at_one_moment_go_to_one_replica() -> None:
    """What was sent is believed at once, so none of ten is computed elsewhere."""
    routes = router()
    assert len({routes.choose(ONE, FOUR, 0.0).replica for _ in range(10)}) == 1


def test_a_miss_goes_to_the_less_loaded_of_two() -> None:
    """A replica with more work than every other is never chosen for a prompt that nobody knows."""
    routes = router()
    routes.loads.others({"a": 10_000.0})
    chosen = {routes.choose(wanted(f"{i}" * 100), FOUR, float(i)).replica for i in range(100)}
    assert chosen == {"b", "c", "d"}


def test_ties_are_broken_by_chance() -> None:
    """Prompts that nobody knows, one after another, reach every replica: none is always first."""
    routes = router()
    counts = dict.fromkeys(FOUR, 0)
    for i in range(400):
        counts[answered(routes, wanted(f"{i:04}" * 100), float(i)).replica] += 1
    assert min(counts.values()) > 60


def test_stickiness_ends_with_the_promise() -> None:
    """At its deadline a prefix is believed nowhere any more; the moment before it is."""
    routes = router()
    holder = answered(routes, wanted(SYSTEM, ttl_s=60.0), 0.0).replica
    asked = wanted(SYSTEM, ttl_s=60.0)
    assert holders(routes, asked, 59.9) == {holder: 100}
    assert holders(routes, asked, 60.0) == {}


def test_a_restarted_replica_is_believed_to_hold_nothing() -> None:
    """Its entries go in one step, and the load spreads."""
    routes = router()
    holder = answered(routes, ONE, 0.0).replica
    assert routes.gone(holder) == 109
    assert routes.choose(ONE, FOUR, 1.0).available == 0


def test_an_answer_that_read_nothing_takes_older_beliefs_with_it() -> None:
    """A replica that was wiped in silence is found out by the first answer: all that was used before is gone too."""
    routes = router()
    for prompt in (wanted("old" * 100), ONE):
        answered(routes, prompt, 0.0, ("a",))
    answered(routes, wanted("new" * 100), 5.0, ("a",))
    choice = answered(routes, TWO, 6.0, ("a",), read=0)
    assert choice.captured == 1000
    assert holders(routes, wanted("old" * 100), 7.0) == {}
    assert holders(routes, wanted("new" * 100), 7.0) == {"a": 30}
    assert holders(routes, TWO, 7.0) == {"a": 109}


def test_what_was_only_sent_is_not_held_against_a_replica() -> None:
    """Two equal prompts at once: the second reads nothing because the first is not done, which contradicts nothing."""
    routes = router()
    answered(routes, wanted("old" * 100), 0.0, ("a",))
    first, second = (routes.choose(ONE, ("a",), 1.0) for _ in range(2))
    routes.over(second, ONE, 2.0, read=0, computed=True)
    routes.over(first, ONE, 2.0, read=0, computed=True)
    assert holders(routes, wanted("old" * 100), 3.0) == {"a": 30}


def test_a_request_that_computed_nothing_leaves_no_belief() -> None:
    """A connection refused takes back what was believed for it, and its load."""
    routes = router()
    answered(routes, wanted(SYSTEM), 0.0, ("a",))
    choice = routes.choose(ONE, ("a",), 1.0)
    assert routes.loads.at("a") == 90 + 64
    routes.over(choice, ONE, 1.0, read=None, computed=False)
    assert routes.loads.at("a") == 0
    assert holders(routes, ONE, 2.0) == {"a": 100}


def test_load_falls_when_the_prompt_is_computed_and_ends_with_the_answer() -> None:
    """Work is counted once, and taken away once."""
    routes = router()
    choice = routes.choose(ONE, ("a",), 0.0)
    assert routes.loads.at("a") == ONE.tokens + 64
    routes.answering(choice)
    routes.answering(choice)
    assert routes.loads.at("a") == 64
    for _ in range(2):
        routes.over(choice, ONE, 1.0, read=0, computed=True)
    assert routes.loads.at("a") == 0


def test_round_robin_takes_turns() -> None:
    """Every replica has its turn, whatever it holds."""
    routes = router("round_robin")
    assert [routes.choose(ONE, FOUR, 0.0).replica for _ in range(8)] == ["b", "c", "d", "a"] * 2


def test_least_load_takes_the_replica_with_least_work() -> None:
    """What is resident does not count."""
    routes = router("least_load")
    routes.loads.others({"a": 5.0, "b": 3.0, "c": 4.0, "d": 9.0})
    assert routes.choose(ONE, FOUR, 0.0).replica == "b"


def test_a_session_stays_where_it_is_when_another_replica_goes() -> None:
    """Of a hundred sessions only those of the removed replica move."""
    routes = router("session")
    sessions = [wanted("hello", session=f"s{i}") for i in range(100)]
    before = [routes.choose(one, FOUR, 0.0).replica for one in sessions]
    after = [routes.choose(one, ("a", "b", "d"), 0.0).replica for one in sessions]
    assert set(before) == set(FOUR)
    assert [x for x, y in zip(before, after, strict=True) if x != y] == [x for x in before if x == "c"]


def test_a_heavier_replica_takes_more() -> None:
    """Twice the weight halves what waiting work costs."""
    routes = router("least_load")
    routes.weigh("a", 2.0)
    routes.loads.others({"a": 150.0, "b": 100.0})
    assert routes.choose(wanted("x" * 100), ("a", "b"), 0.0).replica == "a"


@pytest.mark.parametrize("at", [0, 9, 10, 11, 25])
def test_pieces_and_tokens_agree(at: int) -> None:
    """A number of tokens covers the whole pieces that end at or before it."""
    asked = wanted("x" * 25)
    assert asked.ends == [10, 20, 25]
    assert asked.pieces_at(at) == sum(1 for end in asked.ends if end <= at)
    assert asked.tokens_at(asked.pieces_at(at)) <= at
