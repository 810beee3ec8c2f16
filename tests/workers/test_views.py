"""What workers say, put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.recent import Recent
from gateway.workers import views
from gateway.workers.worker import failures_after, pause_s
from tests.gateway.records import record


def part(recent: Recent, limit: int, before: str | None = None) -> dict[str, Any]:
    """What a worker with these exchanges answers."""
    known = None if before is None else views.places(before)
    border = recent.top if known is None else known.get(recent.life)
    kept = {"kept": len(recent), "since": recent.since}
    if border is None:
        return {"requests": [], "places": [], "more": False, "from": None, **kept}
    page = recent.page(lambda _: True, limit=limit, before=border)
    shown = [{"id": one.id, "at": one.at, "seconds": one.seconds} for one in page.records]
    return {"requests": shown, "places": list(page.places), "more": page.next is not None, "from": border, **kept}


@given(st.lists(st.integers(0, 2), max_size=25), st.integers(1, 7))
def test_pages_of_all_workers_have_each_request_once_the_latest_first(told: list[int], limit: int) -> None:
    """However requests are spread over workers and cut into pages, going on from `next` shows what one ring would."""
    rings = [Recent() for _ in range(3)]
    for at, worker in enumerate(told):
        rings[worker].ended(record(id=str(at), at=float(at), seconds=0.5), b"")
    shown, before = list[str](), None
    while True:
        answer = views.requests([part(ring, limit, before) for ring in rings], limit)
        shown += [one["id"] for one in answer["requests"]]
        assert (answer["kept"], answer["since"]) == (len(told), 0.0 if told else None)
        before = answer["next"]
        if before is None:
            break
        assert len(answer["requests"]) == limit
    assert shown == [str(at) for at in reversed(range(len(told)))]


def test_what_came_after_a_page_is_not_on_the_next_one() -> None:
    """Neither later requests of the same workers nor those of one that began later are older than the page before."""
    old, new = Recent(), Recent()
    for at in range(4):
        old.ended(record(id=str(at), at=float(at)), b"")
    first = views.requests([part(old, 2)], 2)
    old.ended(record(id="late", at=9.0), b"")
    new.ended(record(id="new", at=9.0), b"")
    then = views.requests([part(ring, 2, first["next"]) for ring in (old, new)], 2)
    assert [one["id"] for one in (*first["requests"], *then["requests"])] == ["3", "2", "1", "0"]
    assert (then["next"], then["kept"]) == (None, 6)


@pytest.mark.parametrize("text", ["", "x", "ab-", "-1", "ab-1..cd-2", "ab-1,cd-2", "AB-1", "ab-" + "1" * 20])
def test_a_place_that_nobody_gave_is_refused(text: str) -> None:
    """What no answer's `next` looks like is no list of places."""
    with pytest.raises(ValueError, match=text or None):
        views.places(text)


def upstream(name: str, **fields: Any) -> dict[str, Any]:
    """What one worker says of an upstream."""
    counts = dict.fromkeys((*views.COUNTS, *views.NOW, "resident_tokens"), 0)
    return {"name": name, "state": "well", "why": "", **counts, "delivered_ratio": None, **fields}


def test_upstreams_count_every_life_and_show_the_gravest_state() -> None:
    """Counts of the dead stay, what is open does not; a state that one worker sees is shown with its reason."""
    seen = views.Upstreams()
    seen.told(1, {"upstreams": [upstream("a", requests=5, open=2, prompt_tokens=30)], "routing": {"m": "prefix"}})
    seen.told(2, {"upstreams": [upstream("a", requests=1, open=1, resident_tokens=9)], "routing": {"m": "prefix"}})
    seen.ended(1)
    sick = upstream("a", state="open", why="it failed", open=4, prompt_tokens=10, delivered_tokens=20)
    seen.told(3, {"upstreams": [sick], "routing": {"m": "prefix"}})
    assert seen.merged() == {
        "upstreams": [
            upstream("a", state="open", why="it failed", requests=6, open=5, prompt_tokens=40, delivered_tokens=20)
            | {"resident_tokens": 9, "delivered_ratio": 0.5}
        ],
        "routing": {"m": "prefix"},
    }


def test_an_upstream_that_is_taken_away_is_forgotten() -> None:
    """Its counts do not come back when another of its name is configured later."""
    seen = views.Upstreams()
    seen.told(1, {"upstreams": [upstream("a", requests=5)], "routing": {}})
    seen.ended(1)
    seen.told(2, {"upstreams": [], "routing": {}})
    assert seen.merged() == {"upstreams": [], "routing": {}}
    seen.told(2, {"upstreams": [upstream("a", requests=1)], "routing": {}})
    assert seen.merged()["upstreams"][0]["requests"] == 1


def test_happenings_of_the_audit_trail_are_told_once() -> None:
    """What two workers read is one happening; that each of them started is the parent's to tell."""
    policy = {"at": 2.0, "kind": "policy", "title": "Policy x deleted", "subject": "x"}
    answers = [
        {"events": [{"at": at, "kind": "start", "title": "The gateway started", "subject": ""}, policy], "cut": False}
        for at in (1.1, 1.2)
    ]
    own = {"at": 3.0, "kind": "restart", "title": "Worker 1 died", "subject": ""}
    assert views.happenings(answers, [own]) == {"events": [policy, own], "cut": False}
    once = views.Once()
    assert [once.new(policy), once.new(dict(policy)), once.new(own)] == [True, False, True]


def test_a_worker_that_keeps_dying_is_started_less_and_less_often() -> None:
    """The pause doubles from half a second to half a minute, and a steady life is forgiven what was before."""
    assert [pause_s(failures) for failures in (1, 2, 3, 4, 7, 1000)] == [0.5, 1.0, 2.0, 4.0, 30.0, 30.0]
    assert [failures_after(6, lived) for lived in (0.1, 59.9, 60.0)] == [7, 7, 1]
