"""What is remembered of responses: for whom, how long and how much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.responses_items import Item
from gateway.api.responses_store import ResponseStore, Stored
from gateway.errors import NotStored, problem_of


def stored(name: str, size: int = 1) -> Stored:
    """A response whose one output item has this name."""
    output = Item(type="message", id=f"msg_{name}", role="assistant", content=name)
    question = Item(type="message", id=f"in_{name}", role="user", content="?")
    return Stored(items=(question, output), outputs=(output,), answer=name.encode(), size=size)


def test_another_tenant_finds_nothing() -> None:
    """A response, its items and its deletion belong to one tenant."""
    store = ResponseStore()
    store.put("a", "r", stored("x"), 0)
    assert store.get("b", "r", 0) is None
    assert store.item("b", "msg_x", 0) is None
    assert not store.delete("b", "r")
    assert store.get("a", "r", 0) == stored("x")


def test_missing_previous_response_is_said_in_openais_words() -> None:
    """The refusal is a 404 with code and param."""
    with pytest.raises(NotStored) as caught:
        ResponseStore().earlier("a", "resp_x", (), 0)
    problem = problem_of(caught.value)
    assert (problem.status, problem.code, problem.param, problem.kind) == (
        404,
        "previous_response_not_found",
        "previous_response_id",
        "invalid_request_error",
    )


def test_earlier_items_and_references_are_gathered() -> None:
    """References reach the previous response's conversation and any kept answer; what is not kept is left out."""
    store = ResponseStore()
    store.put("a", "r1", stored("x"), 0)
    store.put("a", "r2", stored("y", size=7), 0)
    earlier = store.earlier("a", "r2", ("in_y", "msg_x", "in_x", "msg_z"), 0)
    assert (earlier.items, earlier.size) == (stored("y").items, 7)
    assert set(earlier.referenced) == {"in_y", "msg_x"}


def test_nothing_outlives_its_time() -> None:
    """A response is found up to its age and not after, however often it is used."""
    store = ResponseStore(longest_s=10)
    store.put("a", "r", stored("x"), 0)
    assert store.get("a", "r", 10) is not None
    assert store.get("a", "r", 10.1) is None
    assert store.item("a", "msg_x", 10.1) is None
    assert (len(store), store.size) == (0, 0)


def test_the_least_recently_used_goes_first() -> None:
    """Where one too many is put, the one unused for longest goes."""
    store = ResponseStore(responses=2)
    store.put("a", "1", stored("1"), 0)
    store.put("a", "2", stored("2"), 1)
    store.get("a", "1", 2)
    store.put("a", "3", stored("3"), 3)
    assert [store.get("a", name, 4) is not None for name in "123"] == [True, False, True]


def test_what_is_too_large_alone_is_not_kept() -> None:
    """A response beyond the whole bound drives nobody out."""
    store = ResponseStore(size=10)
    store.put("a", "1", stored("1", size=10), 0)
    store.put("a", "2", stored("2", size=11), 0)
    assert store.get("a", "1", 0) is not None
    assert store.get("a", "2", 0) is None


def test_putting_again_replaces() -> None:
    """The same id counts once."""
    store = ResponseStore()
    store.put("a", "r", stored("x", size=3), 0)
    store.put("a", "r", stored("y", size=4), 0)
    assert (len(store), store.size) == (1, 4)
    assert store.item("a", "msg_x", 0) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from("pgd"), st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 12), st.integers(0, 4)
        )
    )
)
def test_bounds_always_hold(steps: list[tuple[str, str, int, int, int]]) -> None:
    """Whatever is done, count and bytes stay within bounds and are those of what is there."""
    store, now = ResponseStore(responses=3, size=20, longest_s=10), 0
    for what, tenant, number, size, wait in steps:
        now += wait
        if what == "p":
            store.put(tenant, str(number), stored(str(number), size), now)
        elif what == "g":
            found = store.get(tenant, str(number), now)
            assert found is None or found.answer == str(number).encode()
        else:
            store.delete(tenant, str(number))
        assert len(store) <= 3
        assert store.size == sum(kept.stored.size for kept in store._kept.values()) <= 20
        assert set(store._holders.values()) == {name for _, name in store._kept}
