"""The demo: its sums and sentences, its talk with a server, and its two ways to show the same facts."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from rich.console import Console

from gateway.demo import run
from gateway.demo.conversation import connected, hold
from gateway.demo.errors import DemoError
from gateway.demo.facts import Exchange, explain, explain_all, seconds, total, toy
from gateway.demo.handbook import CONVERSATION, HANDBOOK, QUESTIONS, copy_of_handbook
from gateway.demo.report import Report, print_report, print_toy, to_json
from gateway.demo.server import Server, new_server, server_at
from tests.gateway.keepwarm_double import ANSWER, MODEL, KeepwarmDouble, running

COLD = Exchange(
    name="question 1",
    question="Why?",
    answer="Because.",
    finish_reason="stop",
    prompt_tokens=2900,
    cached_tokens=0,
    computed_tokens=2900,
    generated_tokens=5,
    first_token_ms=4900.0,
    queue_ms=1.0,
    prefill_ms=4890.0,
    decode_ms=200.0,
    done=2904,
    without_prefix_cache=2904,
    without_kv_cache=14510,
)
WARM = replace(
    COLD, name="question 2", cached_tokens=2880, computed_tokens=20, first_token_ms=120.0, prefill_ms=110.0, done=24
)


# ---- sums ----


def test_toy_can_be_checked_by_hand():
    """Four prompt tokens and two new ones are 6 projections with a KV cache and 21 without."""
    sums = toy()

    assert (sums.with_kv_cache, sums.without_kv_cache) == (6, 21)
    assert sums.without_kv_cache == 1 + 2 + 3 + 4 + 5 + 6


def test_saved_is_what_the_prefix_cache_spared():
    """Saved projections are those without the prefix cache less those done."""
    assert (COLD.saved, WARM.saved) == (0, 2880)


def test_inter_token_time_leaves_the_first_token_out():
    """Five tokens in 200 ms of decoding are four gaps of 50 ms; one token has no gap."""
    assert COLD.inter_token_ms == 50.0
    assert replace(COLD, generated_tokens=1, decode_ms=0.0).inter_token_ms is None


def test_totals_add_up():
    """The totals are the sums over all requests."""
    sums = total([COLD, WARM])

    assert (
        sums.prompt_tokens,
        sums.cached_tokens,
        sums.computed_tokens,
        sums.generated_tokens,
    ) == (5800, 2880, 2920, 10)
    assert (sums.done, sums.without_prefix_cache, sums.without_kv_cache) == (2928, 5808, 29020)


# ---- sentences ----


def test_cold_request_is_said_to_be_cold():
    """A request without cached tokens says that everything was computed."""
    sentence = explain(COLD, earlier=None, first=None)

    assert sentence == (
        "Nothing of this prompt was cached, so all 2,900 tokens were computed and the first token took 4.9 s."
    )


def test_warm_request_is_compared_with_the_cold_one():
    """A warm request says what was reused and what the first request had to wait."""
    sentence = explain(WARM, earlier=None, first=COLD)

    assert sentence == (
        "The first 2,880 tokens came from the cache and only 20 tokens were computed; "
        "the first token took 120 ms instead of the 4.9 s of the first request."
    )


def test_turn_counts_what_it_reused_of_the_answer():
    """A turn that reuses more than the earlier prompt says how much came from the answer on."""
    turn = replace(WARM, prompt_tokens=2950, cached_tokens=2904, computed_tokens=46)

    sentence = explain(turn, earlier=COLD, first=COLD)

    assert sentence.startswith(
        "All 2,900 tokens of the turn before and 4 tokens more, from the answer on, came from the cache and only "
        "46 tokens were computed"
    )


def test_turn_that_lost_its_history_does_not_claim_it():
    """A turn that reuses less than the earlier prompt is told as any other request."""
    sentence = explain(WARM, earlier=COLD, first=COLD)

    assert sentence.startswith("The first 2,880 tokens came from the cache")


def test_chance_overlap_is_not_called_a_hit():
    """A few shared tokens at the start are reported as few."""
    sentence = explain(replace(COLD, cached_tokens=1, computed_tokens=2899), earlier=None, first=None)

    assert sentence.startswith("Only the first 1 token of 2,900 was cached, so 2,899 were computed")


def test_no_gain_is_claimed_over_a_warm_first_request():
    """Where the first request was warm too, or faster, nothing is compared."""
    assert "instead" not in explain(WARM, earlier=None, first=WARM)
    assert "instead" not in explain(replace(WARM, first_token_ms=9000.0), earlier=None, first=COLD)


def test_only_later_turns_have_a_turn_before():
    """The questions and the first turn stand alone; the second turn repeats the first."""
    turn = replace(WARM, cached_tokens=2900, computed_tokens=50)

    sentences = explain_all([COLD, turn, turn, turn], questions=2)

    assert ["turn before" in sentence for sentence in sentences] == [False, False, False, True]


@pytest.mark.parametrize(("milliseconds", "said"), [(0.4, "0 ms"), (85.2, "85 ms"), (999.7, "1.0 s"), (4912, "4.9 s")])
def test_durations_are_said_as_people_say_them(milliseconds, said):
    """Below a second in milliseconds, from there on in seconds."""
    assert seconds(milliseconds) == said


# ---- the text ----


def test_copies_differ_from_their_first_line_on():
    """Two copies of the handbook share their text but not their beginning."""
    left, right = copy_of_handbook("a1"), copy_of_handbook("b2")

    assert left != right
    assert left.endswith(HANDBOOK) and right.endswith(HANDBOOK)
    assert left.index("a1") < 10


# ---- talking to a server ----


@pytest.fixture
def ask_everything():
    """Hold the whole demo with a double and return what came of it."""

    async def ask(double: KeepwarmDouble) -> list[Exchange]:
        async with running(double) as url, connected(url) as client:
            return await hold(client, model=await client.model(), number="1", on_answer=lambda _: None)

    return ask


async def test_demo_streams_and_asks_for_usage(ask_everything):
    """Every request is streamed, greedy and asks for the usage chunk."""
    double = KeepwarmDouble()

    await ask_everything(double)

    assert len(QUESTIONS) + len(CONVERSATION) == len(double.requests)
    for request in double.requests:
        assert (request["model"], request["stream"], request["temperature"]) == (MODEL, True, 0)
        assert request["stream_options"] == {"include_usage": True}


async def test_each_turn_resends_the_history(ask_everything):
    """The fifth turn carries the system message, four questions with their answers, and its own question."""
    double = KeepwarmDouble()

    await ask_everything(double)

    roles = [message["role"] for message in double.requests[-1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * 4, "user"]
    assert double.requests[-1]["messages"][2]["content"] == "".join(ANSWER)


async def test_facts_come_from_the_last_chunk(ask_everything):
    """Cached, computed and projections are the server's; cached and computed are the whole prompt."""
    cold, warm, *turns = await ask_everything(KeepwarmDouble())

    assert (0, cold.prompt_tokens) == (cold.cached_tokens, cold.computed_tokens)
    assert warm.cached_tokens >= len(copy_of_handbook("1"))
    assert warm.done == warm.computed_tokens + warm.generated_tokens - 1
    assert ("".join(ANSWER), "length", 20.0) == (warm.answer, warm.finish_reason, warm.inter_token_ms)
    for each in (cold, warm, *turns):
        assert each.prompt_tokens == each.cached_tokens + each.computed_tokens
        assert each.first_token_ms > 0


async def test_error_inside_a_stream_ends_the_demo(ask_everything):
    """An error event after the first tokens is told with the server's words."""
    with pytest.raises(DemoError, match="failed while answering: the engine stopped"):
        await ask_everything(KeepwarmDouble(error_after=1))


async def test_server_without_the_extension_is_asked_who_it_is(ask_everything):
    """A server that says nothing about caching is not taken for Keepwarm."""
    with pytest.raises(DemoError, match="is it a Keepwarm server"):
        await ask_everything(KeepwarmDouble(extension=False))


async def test_refusal_names_status_message_and_wait(ask_everything):
    """A 503 is told in one line with its message and its retry-after."""
    double = KeepwarmDouble()
    double.refusal = web.json_response(
        {"error": {"message": "the engine is starting"}}, status=503, headers={"Retry-After": "2"}
    )

    with pytest.raises(DemoError, match=r"answered 503: the engine is starting \(try again in 2 s\)"):
        await ask_everything(double)


async def test_refusal_without_a_body_still_says_why(ask_everything):
    """An answer that is not JSON is told by its status and reason."""
    double = KeepwarmDouble()
    double.refusal = web.Response(status=502, text="<html>")

    with pytest.raises(DemoError, match="answered 502: Bad Gateway"):
        await ask_everything(double)


# ---- finding a server ----


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def test_named_server_must_exist():
    """No server is started in place of one that was named and does not answer."""
    with pytest.raises(DemoError, match="no server answers at"):
        async with server_at(f"http://127.0.0.1:{free_port()}", command=unused, on_wait=unused):
            pass


async def test_address_must_be_one():
    """A text that is no address is refused as such."""
    with pytest.raises(DemoError, match="is not an http address"):
        async with server_at("nonsense", command=unused, on_wait=unused):
            pass


async def test_running_server_is_used_and_left_running():
    """A server that is ready is used as it is."""
    async with running(KeepwarmDouble()) as url:
        async with server_at(url + "/", command=unused, on_wait=unused) as server:
            assert server == Server(url=url, started=False)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/ready") as response:
            assert response.status == 200


async def test_starting_server_is_waited_for():
    """A server that is not ready yet is waited for, and the user is told."""
    double, said = KeepwarmDouble(ready=503), []

    def on_wait(what: str) -> None:
        said.append(what)
        double.ready = 200

    async with running(double) as url, server_at(url, command=unused, on_wait=on_wait) as server:
        assert server.url == url
    assert said == [f"waiting for {url} to get ready"]


async def test_started_server_ends_with_the_demo():
    """A server of our own is ready inside the block and gone after it."""
    code = "import sys; from tests.gateway.keepwarm_double import main; main(int(sys.argv[1]))"

    async with aiohttp.ClientSession() as session:
        async with new_server(
            session, command=lambda port, _: [sys.executable, "-c", code, str(port)], on_wait=lambda _: None
        ) as server:
            assert server.started
            async with session.get(f"{server.url}/v1/models") as response:
                assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{server.url}/v1/models")


async def test_server_that_dies_at_start_is_quoted():
    """The last words of a server that ended before it was ready are in the error."""
    code = "import sys; print('port taken', file=sys.stderr); sys.exit(2)"

    async with aiohttp.ClientSession() as session:
        with pytest.raises(DemoError, match="the server ended with status 2: port taken"):
            async with new_server(session, command=lambda *_: [sys.executable, "-c", code], on_wait=lambda _: None):
                pass


def unused(*_: Any) -> Any:
    """Stand where nothing may be called."""
    raise AssertionError("called")


# ---- showing ----


REPORT = Report(
    toy=toy(),
    server=Server(url="http://127.0.0.1:8000", started=True),
    model=MODEL,
    exchanges=[COLD, WARM],
    questions=2,
)


def test_tables_show_the_facts_of_each_request():
    """The table has a row and a sentence for each request, and the sum of all."""
    screen = io.StringIO()

    print_toy(Console(file=screen, width=120), REPORT.toy)
    print_report(Console(file=screen, width=120), REPORT)

    shown = " ".join(screen.getvalue().split())
    assert "1 + 2 + 3 + 4 + 5 + 6 = 21" in shown
    assert "question 2 2,900 2,880 20 120 ms 110 ms 50 ms 24 2,880" in shown
    assert "2,928 projections done; 5,808 without the prefix cache; 29,020 without any KV cache" in shown
    assert explain(WARM, earlier=None, first=COLD) in shown


def test_answers_are_shown_as_they_are():
    """What looks like markup in an answer is not taken for markup."""
    screen = io.StringIO()

    print_report(Console(file=screen, width=120), replace(REPORT, exchanges=[replace(COLD, answer="[bold]x[/red]")]))

    assert "[bold]x[/red]" in screen.getvalue()


def test_json_says_the_same_as_the_tables():
    """The document holds toy, facts, sentences and totals."""
    document = msgspec.json.decode(to_json(REPORT))

    assert (document["toy"]["with_kv_cache"], document["toy"]["without_kv_cache"]) == (6, 21)
    assert document["requests"][1]["projections"] == {
        "done": 24,
        "without_prefix_cache": 2904,
        "without_kv_cache": 14510,
        "saved": 2880,
    }
    assert document["requests"][1]["explanation"] == explain(WARM, earlier=None, first=COLD)
    assert document["totals"]["done"] == 2928


async def test_json_is_all_of_standard_output(capsys):
    """With --json, standard output is one document and the exit status is 0."""
    async with running(KeepwarmDouble()) as url:
        status = await asyncio.to_thread(run, url=url, as_json=True)

    document = msgspec.json.decode(capsys.readouterr().out)
    assert status == 0
    assert [request["name"] for request in document["requests"]] == [
        *("question 1", "question 2"),
        *(f"turn {number}" for number in range(1, 6)),
    ]


async def test_failure_is_one_line_on_standard_error(capsys):
    """Without a server, standard output stays empty and the exit status is 1."""
    url = f"http://127.0.0.1:{free_port()}"

    status = await asyncio.to_thread(run, url=url, as_json=True)

    printed = capsys.readouterr()
    assert (status, printed.out) == (1, "")
    assert f"keepwarm demo: no server answers at {url}\n" in printed.err
