"""`keepwarm serve --no-engine --workers 4` as a process: one gateway to clients, operators and Prometheus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from gateway.cli import app
from gateway.workers.pages import LASTING
from tests.e2e.conftest import free_port, until
from tests.relay.upstreams import Fake

WORKERS = 4
SEVERAL = 2  # where it is the same fact with any number above one
KEY = "open-sesame"
ANSWERS = ("keepwarm_http_responses_total", "/v1/chat/completions")


@dataclass(slots=True)
class Gateway:
    """A running gateway with several workers."""

    url: str
    admin_url: str
    process: subprocess.Popen[bytes]
    log: Path
    session: aiohttp.ClientSession

    async def chat(self, **fields: Any) -> str:
        """Ask once, on a connection of its own; return the upstream that answered."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        headers = {"Connection": "close"}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            await response.read()
            return response.headers["x-keepwarm-upstream"]

    async def asked(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Ask the admin API."""
        async with self.session.request(method, f"{self.admin_url}/admin/v1/{path}", json=body) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> Any:
        """GET from the admin API."""
        status, answer = await self.asked("GET", path)
        assert status == 200, answer
        return answer

    async def lasting(self) -> dict[tuple[str, str], float]:
        """Scrape; return counters and histograms."""
        async with self.session.get(f"{self.admin_url}/metrics") as response:
            page = await response.text()
        families = [family for family in text_string_to_metric_families(page) if family.type in LASTING]
        return {(one.name, json.dumps(one.labels)): one.value for family in families for one in family.samples}

    async def gauge(self, name: str) -> float:
        """Scrape one gauge without labels."""
        async with self.session.get(f"{self.admin_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).partition(" ")[2])

    async def pids(self) -> list[int | None]:
        """The workers' processes."""
        return [one["pid"] for one in (await self.get("workers"))["workers"]]

    async def told(self, word: bytes, times: int = 1) -> None:
        """Wait until the log says something so often."""
        await asyncio.to_thread(until, lambda: self.log.read_bytes().count(word) >= times or self.over())
        assert not self.over(), self.log.read_text()

    def over(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None


def answered(page: dict[tuple[str, str], float]) -> float:
    """Chat completions that a page counts."""
    return sum(value for (name, labels), value in page.items() if name == ANSWERS[0] and ANSWERS[1] in labels)


@pytest.fixture
async def fakes() -> AsyncIterator[tuple[Fake, Fake]]:
    """Two upstreams."""
    both = Fake("a"), Fake("b")
    for one in both:
        await one.server.start_server(shutdown_timeout=0.1)
    yield both
    for one in both:
        one.go_on.set()
        await one.server.close()


def begin(command: list[str], environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that writes to a log."""
    with log.open("wb") as out:
        return subprocess.Popen(command, env=environ, stdout=out, stderr=out)


def there(pids: list[int | None]) -> list[int | None]:
    """Those of the processes that still are."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@asynccontextmanager
async def started(
    folder: Path, toml: str, *flags: str, workers: int = SEVERAL, key: str = KEY
) -> AsyncIterator[Gateway]:
    """Run a gateway with several workers until the block is left."""
    file = folder / "keepwarm.toml"
    file.write_text(toml)
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(file), "--no-engine"]
    command += ["--workers", str(workers), "--port", str(port), "--admin-port", str(admin_port), *flags]
    environ = os.environ | {"XDG_STATE_HOME": str(folder), "KEEPWARM_ADMIN_KEY": key}
    log = folder / "server.log"
    process = await asyncio.to_thread(begin, command, environ, log)
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            gateway = Gateway(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", process, log, session)
            await gateway.told(b'"event": "worker_up"', workers)
            yield gateway
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


async def test_a_scrape_is_the_total_and_never_falls(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """100 requests to 4 workers are 100 in each of 20 scrapes and after one is killed, which begins again."""
    async with started(tmp_path, fakes[0].toml() + fakes[1].toml(), workers=WORKERS) as gateway:
        await asyncio.gather(*(gateway.chat() for _ in range(100)))
        assert len(fakes[0].seen) + len(fakes[1].seen) == 100
        before: dict[tuple[str, str], float] = {}
        for _ in range(20):
            page = await gateway.lasting()
            assert answered(page) == 100
            assert page.keys() >= before.keys()
            assert all(page[place] >= value for place, value in before.items())
            before = page
        assert await gateway.gauge("keepwarm_workers") == WORKERS
        pids = await gateway.pids()
        assert pids[2] is not None
        os.kill(pids[2], signal.SIGKILL)
        await gateway.told(b'"event": "worker_died"')
        page = await gateway.lasting()
        assert (answered(page), all(page[place] >= value for place, value in before.items())) == (100, True)
        await gateway.told(b'"event": "worker_up"', WORKERS + 1)
        await asyncio.gather(*(gateway.chat() for _ in range(20)))
        again = await gateway.lasting()
        assert (answered(again), again["keepwarm_worker_restarts_total", "{}"]) == (120, 1)
        assert all(again[place] >= value for place, value in page.items())
        assert [now == then for now, then in zip(await gateway.pids(), pids, strict=True)] == [True, True, False, True]
        events = (await gateway.get("events"))["events"]
        assert [one["title"] for one in events] == [
            "The gateway started",
            "Worker 3 died and was started again (restart 1)",
        ]


async def test_operators_see_one_gateway(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """Requests, upstreams and usage are those of all workers, page by page; a policy and a drain hold for all."""
    async with started(tmp_path, fakes[0].toml() + fakes[1].toml(), workers=WORKERS) as gateway:
        await asyncio.gather(*(gateway.chat() for _ in range(40)))
        shown, place = list[str](), ""
        for size in (15, 15, 10):
            page = await gateway.get(f"requests?limit=15{place}")
            assert (len(page["requests"]), page["kept"], page["next"] is None) == (size, 40, size < 15)
            shown += [one["id"] for one in page["requests"]]
            place = f"&before={page['next']}"
        assert len(set(shown)) == 40
        assert (await gateway.get(f"requests/{shown[7]}"))["id"] == shown[7]
        assert (await gateway.asked("GET", "requests/none"))[0] == 404
        assert (await gateway.asked("GET", "requests?before=00000000-1"))[0] == 400
        assert (await gateway.get("usage?bucket=none"))["total"]["requests"] == 40
        told = (await gateway.get("upstreams"))["upstreams"]
        assert (sum(one["requests"] for one in told), [one["open"] for one in told]) == (40, [0, 0])
        assert sum(one["prompt_tokens"] for one in told) == 4_000

        status, _ = await gateway.asked("PUT", "policies/short", {"default_ttl": "5m", "tenant": "x", "version": 0})
        names = [[one["name"] for one in (await gateway.get("policies"))["policies"]] for _ in range(8)]
        assert (status, names) == (200, [["default", "short"]] * 8)
        titles = [one["title"] for one in (await gateway.get("events"))["events"]]
        assert len([title for title in titles if "short" in title]) == 1

        status, drained = await gateway.asked("POST", "upstreams/a/drain")
        assert (status, drained["state"], drained["audited"]) == (200, "draining", True)
        assert set(await asyncio.gather(*(gateway.chat() for _ in range(20)))) == {"b"}
        assert (await gateway.asked("POST", "upstreams/none/drain"))[0] == 404


async def test_the_door_is_the_same(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """Without the key operators' addresses are 401 and the page is not; a page of another origin changes nothing."""
    async with started(tmp_path, fakes[0].toml()) as gateway, aiohttp.ClientSession() as stranger:
        for path, status in (("/metrics", 401), ("/admin/v1/workers", 401), ("/admin/v1/policies", 401), ("/", 200)):
            async with stranger.get(gateway.admin_url + path) as response:
                assert response.status == status, path
        foreign = {"Origin": "http://elsewhere.example"}
        async with gateway.session.post(f"{gateway.admin_url}/admin/v1/reload", headers=foreign) as response:
            assert response.status == 403
        status, answer = await gateway.asked("GET", "upstreams?a=b")
        assert (status, answer["error"]["field"]) == (400, "a")


async def test_a_file_read_again_holds_for_all_workers_and_for_those_to_come(
    fakes: tuple[Fake, Fake], tmp_path: Path
) -> None:
    """After SIGHUP every worker asks the new upstream, one that is killed then too; a broken file changes nothing."""
    a, b = fakes
    async with started(tmp_path, a.toml()) as gateway:
        (tmp_path / "keepwarm.toml").write_text(b.toml())
        gateway.process.send_signal(signal.SIGHUP)
        await gateway.told(b'"event": "reloaded"', SEVERAL + 1)  # the first one takes it twice
        assert set(await asyncio.gather(*(gateway.chat() for _ in range(30)))) == {"b"}
        (tmp_path / "keepwarm.toml").write_text("[[upstreams]]\nname = 1\n")
        status, answer = await gateway.asked("POST", "reload")
        assert (status, answer["error"]["field"]) == (400, "config")
        await gateway.lasting()  # what was not read of a worker that is killed is lost
        for pid in await gateway.pids():
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        await gateway.told(b'"event": "worker_up"', 2 * SEVERAL)
        assert set(await asyncio.gather(*(gateway.chat() for _ in range(30)))) == {"b"}
        page = await gateway.lasting()
        results = [page["keepwarm_config_reload_total", json.dumps({"result": word})] for word in ("done", "refused")]
        assert (answered(page), results) == (60, [1, 1])


async def test_live_events_of_all_workers_come_in_one_stream(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """Whoever answered, each request is told once; a policy is told once too, and the state comes first."""
    async with started(tmp_path, fakes[0].toml()) as gateway:
        async with gateway.session.get(f"{gateway.admin_url}/admin/v1/live") as stream:
            kinds = list[str]()

            async def hear(done: Callable[[], bool]) -> None:
                while not done():
                    line = await stream.content.readline()
                    if line.startswith(b"event: "):
                        kinds.append(line[7:].decode().strip())

            await asyncio.wait_for(hear(lambda: "state" in kinds), 30)
            await asyncio.gather(*(gateway.chat() for _ in range(24)))
            await asyncio.wait_for(hear(lambda: kinds.count("request") == 24), 30)
            status, _ = await gateway.asked("PUT", "policies/short", {"default_ttl": "5m", "tenant": "x", "version": 0})
            assert status == 200
            states = kinds.count("state")
            await asyncio.wait_for(hear(lambda: kinds.count("state") >= states + 3), 30)
        assert (kinds[0], kinds.count("request"), kinds.count("change")) == ("state", 24, 1)


async def test_on_sigterm_streams_end_whole_and_nothing_is_left(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """While a stream has its time every worker is not ready; then all processes end, with what was counted written."""
    a = fakes[0]
    async with started(tmp_path, a.toml(), "--drain", "30s") as gateway:
        await asyncio.gather(*(gateway.chat() for _ in range(10)))
        pids = await gateway.pids()
        a.go_on.clear()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with gateway.session.post(f"{gateway.url}/v1/chat/completions", json=body) as stream:
            gateway.process.send_signal(signal.SIGTERM)
            await gateway.told(b'"event": "stopping"', 2)
            async with gateway.session.get(f"{gateway.url}/ready") as ready:
                assert ready.status == 503
            a.go_on.set()
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.to_thread(gateway.process.wait, 30) == 0
        assert there(pids) == []
    async with started(tmp_path, a.toml()) as gateway:
        assert (await gateway.get("usage?bucket=none"))["total"]["requests"] == 11


async def test_a_stream_that_will_not_end_is_bounded(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """When the drain is over the process ends although an upstream goes on."""
    a = fakes[0]
    async with started(tmp_path, a.toml(), "--drain", "1s") as gateway:
        a.go_on.clear()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with gateway.session.post(f"{gateway.url}/v1/chat/completions", json=body) as stream:
            gateway.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(gateway.process.wait, 30) == 0
            assert b"[DONE]" not in await stream.read()


async def test_workers_end_with_their_parent(fakes: tuple[Fake, Fake], tmp_path: Path) -> None:
    """A parent that is killed leaves no worker behind."""
    async with started(tmp_path, fakes[0].toml()) as gateway:
        pids = await gateway.pids()
        gateway.process.kill()
        await asyncio.to_thread(until, lambda: not there(pids))
        assert await asyncio.to_thread(gateway.process.wait, 10) == -signal.SIGKILL


def test_with_an_engine_several_workers_are_refused() -> None:
    """`serve --workers 2` without `--no-engine` ends at once, in one line."""
    result = CliRunner().invoke(app, ["serve", "--workers", "2"])
    why = "--workers 2: one engine process belongs to one gateway process; leave --workers at 1, "
    instead = "or run gateways with --no-engine and several workers in front of several `keepwarm serve`"
    assert (result.exit_code, result.stderr) == (2, f"keepwarm: {why}{instead}\n")
