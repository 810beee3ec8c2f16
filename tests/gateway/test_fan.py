"""Several requests read as one stream."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import pytest

from engine.errors import EngineUnavailable, Overloaded
from engine.messages import Delta, Submit
from gateway.fan import Fan
from tests.gateway.scripted import Script, ScriptedBackend


def backend(*scripts: Script) -> ScriptedBackend:
    """A backend that plays one script for each request."""
    made = ScriptedBackend(scripts[0])
    made.queue = list(scripts)
    return made


def submits(count: int) -> list[Submit]:
    """Requests."""
    return [Submit(id=str(number), tokens=bytes(8), max_tokens=9) for number in range(count)]


async def read(fan: Fan, limit: int = 99) -> list[tuple[int, Delta]]:
    """What comes, at most `limit` deltas."""
    found = []
    async with aclosing(fan.deltas()) as deltas:
        async for choice, delta in deltas:
            found.append((choice, delta))
            if len(found) == limit:
                break
    return found


def tokens_of(found: list[tuple[int, Delta]], choice: int) -> list[int]:
    """The tokens of one choice, in order."""
    return [token for one, delta in found if one == choice for token in delta.tokens]


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_each_choice_keeps_its_order_and_they_come_side_by_side(count: int) -> None:
    """No choice waits for another to end, each is told whole and in order, and every ticket is left."""
    made = backend(*(Script(deltas=[(number,), (10 + number,), (20 + number,)]) for number in range(count)))
    with Fan(made, submits(count)) as fan:
        found = await read(fan)
    assert [tokens_of(found, choice) for choice in range(count)] == [[n, 10 + n, 20 + n] for n in range(count)]
    assert {choice for choice, _ in found[:count]} == set(range(count))
    assert sum(delta.finished is not None for _, delta in found) == count
    assert made.running == 0
    assert [submit.id for submit in made.submitted] == [str(number) for number in range(count)]


@pytest.mark.parametrize("then", ["finish", "hang"])
async def test_one_choice_leaves_and_the_others_go_on(then: Any) -> None:
    """A choice that is left frees its ticket at once and is heard no more; the others end as they would."""
    made = backend(Script(deltas=[(1,)] * 4), Script(deltas=[(2,)] * 4, then=then), Script(deltas=[(3,)] * 4))
    found = []
    with Fan(made, submits(3)) as fan:
        async with aclosing(fan.deltas()) as deltas:
            async for choice, delta in deltas:
                found.append((choice, delta))
                if choice == 1:
                    fan.leave(1)
                    assert made.running == 2
        assert made.running == 2
    assert [tokens_of(found, choice) for choice in range(3)] == [[1] * 4, [2], [3] * 4]
    assert made.running == 0


async def test_a_choice_may_be_left_while_its_next_delta_waits() -> None:
    """A delta that came already is dropped when its choice is left in the same moment."""
    made = backend(Script(deltas=[(1,)]), Script(deltas=[(2,)]))
    found = []
    with Fan(made, submits(2)) as fan:
        async with aclosing(fan.deltas()) as deltas:
            async for choice, delta in deltas:
                found.append((choice, delta))
                if len(found) == 1:
                    fan.leave(1 - choice)
    assert len({choice for choice, _ in found}) == 1


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_an_error_of_one_closes_all(failing: int) -> None:
    """What one choice hears of the engine is what all hear, and every ticket is left."""
    scripts = [Script(deltas=[(1,)] * 3, then="hang") for _ in range(3)]
    scripts[failing] = Script(deltas=[(1,)], then=EngineUnavailable("It fell."))
    made = backend(*scripts)
    with pytest.raises(EngineUnavailable, match="It fell"), Fan(made, submits(3)) as fan:
        await read(fan)
    assert made.running == 0


async def test_errors_of_all_at_once_are_heard_once() -> None:
    """When the engine falls, every choice fails; the loop has nobody to complain to about the others."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    made = backend(*(Script(deltas=[], then=EngineUnavailable("It fell.")) for _ in range(4)))

    async def work() -> str:
        try:
            with Fan(made, submits(4)) as fan:
                await read(fan)
        except EngineUnavailable as error:
            return str(error)
        return ""

    assert await work() == "It fell."
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
    assert made.running == 0


@pytest.mark.parametrize("count", [1, 3])
async def test_a_cancelled_reader_frees_all_tickets(count: int) -> None:
    """A client that goes away leaves nothing running, even before the first word."""
    made = backend(*(Script(deltas=[], then="hang") for _ in range(count)))

    async def work() -> None:
        with Fan(made, submits(count)) as fan:
            await read(fan)

    task = asyncio.ensure_future(work())
    for _ in range(count):
        await made.entered.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made.running == 0


@pytest.mark.parametrize("count", [1, 3])
async def test_a_reader_that_stops_reading_frees_all_tickets(count: int) -> None:
    """Leaving the block is enough, with deltas on their way."""
    made = backend(*(Script(deltas=[(1,)] * 9) for _ in range(count)))
    with Fan(made, submits(count)) as fan:
        assert len(await read(fan, limit=2)) == 2
    assert made.running == 0


async def test_a_refused_second_choice_frees_the_first() -> None:
    """Where the engine takes only some of the requests, none stays."""

    class Full(ScriptedBackend):
        """Takes one request."""

        def open(self, submit: Submit) -> Any:
            if self.submitted:
                raise Overloaded("Full.", retry_after_s=1.0)
            return super().open(submit)

    made = Full(Script(deltas=[(1,)]))
    with pytest.raises(Overloaded), Fan(made, submits(2)) as fan:
        await read(fan)
    assert made.running == 0


class Silent(ScriptedBackend):
    """Ends without a last word."""

    async def _play(self, submit: Submit, script: Script) -> Any:
        yield Delta(id=submit.id, tokens=(1,))


@pytest.mark.parametrize("count", [1, 2])
async def test_an_answer_without_a_last_word_is_the_engines_fault(count: int) -> None:
    """A stream that just ends is not an answer."""
    made = Silent(Script(deltas=[]))
    with pytest.raises(EngineUnavailable, match="without a last word"), Fan(made, submits(count)) as fan:
        await read(fan)
    assert made.running == 0
