"""Alerts, with exact times."""

from __future__ import annotations

import math

from gateway.advice import alerts as subject
from gateway.advice.alerts import Seen, Watch
from gateway.advice.trace import Group

AT = 1_790_000_040.0  # a whole minute
ACME = Group("acme", "tiny")


def watching(watch, *, minutes, every_s=6.0, start=AT, **seen):
    """Exchanges that come evenly for so many minutes; returns when the last one came."""
    last = start
    for number in range(math.ceil(minutes * 60 / every_s)):
        last = start + number * every_s
        watch.note(Seen(**({"at": last, "group": ACME, "prompt": 100, "read": 80} | seen)))
    return last


def test_steady_traffic_is_no_alert():
    """Nothing is said while nothing changes."""
    watch = Watch()
    watching(watch, minutes=40)
    assert watch.alerts(AT + 40 * 60) == []


def test_a_fall_of_the_read_ratio_says_since_when():
    """The alert dates from the minute in which the ratio fell, and has both ratios in its title."""
    watch = Watch()
    watching(watch, minutes=30)
    watching(watch, minutes=5, start=AT + 1800, read=10)
    (alert,) = watch.alerts(AT + 2100)
    assert (alert.id, alert.severity, alert.since) == ("fall|acme|tiny", "page", AT + 1800)
    assert alert.title == "Read ratio of acme on tiny fell from 80.0% to 10.0%"
    assert (alert.tenant, alert.model) == ("acme", "tiny")
    assert alert.detail == "50 requests since against 300 before"
    assert "keepwarm doctor" in alert.what_to_do


def test_a_fall_from_few_requests_is_no_alert():
    """Nineteen requests since, or forty-nine before, prove nothing."""
    few_since, few_before = Watch(), Watch()
    watching(few_since, minutes=30)
    watching(few_since, minutes=5, start=AT + 1800, every_s=16, read=0)
    watching(few_before, minutes=8, every_s=10)
    watching(few_before, minutes=5, start=AT + 480, read=0)
    assert few_since.alerts(AT + 2100) == few_before.alerts(AT + 780) == []


def test_a_small_fall_is_no_alert():
    """From 80 % to 61 % is less than a fifth of all tokens."""
    watch = Watch()
    watching(watch, minutes=30)
    watching(watch, minutes=5, start=AT + 1800, read=61)
    assert watch.alerts(AT + 2100) == []


def test_a_prefix_that_stopped_hitting_is_named_by_its_length_and_last_use():
    """The longest beginning that many requests had and none has now is told, with when it was last used."""
    watch = Watch()
    shared = ((1, 16), (2, 32), (3, 64))
    last = watching(watch, minutes=30, beginnings=shared)
    watching(watch, minutes=6, start=AT + 1800, read=60, beginnings=((1, 16),))
    assert watch.alerts(AT + 2160) == []
    watch = Watch()
    last = watching(watch, minutes=30, beginnings=shared)
    watching(watch, minutes=6, start=AT + 1800, read=40, beginnings=((1, 16),))
    stopped = next(alert for alert in watch.alerts(AT + 2160) if alert.id.startswith("stopped"))
    assert (stopped.since, stopped.severity) == (last, "warn")
    assert stopped.detail == (
        "its first 64 tokens began 300 requests and none of the 60 since; the read ratio went from 80.0% to 40.0%"
    )


def test_a_prefix_of_few_requests_may_end():
    """A conversation that ends, of which there are many, is no alert."""
    watch = Watch()
    for number in range(30):
        start = AT + number * 60
        watching(watch, minutes=1, start=start, beginnings=((1, 16), (100 + number, 32)))
    watching(watch, minutes=6, start=AT + 1800, read=30, beginnings=((1, 16),))
    assert [alert.id for alert in watch.alerts(AT + 2160)] == ["fall|acme|tiny"]


def test_a_broken_promise_is_told_with_its_tokens():
    """One is enough; a quarter of an hour later it is over."""
    watch = Watch()
    watch.note(Seen(at=AT + 61, group=ACME, prompt=100, read=0, broken=100))
    (alert,) = watch.alerts(AT + 120)
    assert (alert.id, alert.severity, alert.since) == ("broken|acme|tiny", "page", AT + 60)
    assert alert.detail == "100 tokens were promised and had to be computed again"
    assert watch.alerts(AT + 60 + 901 + 60) == []


def test_a_tenant_that_bounces_prefixes_is_told():
    """Ten requests whose evicted tokens are a fifth of the prompts are bouncing; nine are not."""
    watch = Watch()
    for number in range(9):
        watch.note(Seen(at=AT + number, group=ACME, prompt=100, read=60, evicted=20))
    assert watch.alerts(AT + 9) == []
    watch.note(Seen(at=AT + 9, group=ACME, prompt=100, read=60, evicted=20))
    (alert,) = watch.alerts(AT + 10)
    assert (alert.id, alert.since, alert.title) == (
        "bouncing|acme|tiny",
        AT,
        "acme is bouncing prefixes on tiny",
    )
    assert "200 of 1,000 prompt tokens" in alert.detail


def test_alerts_are_of_one_group_alone():
    """What befalls one tenant says nothing of another."""
    watch = Watch()
    watching(watch, minutes=35, group=Group("other", "tiny"))
    watching(watch, minutes=30)
    watching(watch, minutes=5, start=AT + 1800, read=0)
    assert {alert.tenant for alert in watch.alerts(AT + 2100)} == {"acme"}


def test_memory_of_the_watch_is_bounded():
    """Groups, minutes and beginnings are no more than their bounds."""
    watch = Watch()
    for number in range(7000):
        group = Group(f"t{number % 100}", "tiny")
        watch.note(Seen(at=AT + number * 60, group=group, prompt=1, read=0, beginnings=((number, 16),)))
    assert len(watch._minutes) == subject.MOST_GROUPS
    assert len(watch._prefixes) == subject.MOST_PREFIXES
    assert max(map(len, watch._minutes.values())) <= subject.KEEP_MINUTES
