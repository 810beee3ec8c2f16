"""Upstreams under operation: reload, drain, probes, and the bundled engine beside them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.relay.fleet import Fleet
from gateway.relay.health import FAILURES, SUCCESSES
from gateway.relay.probes import Probes
from gateway.relay.upstream import Upstream, require_keys
from tests.relay.conftest import StartFake, StartFront

LONG = "a prompt that goes on " * 200


# ---- reload ----


async def test_a_reload_tells_what_became_of_each(front: StartFront, fake: StartFake, tmp_path: Path) -> None:
    """Added, removed, changed and unchanged upstreams are named, at once in force, and audited."""
    a, b, c = await fake("a"), await fake("b"), await fake("c")
    file = tmp_path / "keepwarm.toml"
    file.write_text(a.toml("m", more="weight = 2.0") + c.toml("n") + '[routing]\nn = "round_robin"\n')
    gateway = await front([a.upstream("m"), b.upstream("m")], config=file)
    file.write_text(file.read_text().replace('"a"', '"a"'))
    status, answer = await gateway.asked("POST", "reload")
    assert (status, answer) == (
        200,
        {
            "added": ["c"],
            "removed": ["b"],
            "changed": ["a"],
            "unchanged": [],
            "applies_to": ["upstreams", "routing"],
            "audited": True,
        },
    )
    _, told = await gateway.asked("GET", "upstreams")
    assert ([one["name"] for one in told["upstreams"]], told["routing"]) == (
        ["a", "c"],
        {"m": "prefix", "n": "round_robin"},
    )
    assert (await (await gateway.chat("n")).json())["choices"][0]["message"]["content"] == "c"
    _, audit = await gateway.asked("GET", "audit")
    assert [(line["what"], line["subject"]) for line in audit["lines"]] == [("reload", str(file))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[upstreams]\n", "is not TOML"),
        ('[[upstreams]]\nname = "a"\nbase_url = "http://x/v1"\nmodels = ["m"]\ncolour = 1\n', "colour: is not known"),
        (
            '[[upstreams]]\nname = "a"\nbase_url = "http://x/v1"\nmodels = ["m"]\nkey_env = "NOWHERE"\n',
            "[[upstreams]] a: key_env: NOWHERE is not set in the environment",
        ),
    ],
)
async def test_a_broken_file_changes_nothing(
    front: StartFront, fake: StartFake, tmp_path: Path, text: str, said: str
) -> None:
    """A reload of what cannot be used is a 400 that says why, and the upstreams stay as they were."""
    file = tmp_path / "keepwarm.toml"
    file.write_text(text)
    gateway = await front([(await fake("a")).upstream()], config=file)
    before = await gateway.upstreams()
    status, answer = await gateway.asked("POST", "reload")
    assert (status, answer["error"]["field"], said in answer["error"]["message"]) == (400, "config", True)
    assert await gateway.upstreams() == before
    page = await (await gateway.admin.get("/metrics")).text()
    assert 'keepwarm_config_reload_total{result="refused"} 1.0' in page
    assert 'keepwarm_config_reload_total{result="done"} 0.0' in page
    assert (await gateway.chat()).status == 200


async def test_a_removed_upstream_ends_what_it_answers(front: StartFront, fake: StartFake, tmp_path: Path) -> None:
    """A stream in flight goes on to its end, nothing new goes there, and nothing is believed of it afterwards."""
    a, b = await fake("a"), await fake("b")
    file = tmp_path / "keepwarm.toml"
    file.write_text(b.toml())
    gateway = await front([a.upstream()], config=file)
    a.go_on.clear()
    response = await gateway.chat(text=LONG, stream=True)
    router = gateway.house.relay.fleet.router("m")
    assert router.residency.blocks("a") > 0
    await gateway.asked("POST", "reload")
    assert (router.residency.blocks("a"), gateway.house.relay.fleet.router("m")) == (0, router)
    assert (await (await gateway.chat(text=LONG)).json())["choices"][0]["message"]["content"] == "b"
    a.go_on.set()
    assert (await response.text()).endswith("data: [DONE]\n\n")
    await gateway.house.relay.drained()
    assert (router.residency.blocks("a"), router.loads.at("a")) == (0, 0.0)


async def test_a_missing_key_is_refused_by_name() -> None:
    """An upstream whose key variable is not set is refused with both names."""
    one = Upstream(name="a", base_url="http://x/v1", models=("m",), key_env="THE_KEY")
    require_keys([one], {"THE_KEY": "k"})
    with pytest.raises(ConfigError, match=r"^\[\[upstreams\]\] a: key_env: THE_KEY is not set in the environment$"):
        require_keys([one], {})


# ---- drain ----


async def test_a_drained_upstream_gets_nothing_new(front: StartFront, fake: StartFake) -> None:
    """Requests go to the other one until it is undrained, and both acts are audited."""
    a, b = await fake("a"), await fake("b")
    gateway = await front([a.upstream(), b.upstream()])
    status, answer = await gateway.asked("POST", "upstreams/a/drain")
    assert (status, answer["state"]) == (200, "draining")
    for number in range(6):
        await gateway.chat(text=str(number))
    assert (len(a.seen), len(b.seen)) == (0, 6)
    assert (await gateway.asked("POST", "upstreams/a/undrain"))[1]["state"] == "well"
    await gateway.asked("POST", "upstreams/b/drain")
    await gateway.chat()
    assert len(a.seen) == 1
    _, audit = await gateway.asked("GET", "audit")
    assert [line["what"] for line in audit["lines"]] == ["upstream.drain", "upstream.undrain", "upstream.drain"]


async def test_an_unknown_upstream_cannot_be_drained(front: StartFront, fake: StartFake) -> None:
    """A name that nobody has is 404 and names the field."""
    gateway = await front([(await fake("a")).upstream()])
    status, answer = await gateway.asked("POST", "upstreams/z/drain")
    assert (status, answer["error"]["field"]) == (404, "name")


async def test_the_gateway_drains(front: StartFront, fake: StartFake) -> None:
    """Told to stop, it is not ready at once and refuses what is new, while a stream goes on to its end."""
    a = await fake("a")
    gateway = await front([a.upstream()])
    a.go_on.clear()
    response = await gateway.chat(stream=True)
    out = asyncio.create_task(gateway.house.drain.out(30.0))
    await asyncio.sleep(0)
    assert (await gateway.serving.get("/ready")).status == 503
    refused = await gateway.chat()
    told = await refused.json()
    assert (refused.status, told["error"]["code"], refused.headers["Retry-After"]) == (503, "gateway_stopping", "1")
    assert not out.done()
    a.go_on.set()
    assert (await response.text()).endswith("data: [DONE]\n\n")
    await out


async def test_draining_is_bounded(front: StartFront, fake: StartFake) -> None:
    """A stream that does not end is waited for no longer than was said, and the client is told."""
    a = await fake("a")
    gateway = await front([a.upstream()])
    a.go_on.clear()
    response = await gateway.chat(stream=True)
    await gateway.house.drain.out(0.0)
    await gateway.house.relay.stop()
    assert '"code":"gateway_stopping"' in (await response.text()).replace(" ", "")


# ---- probes ----


def fleet_of(*upstreams: Upstream) -> Fleet:
    """A fleet on a clock that stands."""
    return Fleet(upstreams, clock=lambda: 0.0)


def upstream(name: str, **fields: Any) -> Upstream:
    """An upstream that nobody reaches."""
    return Upstream(name=name, base_url="http://x/v1", models=("m",), **fields)


async def never(_: Upstream) -> int:
    """Ask nobody."""
    raise AssertionError


def test_each_upstream_is_due_at_its_own_interval() -> None:
    """The first time at once, then each after its own interval; one that is new is due at once."""
    fleet = fleet_of(upstream("a", health_interval=5.0), upstream("b", health_interval=2.0))
    probes = Probes(fleet, never)

    def due(now: float) -> list[str]:
        return [one.name for one in probes.due(now)]

    assert [due(now) for now in (0.0, 1.9, 2.0, 4.0, 5.0)] == [["a", "b"], [], ["b"], ["b"], ["a"]]
    assert probes.wait_s(5.5) == 0.5
    fleet.replace([upstream("b", health_interval=2.0), upstream("c")])
    assert due(5.6) == ["c"]


def test_an_upstream_that_comes_back_is_believed_to_hold_nothing() -> None:
    """Unwell after three failures, well after two successes, and forgotten on both ways."""
    fleet = fleet_of(upstream("a"))
    probes, replica, residency = Probes(fleet, never), fleet.replicas["a"], fleet.router("m").residency
    for times, problem in ((FAILURES, "refused"), (SUCCESSES, "")):
        residency.note("a", b"12345678", 100.0, 0.0)
        for left in range(times, 0, -1):
            assert (replica.health.well, residency.blocks("a")) == (bool(problem), 1), left
            probes.heard(replica, problem)
        assert (replica.state, replica.health.why, residency.blocks("a")) == (
            "unwell" if problem else "well",
            problem,
            0,
        )


async def test_probes_ask_the_health_address(front: StartFront, fake: StartFake) -> None:
    """A status of 503 makes an upstream unwell, with the status as the reason, and 200 makes it well again."""
    a = await fake("a")
    gateway = await front([a.upstream(health_interval=86_400.0)])
    replica, probes = gateway.house.relay.fleet.replicas["a"], gateway.house.probes
    for status, times, state in ((503, FAILURES, "unwell"), (200, SUCCESSES, "well")):
        a.health = status
        for _ in range(times):
            await probes._probe(replica)
        told = (await gateway.upstreams())["a"]
        assert (told["state"], told["why"]) == (state, f"answers with status {status}" if status != 200 else "")


async def test_what_a_dead_upstream_computed_is_not_believed(front: StartFront, fake: StartFake) -> None:
    """An answer that was under way when its upstream was lost teaches nothing when it ends."""
    a = await fake("a")
    gateway = await front([a.upstream()])
    a.go_on.clear()
    response = await gateway.chat(text=LONG, stream=True)
    fleet = gateway.house.relay.fleet
    fleet.lost("a")
    a.go_on.set()
    await response.text()
    await gateway.house.relay.drained()
    assert (fleet.resident_tokens("a"), fleet.load_tokens("a")) == (0, 0)


# ---- the bundled engine beside upstreams ----


async def test_the_engine_is_one_candidate(front: StartFront, fake: StartFake) -> None:
    """With the upstream drained the engine answers for the shared model, and each request is recorded once."""
    a = await fake("a")
    gateway = await front([a.upstream("tiny")], engine=True)
    await gateway.asked("POST", "upstreams/a/drain")
    for streamed in (False, True):
        response = await gateway.chat("tiny", text="hello " * 50, stream=streamed, max_tokens=4)
        await response.text()
        assert response.status == 200
    await gateway.house.relay.drained()
    told = await gateway.upstreams()
    assert (told["bundled"]["kind"], told["bundled"]["state"], told["bundled"]["base_url"]) == (
        "bundled",
        "bundled",
        None,
    )
    counts = [(told[name]["requests"], told[name]["open"], told[name]["load_tokens"]) for name in ("a", "bundled")]
    assert counts == [(0, 0, 0), (2, 0, 0)]
    assert (told["bundled"]["prompt_tokens"] > 0, told["bundled"]["delivered_ratio"]) == (True, 0.0)
    assert told["bundled"]["resident_tokens"] > 0
    _, requests = await gateway.asked("GET", "requests")
    assert [one["upstream"] for one in requests["requests"]] == ["scripted", "scripted"]


async def test_the_engine_is_not_asked_while_it_is_away(front: StartFront, fake: StartFake) -> None:
    """While the engine starts the upstream alone answers, and a restart forgets what the engine held."""
    a = await fake("a")
    gateway = await front([a.upstream("tiny")], engine=True)
    fleet, backend = gateway.house.relay.fleet, gateway.backend
    fleet.router("tiny").residency.note("bundled", b"12345678", 1e9, 0.0)
    backend.card = None  # type: ignore[misc]
    backend.restarts = 1  # type: ignore[misc]
    for number in range(4):
        await gateway.chat("tiny", text=str(number))
    assert (len(a.seen), fleet.resident_tokens("bundled")) == (4, 0)
    assert (await gateway.upstreams())["bundled"]["state"] == "unwell"


async def test_models_of_its_own_stay_the_engines(front: StartFront, fake: StartFake) -> None:
    """Where no upstream serves the engine's model, it is no candidate and answers as ever."""
    a = await fake("a")
    gateway = await front([a.upstream("m")], engine=True)
    assert (await gateway.chat("tiny")).status == 200
    assert ([*await gateway.upstreams()], a.seen) == (["a"], [])
