"""Why a prompt missed, over HTTP: what the client changed, and what became of the blocks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from engine.messages import Fate
from gateway.ask import Ask, Turn
from gateway.diagnosis import Diagnosis
from gateway.prompt import Renderer
from gateway.recall import Recall
from prefix_store.sqlite_store import SqliteStore
from tests.gateway.conftest import Gateway, StartGateway
from tests.gateway.diagnosed import (
    RULES,
    SECRET,
    Restarts,
    chat,
    complete,
    misses,
    streamed,
    talk,
    words,
)
from tests.gateway.scripted import CARD
from tests.tiny_model import CHATML

FATES = get_args(Fate)
QUESTION = "Where do you keep the atlases?"
CONVERSATION = [
    *talk(QUESTION),
    {"role": "assistant", "content": "On the upper floor."},
    {"role": "user", "content": "And the novels?"},
    {"role": "assistant", "content": "Right here, by the door."},
]
# The last user turn is told the language; once it is history it is not.
POLITE = CHATML.replace(
    "{{ message['content'] }}", "{% if loop.last %}(In English.) {% endif %}{{ message['content'] }}"
)
THOUGHTFUL = CHATML.replace("assistant\n{% endif %}", "assistant\n<think></think>\n{% endif %}")


@pytest.fixture
def restarts(start_gateway: StartGateway, tmp_path: Path) -> Restarts:
    """Gateways one after another on one state file."""
    return Restarts(start_gateway, tmp_path)


@pytest.mark.parametrize("fate", FATES)
async def test_the_same_text_misses_for_what_became_of_its_blocks(gateway: Gateway, fate: Fate) -> None:
    """Where nothing changed the fate is the reason, and no place is told."""
    await chat(gateway, talk(QUESTION))
    gateway.script(["hi"], fate=fate)
    (miss,) = await chat(gateway, talk(QUESTION))
    assert (miss["reason"], miss["fate"], miss.get("where")) == (fate, fate, None)


@pytest.mark.parametrize("fate", FATES)
async def test_a_change_is_the_reason_whatever_became_of_the_blocks(gateway: Gateway, fate: Fate) -> None:
    """Before the change the fate is the reason; from there on the change is, beside the same fate."""
    await chat(gateway, talk(QUESTION))
    gateway.script(["hi"], fate=fate)
    told = await chat(gateway, talk(QUESTION, system=RULES.replace("small", "large")))
    assert words(told) == [(fate, fate), ("system", fate), ("new", fate)]
    where = told[1]["where"]
    assert (where["message"], where["character"]) == ("messages[0]", RULES.index("small"))
    assert where["token"] == told[0]["tokens"]


@pytest.mark.parametrize("fate", ["expired", "evicted", "broken_promise", "purged", "policy_changed"])
async def test_what_happened_is_dated(gateway: Gateway, fate: Fate) -> None:
    """The time is that of the event on the wall clock, to the millisecond, beside either reason."""
    await chat(gateway, talk(QUESTION))
    gateway.script(["hi"], fate=fate, ago_s=90.0)
    before = datetime.now(UTC)
    told = await chat(gateway, talk(QUESTION, system=RULES.upper()))
    after = datetime.now(UTC)
    (at,) = {datetime.fromisoformat(miss["at"]) for miss in told}
    ago, grain = timedelta(seconds=90), timedelta(milliseconds=1)
    assert before - ago - grain <= at <= after - ago


async def test_what_was_read_has_no_reason(gateway: Gateway) -> None:
    """Only what lies behind the tokens read is told of."""
    await chat(gateway, talk(QUESTION))
    gateway.script(["hi"], fate="evicted", read=32)
    told = await chat(gateway, talk("Where is it?"))
    assert words(told) == [("evicted", "evicted"), ("messages", "evicted"), ("new", "evicted")]
    assert told[0]["tokens"] == told[1]["where"]["token"] - 32


async def test_other_weights_under_the_same_name_are_told(gateway: Gateway) -> None:
    """The same text that was never written under these weights says so, and what the client changed is still told."""
    await chat(gateway, talk(QUESTION))
    gateway.backend.card = replace(CARD, weights="1" * 16)
    assert words(await chat(gateway, talk(QUESTION))) == [("weights_changed", "never_written")]
    gateway.backend.card = replace(CARD, weights="2" * 16)
    told = await chat(gateway, talk("And the novels?"))
    assert [miss["reason"] for miss in told] == ["weights_changed", "messages", "new"]


async def test_another_template_of_the_operators_is_told(restarts: Restarts) -> None:
    """A gateway that renders otherwise knows the text of its predecessor's requests again."""
    first = await restarts.start()
    await chat(first, talk(QUESTION))
    await first.serving.close()
    second = await restarts.start(THOUGHTFUL)
    assert words(await chat(second, talk(QUESTION))) == [("template_changed", "never_written")]


async def test_a_restart_alone_changes_nothing(restarts: Restarts) -> None:
    """What was remembered outlives the gateway, so a change across a restart is found."""
    first = await restarts.start()
    await chat(first, talk(QUESTION))
    await first.serving.close()
    second = await restarts.start()
    told = await chat(second, talk(QUESTION, system=RULES.upper()))
    assert words(told)[1:] == [("system", "never_written"), ("new", "never_written")]


async def test_another_model_is_told(gateway: Gateway) -> None:
    """Under another model's name nothing is shared from the first token on."""
    await chat(gateway, talk(QUESTION))
    gateway.backend.model = "other"
    gateway.backend.card = replace(CARD, name="other")
    told = await chat(gateway, talk(QUESTION))
    assert words(told) == [("model", "never_written"), ("new", "never_written")]
    assert "where" not in told[0]


async def test_a_last_turn_that_renders_otherwise_as_history_is_told(restarts: Restarts) -> None:
    """What the template writes into the last turn alone is gone in the next request: its doing, at that turn."""
    gateway = await restarts.start(POLITE)
    await chat(gateway, talk(QUESTION))
    told = await chat(gateway, CONVERSATION[:4])
    assert [miss["reason"] for miss in told] == ["never_written", "template", "new"]
    where = told[1]["where"]
    assert (where["message"], where["character"]) == ("messages[1]", 0)


async def test_white_space_alone_is_told(gateway: Gateway) -> None:
    """A line break for a blank is a changed message that looks like white space, at its character."""
    await chat(gateway, talk(QUESTION))
    told = await chat(gateway, talk(QUESTION.replace(" keep", "\nkeep")))
    (where,) = [miss["where"] for miss in told if miss["reason"] == "messages"]
    assert (where["message"], where["looks_like"]) == ("messages[1]", "white_space")
    assert where["character"] == QUESTION.index(" keep")


async def test_a_rewritten_summary_is_told(gateway: Gateway) -> None:
    """Early messages that became one are a changed message that looks like a summary."""
    await chat(gateway, [*CONVERSATION, {"role": "user", "content": "Thank you."}])
    summary = {"role": "user", "content": "We spoke of atlases, then of novels."}
    told = await chat(gateway, [CONVERSATION[0], summary, CONVERSATION[4], {"role": "user", "content": "Thank you."}])
    (where,) = [miss["where"] for miss in told if miss["reason"] == "messages"]
    assert (where["message"], where["looks_like"]) == ("messages[1]", "rewritten_summary")


async def test_choices_and_streams_are_told_the_same(gateway: Gateway) -> None:
    """One answer, several choices, a stream and a stream of several choices explain the same change alike."""
    told: list[Any] = []
    for ask, fields in ((chat, {}), (chat, {"n": 3}), (streamed, {}), (streamed, {"n": 3})):
        key = f"key {len(told)}"
        await ask(gateway, talk(QUESTION), prompt_cache_key=key, **fields)
        told.append(await ask(gateway, talk("And the novels?"), prompt_cache_key=key, **fields))
    assert [miss["reason"] for miss in told[0]] == ["never_written", "messages", "new"]
    assert told == [told[0]] * 4


async def test_a_raw_prompt_is_compared_too(gateway: Gateway) -> None:
    """A completion's prompt is one stretch of text: its change is told at the token, and the field is named."""
    await complete(gateway, "2026-03-01: " + RULES, prompt_cache_key="raw")
    told = await complete(gateway, "2026-03-01: " + RULES.replace("small", "large"), prompt_cache_key="raw")
    assert [miss["reason"] for miss in told] == ["never_written", "messages"]
    shared = len(gateway.tokens("2026-03-01: " + RULES[: RULES.index("small")]))
    assert told[1]["where"] == {"message": "prompt", "character": None, "token": shared, "looks_like": "text"}


async def test_a_prompt_of_ids_is_compared_with_its_text(gateway: Gateway) -> None:
    """Token ids that spell an earlier text are the same prompt, and other ids differ at their place."""
    ids = list(gateway.tokens(RULES))
    await complete(gateway, RULES, prompt_cache_key="raw")
    gateway.script(["hi"], fate="purged")
    assert words(await complete(gateway, ids, prompt_cache_key="raw")) == [("purged", "purged")]
    told = await complete(gateway, [*ids[:9], 200, *ids[10:]], prompt_cache_key="raw")
    assert (told[0]["tokens"], told[1]["where"]["token"], told[1]["where"]["looks_like"]) == (9, 9, "text")


class Faulty(SqliteStore):
    """A store whose memory of requests fails in a way that nobody foresaw."""

    async def recall(self, space: str, keys: Any) -> Any:
        """Fail."""
        raise RuntimeError("the pages are stuck together")


@pytest.mark.parametrize("ask", [chat, streamed])
async def test_a_comparison_that_fails_costs_only_the_explanation(start_gateway: StartGateway, ask: Any) -> None:
    """The answer comes whole, and every token that was not read still has its fate for a reason."""
    gateway = await start_gateway(state=await Faulty.open(":memory:"))
    gateway.script(["hi"], fate="evicted")
    for question in (QUESTION, "And the novels?"):
        assert words(await ask(gateway, talk(question))) == [("evicted", "evicted")]
    assert gateway.backend.running == 0


class Slow(SqliteStore):
    """A store that never says what it remembers of requests."""

    asked: asyncio.Event
    dropped: asyncio.Event

    async def recall(self, space: str, keys: Any) -> Any:
        """Wait until nobody wants to know any more."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.dropped.set()


async def test_a_closed_case_asks_nobody_any_more(renderer: Renderer) -> None:
    """A comparison under way ends with its request."""
    state = await Slow.open(":memory:")
    assert isinstance(state, Slow)
    state.asked, state.dropped = asyncio.Event(), asyncio.Event()
    ask = Ask(id="a", model=CARD.name, turns=(Turn(role="user", text=QUESTION),))
    diagnosis = Diagnosis(Recall(state, secret=SECRET, wait_s=3600.0), rendering=renderer.identity)
    case = diagnosis.begin(ask, renderer.made(ask), CARD, datetime.now(UTC))
    await asyncio.wait_for(state.asked.wait(), 5)
    case.close()
    await asyncio.wait_for(state.dropped.wait(), 5)
    await state.close()


async def test_a_request_that_left_before_its_prompt_was_processed_is_not_remembered(gateway: Gateway) -> None:
    """Nobody is compared with it, and nothing of it is left running."""
    gateway.script(["hi"], until={0: asyncio.Event()})
    asked = asyncio.ensure_future(gateway.chat(messages=talk(QUESTION)))
    await asyncio.wait_for(gateway.backend.entered.acquire(), 5)
    asked.cancel()
    await asyncio.wait_for(gateway.backend.left.acquire(), 5)
    gateway.script(["hi"])
    assert gateway.house.exchanges is not None
    await gateway.house.exchanges.drained()
    running = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    assert ("Case._compare" in running, gateway.backend.running) == (False, 0)
    told = await chat(gateway, talk(QUESTION, system=RULES.upper()))
    assert words(told) == [("never_written", "never_written")]


async def test_a_request_that_left_amid_its_answer_is_remembered(gateway: Gateway) -> None:
    """Its prompt was processed, so the next request is compared with it."""
    gateway.script(["hi"], then="hang")
    response = await gateway.chat(messages=talk(QUESTION), stream=True)
    await response.content.readuntil(b"hi")
    response.close()
    await asyncio.wait_for(gateway.backend.left.acquire(), 5)
    gateway.script(["hi"])
    told = misses(await (await gateway.chat(messages=talk("And the novels?"))).json())
    assert [miss["reason"] for miss in told] == ["never_written", "messages", "new"]
