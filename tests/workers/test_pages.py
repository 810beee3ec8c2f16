"""Pages of several workers as one."""

from __future__ import annotations

from collections import Counter as Count

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.workers.pages import LASTING, Pages

WORKERS = 3


class Counting:
    """One life of a worker: it counts, waits and times."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.registry = CollectorRegistry()
        self.done = Counter("done", "Done.", ["what"], registry=self.registry)
        self.waiting = Gauge("waiting", "Waiting.", registry=self.registry)
        self.took = Histogram("took", "Took.", buckets=(1, 10), registry=self.registry)

    def work(self, what: str, took: int) -> None:
        """Do one thing."""
        self.done.labels(what).inc()
        self.waiting.inc()
        self.took.observe(took)

    def page(self) -> str:
        """Return its page."""
        return generate_latest(self.registry).decode()


def read(page: bytes) -> dict[tuple[str, str], float]:
    """Return every sample that is no time of making, by name and labels."""
    return {
        (sample.name, ",".join(f"{name}={value}" for name, value in sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def lasting(page: bytes) -> dict[tuple[str, str], float]:
    """Return samples of counters and histograms."""
    kept = [family for family in text_string_to_metric_families(page.decode()) if family.type in LASTING]
    return {(one.name, str(sorted(one.labels.items()))): one.value for family in kept for one in family.samples}


STEPS = st.one_of(
    st.tuples(st.just("work"), st.integers(0, WORKERS - 1), st.sampled_from(["a", "b"]), st.integers(0, 20)),
    st.tuples(st.just("read"), st.integers(0, WORKERS - 1), st.none(), st.none()),
    st.tuples(st.just("die"), st.integers(0, WORKERS - 1), st.none(), st.none()),
)


@given(st.lists(STEPS, max_size=40))
def test_counters_are_sums_that_never_fall(steps: list[tuple[str, int, str | None, int | None]]) -> None:
    """Whatever works, is read and dies: counters are what was read of every life, gauges what was of the living."""
    pages, lives = Pages(), list(range(WORKERS))
    workers = [Counting() for _ in lives]
    unread = [Count[str]() for _ in lives]
    seen, waiting = Count[str](), [0] * WORKERS
    before: dict[tuple[str, str], float] = {}
    for kind, at, what, took in steps:
        if kind == "work" and what is not None and took is not None:
            workers[at].work(what, took)
            unread[at][what] += 1
        elif kind == "read":
            pages.told(lives[at], workers[at].page())
            seen.update(unread[at])
            waiting[at] += unread[at].total()
            unread[at] = Count()
        elif kind == "die":
            pages.ended(lives[at])
            lives[at], workers[at] = max(lives) + 1, Counting()
            unread[at], waiting[at] = Count(), 0
        page = pages.merged()
        found, counted = read(page), lasting(page)
        assert {what: found.get(("done_total", f"what={what}"), 0.0) for what in "ab"} == {
            what: float(seen[what]) for what in "ab"
        }
        assert found.get(("took_count", ""), 0.0) == seen.total()
        assert found.get(("took_bucket", "le=+Inf"), 0.0) == seen.total()
        assert found.get(("waiting", ""), 0.0) == sum(waiting)
        assert all(counted[place] >= value for place, value in before.items() if not place[0].endswith("_created"))
        before = counted


def test_a_dead_workers_gauges_vanish_and_its_counters_stay() -> None:
    """After the only worker died its counts are told and its gauges are not."""
    pages, worker = Pages(), Counting()
    worker.work("a", 3)
    pages.told(1, worker.page())
    pages.ended(1)
    assert read(pages.merged()) == {
        ("done_total", "what=a"): 1.0,
        ("took_bucket", "le=1.0"): 0.0,
        ("took_bucket", "le=10.0"): 1.0,
        ("took_bucket", "le=+Inf"): 1.0,
        ("took_count", ""): 1.0,
        ("took_sum", ""): 3.0,
    }


def test_gauges_are_joined_as_the_table_says() -> None:
    """Load adds up, a version stays 1; one worker that finds an upstream unwell is enough, or one that drains."""
    pages = Pages()
    for life, (well, circuit, load, held, draining) in enumerate([(1, 0, 5, 70, 0), (0, 2, 7, 40, 1)]):
        pages.told(
            life,
            "# TYPE keepwarm_build_info gauge\n"
            'keepwarm_build_info{version="1"} 1\n'
            "# TYPE keepwarm_upstream_health gauge\n"
            f'keepwarm_upstream_health{{upstream="a"}} {well}\n'
            "# TYPE keepwarm_circuit_state gauge\n"
            f'keepwarm_circuit_state{{upstream="a"}} {circuit}\n'
            "# TYPE keepwarm_upstream_load_tokens gauge\n"
            f'keepwarm_upstream_load_tokens{{upstream="a"}} {load}\n'
            "# TYPE keepwarm_upstream_resident_tokens gauge\n"
            f'keepwarm_upstream_resident_tokens{{upstream="a"}} {held}\n'
            "# TYPE keepwarm_draining gauge\n"
            f"keepwarm_draining {draining}\n",
        )
    assert read(pages.merged()) == {
        ("keepwarm_build_info", "version=1"): 1.0,
        ("keepwarm_upstream_health", "upstream=a"): 0.0,
        ("keepwarm_circuit_state", "upstream=a"): 2.0,
        ("keepwarm_upstream_load_tokens", "upstream=a"): 12.0,
        ("keepwarm_upstream_resident_tokens", "upstream=a"): 70.0,
        ("keepwarm_draining", ""): 1.0,
    }


def test_what_every_worker_does_is_told_once() -> None:
    """A file that two workers read again because the parent did was read again once."""
    pages, line = (
        Pages(),
        '# TYPE keepwarm_config_reload_total counter\nkeepwarm_config_reload_total{result="done"} 1\n',
    )
    pages.told(1, line)
    pages.told(2, line)
    pages.ended(2)
    assert read(pages.merged(line)) == {("keepwarm_config_reload_total", "result=done"): 1.0}
