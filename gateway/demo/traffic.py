"""`keepwarm demo --traffic`: plays the plan against a running gateway, and tells what came of it.

Owns the run: one task for each conversation, one for the operator's acts, one for the progress bar.
Rules: a conversation's next request waits for its last answer; one that comes too late to be of its hour is left out
and counted; the policies that were made are taken away however the run ends, unless they are to stay.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gateway.demo.asking import Asker, Told, message_of
from gateway.demo.conversation import CONNECT_S, SILENCE_S, connected
from gateway.demo.errors import DemoError
from gateway.demo.operating import Operator
from gateway.demo.scenario import HOUR, Act, Pace, Plan, Send, fitting, scene
from gateway.demo.server import DEFAULT_URL, server_at
from gateway.demo.tenants import body, policies, reports_policy, warmings
from gateway.demo.traffic_report import TrafficReport, print_traffic, traffic_json

INTERRUPTED: Final = 130
LATE_S: Final = 12.0  # later than this a request is left out: the machine is too slow for the plan
TICK_S: Final = 0.25
FEW_TOKENS: Final = 100  # computed: fewer tell nothing of the engine's speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for."""

    url: str
    admin_url: str
    minutes: float
    seed: int
    keep: bool


def run_traffic(*, url: str | None, admin_url: str, minutes: float, seed: int, keep: bool, as_json: bool) -> int:
    """Play the hour and return the exit status. Without `url`, on the server at the default address."""
    address = (url or DEFAULT_URL).rstrip("/")
    wanted = Wanted(url=address, admin_url=admin_url, minutes=minutes, seed=seed, keep=keep)
    console, errors = Console(), Console(stderr=True)
    try:
        report = asyncio.run(_perform(wanted, errors))
    except DemoError as error:
        errors.print(f"keepwarm demo: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("keepwarm demo: interrupted; its policies are taken away again")
        return INTERRUPTED
    if as_json:
        sys.stdout.write(traffic_json(report) + "\n")
    else:
        print_traffic(console, report)
    return 0


async def _perform(wanted: Wanted, errors: Console) -> TrafficReport:
    operator = Operator(wanted.admin_url, os.environ.get("KEEPWARM_ADMIN_KEY"))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        bar = progress.add_task("looking for a gateway", total=None)
        async with server_at(wanted.url, command=_none, on_wait=lambda what: progress.update(bar, description=what)):
            await operator.check_tenants()
            async with connected(wanted.url) as client:
                model = await client.model()
            return await play(wanted, operator, model, progress, bar)


def _none(*_: int) -> list[str]:
    raise AssertionError("a named server is never started")


async def play(wanted: Wanted, operator: Operator, model: str, progress: Progress, bar: TaskID) -> TrafficReport:
    """Set the policies, measure the engine, play the plan, and clear up."""
    pace = Pace(wanted.minutes)
    patience = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S)
    connector = aiohttp.TCPConnector(limit=0)
    gone: tuple[str, ...] = ()
    async with aiohttp.ClientSession(timeout=patience, connector=connector) as session:
        try:
            stored = [await operator.put(policy) for policy in policies(pace)]
            progress.update(bar, description="making two prompts warm, to see how fast the engine is")
            speed = await _speed(session, wanted.url, model)
            plan = fitting(wanted.seed, tokens_per_s=speed, seconds=pace.seconds(HOUR))
            stage = _Stage(Asker(session, wanted.url), operator, plan, pace, model)
            progress.console.print(
                f"Open {operator.url}/ now: it is live, and Tree and Retention empty themselves later."
            )
            progress.update(bar, total=pace.seconds(HOUR), completed=0)
            await stage.play(lambda words, at: progress.update(bar, description=words, completed=at))
        finally:
            if not wanted.keep:
                gone = tuple(await operator.clear())
    return TrafficReport(
        url=wanted.url,
        admin_url=operator.url,
        model=model,
        pace=pace,
        plan=plan,
        tokens_per_s=speed,
        policies=stored,
        told=tuple(stage.told),
        left_out=stage.left_out,
        marked=stage.marked,
        dry_run=stage.dry_run,
        removed=gone,
    )


class _Timings(msgspec.Struct):
    prefill_ms: float


class _Extension(msgspec.Struct):
    computed_tokens: int
    timings: _Timings


class _Warmed(msgspec.Struct):
    keepwarm: _Extension


async def _speed(session: aiohttp.ClientSession, url: str, model: str) -> float | None:
    """Make prompts warm; return prompt tokens a second in the faster case, or None where all were warm already."""
    speeds = []
    for tenant, wanted in warmings(model):
        told = await _warmed(session, url, tenant, wanted)
        if told.computed_tokens >= FEW_TOKENS and told.timings.prefill_ms > 0:
            speeds.append(told.computed_tokens * 1000 / told.timings.prefill_ms)
    return max(speeds, default=None)


async def _warmed(session: aiohttp.ClientSession, url: str, tenant: str, wanted: dict[str, Any]) -> _Extension:
    headers = {"Authorization": f"Bearer {tenant}"}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=wanted, headers=headers) as response:
            answer = await response.read()
            if not response.ok:
                raise DemoError(f"{url} refused to make a prompt warm ({response.status}): {message_of(answer)}")
        return msgspec.json.decode(answer, type=_Warmed).keepwarm
    except msgspec.DecodeError as error:
        raise DemoError(f"{url} does not answer as Keepwarm does: {error}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DemoError(f"{url} broke off: {str(error) or type(error).__name__}") from error


class _Stage:
    """The plan being played: what was told so far, and what was left out."""

    def __init__(self, asker: Asker, operator: Operator, plan: Plan, pace: Pace, model: str) -> None:
        self._asker, self._operator, self._plan, self._pace, self._model = asker, operator, plan, pace, model
        self._began = 0.0
        self.told: list[Told] = []
        self.left_out = 0
        self.marked = False
        self.dry_run: dict[str, Any] = {}

    async def play(self, show: Callable[[str, float], None]) -> None:
        """Play every conversation and every act at its time."""
        self._began = time.monotonic()
        acts: list[Coroutine[Any, Any, None]] = [self._act(act) for act in self._plan.acts]
        talks = [self._hold(talk) for talk in self._plan.talks]
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick(show))
                playing = [group.create_task(part) for part in (*acts, *talks)]
                await asyncio.gather(*playing)
                ticking.cancel()
        except* DemoError as errors:
            raise errors.exceptions[0] from None

    async def _hold(self, talk: tuple[Send, ...]) -> None:
        history: list[tuple[str, str]] = []
        for send in talk:
            late = await self._until(send.minute)
            if late > LATE_S:
                self.left_out += 1
                continue
            wanted = body(send, history, model=self._model, clock=self._pace.clock(send.minute))
            told = await self._asker.ask(send, wanted)
            self.told.append(told)
            if told.outcome == "finished":
                history += [("user", _last_text(wanted)), ("assistant", told.text.strip() or "Done.")]

    async def _act(self, act: Act) -> None:
        await self._until(act.minute)
        match act.kind:
            case "deploy":
                self.marked = await self._operator.mark(act.title)
            case "policy":
                await self._operator.put(reports_policy(self._pace, act.ttl))
            case "dry_run":
                self.dry_run = await self._operator.dry_run()

    async def _until(self, minute: float) -> float:
        """Wait for a minute of the hour; return how many seconds it is past."""
        left = self._pace.seconds(minute) - (time.monotonic() - self._began)
        await asyncio.sleep(max(left, 0.0))
        return max(-left, 0.0)

    async def _tick(self, show: Callable[[str, float], None]) -> None:
        while True:
            at = time.monotonic() - self._began
            minute = min(at / self._pace.seconds(1.0), HOUR)
            show(f"{self._pace.clock(minute)}  {len(self.told)} answered  {scene(minute)}", at)
            await asyncio.sleep(TICK_S)


def _last_text(wanted: dict[str, Any]) -> str:
    content = wanted["messages"][-1]["content"]
    return content if isinstance(content, str) else str(content[-1]["text"])
