"""What the doctor says of a log of requests."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.doctor.bodies import read
from gateway.doctor.errors import Unusable
from gateway.doctor.log import Memory, Report, look
from gateway.doctor.pair import broken
from gateway.doctor.seen import see
from gateway.prompt import Renderer
from tests.gateway.test_doctor import RULES, TALK, anthropic, chat

Json = dict[str, Any]


def report(renderer: Renderer, *entries: Json) -> Report:
    """Look at a log of these entries."""
    return look(renderer, [json.dumps(entry).encode() for entry in entries])


def size(renderer: Renderer, body: Json) -> int:
    """Tokens of a body's prompt."""
    return see(renderer, read(body, "")).made.tokens


def stamped(second: int, question: str) -> Json:
    """A request whose system text begins with the time."""
    return chat(f"Now: 2027-03-03T10:15:{second:02}Z\n{RULES}", (question,))


prompts = st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=12)


@given(prompts)
def test_what_could_be_read_is_the_longest_beginning_in_common(ids: list[list[int]]) -> None:
    """Over any prompts the memory finds, to the token, what a plain search over all earlier ones finds."""
    memory = Memory()
    for place, mine in enumerate(ids):
        slow = 0
        for other in ids[:place]:
            same = next((at for at, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
            slow = max(slow, min(len(mine), len(other)) if same is None else same)
        assert memory.take(struct.pack(f"<{len(mine)}I", *mine)) == slow


def test_a_growing_conversation_reaches_all_but_its_new_words(renderer: Renderer) -> None:
    """Nothing is lost, and each turn could read the one before it whole."""
    bodies = [chat(talk=TALK[:1]), chat()]
    found = report(renderer, *bodies)
    sizes = [size(renderer, body) for body in bodies]
    assert (found.requests, found.prompt, found.reachable, found.hits) == (2, sum(sizes), sizes[0], 1)
    assert (found.lost, found.worst) == (0, [])


def test_the_last_token_of_a_repeated_prompt_is_never_read(renderer: Renderer) -> None:
    """One token of each prompt is always computed."""
    assert report(renderer, chat(), chat()).reachable == size(renderer, chat()) - 1


def test_a_breaker_is_counted_over_all_requests(renderer: Renderer) -> None:
    """A time in front is one breaker, with the requests that it broke, the first of them, and what to do."""
    found = report(renderer, *(stamped(second, f"Where is shelf {second}?") for second in range(10, 20)))
    (breaker,) = found.worst
    assert (breaker.reason, breaker.place, breaker.looks_like) == ("system", "messages[*]", "time")
    assert (breaker.requests, breaker.lost, breaker.example) == (9, found.lost, "line 2")
    assert breaker.advice.startswith("Move the time")
    assert (found.reachable + found.lost) / found.prompt > 0.85
    assert found.reachable / found.prompt < 0.15


def test_the_loss_is_what_both_hold_and_cannot_be_read(renderer: Renderer) -> None:
    """A log of two costs what the doctor says of the two."""
    first, second = stamped(10, "Where is it?"), stamped(20, "And that one?")
    seen = [see(renderer, read(body, "")) for body in (first, second)]
    assert report(renderer, first, second).lost == broken(seen[1], seen[0]).lost


def test_breakers_come_dearest_first(renderer: Renderer) -> None:
    """Two causes are two breakers."""
    found = report(
        renderer,
        stamped(10, "Where?"),
        stamped(20, "When?"),
        stamped(30, "Who?"),
        anthropic("Be brief.", TALK),
        anthropic("Be brief.", ("Where were the atlases?", *TALK[1:])),
    )
    assert [(breaker.reason, breaker.place) for breaker in found.worst] == [
        ("system", "messages[*]"),
        ("messages", "messages.*"),
    ]
    assert found.worst[0].lost > found.worst[1].lost


def test_tenants_and_models_share_nothing(renderer: Renderer) -> None:
    """Equal bodies of another tenant or for another model are read by nobody."""
    found = report(
        renderer,
        {"tenant": "a", "body": chat()},
        {"tenant": "b", "body": chat()},
        {"tenant": "a", "body": chat(model="other")},
        {"tenant": "a", "at": 1804068900, "body": chat()},
    )
    assert (found.requests, found.reachable) == (4, size(renderer, chat()) - 1)


def test_requests_of_one_cache_key_are_compared(renderer: Renderer) -> None:
    """With a cache key the latest of the key is compared with; without, the latest that has as much in common."""
    bodies = [stamped(10, "Where?"), chat(talk=("Where?",)), stamped(20, "Where?")]
    keyed = [body | {"prompt_cache_key": key} for body, key in zip(bodies, ("mine", "theirs", "mine"), strict=True)]
    looks = [{breaker.looks_like for breaker in report(renderer, *log).worst} for log in (bodies, keyed)]
    assert looks == [{"text"}, {"text", "time"}]


def test_requests_without_a_part_in_common_are_compared_all_the_same(renderer: Renderer) -> None:
    """A time in front of single questions leaves no equal part; of the last few requests the dearest loss is told."""
    found = report(renderer, stamped(10, "Where?"), chat("Quite another.", ("Well?",)), stamped(20, "And when?"))
    assert [(breaker.looks_like, breaker.example) for breaker in found.worst] == [("time", "line 3")]


def test_the_time_of_an_entry_is_told(renderer: Renderer) -> None:
    """The first request that a breaker broke is named by its line and its time."""
    entries = [{"at": f"2027-03-03T10:15:{s}Z", "body": stamped(s, "Where?")} for s in (10, 20)]
    assert report(renderer, *entries).worst[0].example == "line 2, 2027-03-03T10:15:20Z"


def test_old_requests_are_forgotten(renderer: Renderer) -> None:
    """What is compared with is bounded; what could be read is not."""
    others = [chat(f"Other {n}.", (f"Well {n}?",)) for n in range(3)]
    bodies = [stamped(10, "Where?"), *others, stamped(20, "Where?"), stamped(10, "Where?")]
    lines = [json.dumps(body).encode() for body in bodies]
    found, bounded = look(renderer, lines), look(renderer, lines, most=2)
    assert [breaker.looks_like for breaker in found.worst] == ["time"]
    assert bounded.worst == []
    assert bounded.reachable == found.reachable > size(renderer, bodies[0]) - 1


def test_a_bad_line_is_told_and_passed_over(renderer: Renderer) -> None:
    """The rest of the log is looked at; blank lines count for nothing."""
    lines = [json.dumps(chat()).encode(), b"", b"{", b"[]", json.dumps(chat()).encode()]
    found = look(renderer, lines)
    assert found.requests == 2
    assert [why[:6] for why in found.unreadable] == ["line 3", "line 4"]


@pytest.mark.parametrize("lines", [[], [b"\n"], [b"{}"]])
def test_a_log_without_a_request_is_unusable(renderer: Renderer, lines: list[bytes]) -> None:
    """Nothing to look at is said."""
    with pytest.raises(Unusable):
        look(renderer, lines)
