"""The comparison of engines: its rows, its figures, its sitting, and its load on a real server."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from benchmarks.environment import take_card
from benchmarks.gateway_peers.upstream import application
from benchmarks.peers import figures, load, servers, sitting
from benchmarks.peers.__main__ import table_of
from benchmarks.peers.prose import handbook
from benchmarks.peers.rows import Answer, Row, RowsRefused, read_rows, row
from benchmarks.peers.servers import Place, Server
from benchmarks.peers.sitting import Plan, Run, Sitting, SittingRefused
from benchmarks.processes import Started, own_environ
from tests.tiny_model import save_tiny_model

PLAN = Plan(servers=("keepwarm", "vllm"), repeat=2, prefix_words=20, seed=7, generator="own")


def one(name: str, seconds: float, **more: float | None) -> Row:
    """A row whose times are all of one kind."""
    given = {"n": 2, "itl": seconds / 10, "prompt": 100, "cached": 90, "out": 8, "wall": None} | more
    return msgspec.convert({"name": name, **dict.fromkeys(("ttft_p50", "ttft_p95", "ttft_max"), seconds), **given}, Row)


def measured(seconds: float) -> list[Row]:
    """All rows of a server that takes so long: cold 10 times, a burst 25 times as long as the warm."""
    return [
        one("qa cold", 10 * seconds, cached=0),
        one("qa warm", seconds),
        one("chat turn 1", 5 * seconds, cached=0),
        one("chat turns 2-6", 2 * seconds),
        one("burst 8x2", 20 * seconds, wall=25 * seconds),
        one("mix short", 3 * seconds),
        one("mix long", 30 * seconds),
    ]


def written(**changed: object) -> bytes:
    """What a generator writes, with one row's fields changed."""
    return json.dumps([msgspec.to_builtins(one("qa cold", 1.0)) | changed]).encode()


def test_a_text_belongs_to_its_number() -> None:
    """The same number gives the same text of the length asked for; another number's differs from the title on."""
    assert handbook(1, 130) == handbook(1, 130)
    assert len(handbook(1, 130).split()) == 130 + 2
    assert handbook(12, 130).split()[2:] != handbook(1, 130).split()[2:]


def test_rows_are_read_as_they_were_written() -> None:
    """Fields that nobody asked for are passed over, and a row without a wall time has none."""
    assert read_rows(written(more=1)) == [one("qa cold", 1.0)]
    assert read_rows(msgspec.json.encode(measured(2.0))) == measured(2.0)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"[{]", "cannot be read"),
        (written(itl=float("nan")), "cannot be read"),
        (written(ttft_p50="fast"), "cannot be read"),
        (written(ttft_p95=0.0), "qa cold: a time is not above 0"),
        (written(out=1), "qa cold: 2 answers with 1 tokens: some are empty"),
        (written(cached=101), "qa cold: 101 of 100 prompt tokens cached"),
        (json.dumps([msgspec.to_builtins(one("a", 1.0))] * 2).encode(), "two rows have one name"),
    ],
)
def test_rows_that_cannot_be_are_refused(document: bytes, said: str) -> None:
    """What is wrong is said, with the row's name where it has one."""
    with pytest.raises(RowsRefused, match=said):
        read_rows(document)


def test_a_row_is_made_of_answers() -> None:
    """Times are ranked, gaps have their median, tokens are added up, and what is not told counts as none."""
    answers = [
        Answer(first=first, gap=gap, prompt=10, cached=cached, out=3, text="a")
        for first, gap, cached in ((0.3, 0.02, 4), (0.1, None, None), (0.2, 0.04, 6))
    ]
    made = row("qa warm", answers, wall=1.0)
    assert (made.ttft_p50, made.ttft_p95, made.ttft_max) == (0.2, 0.3, 0.3)
    assert made.itl == pytest.approx(0.03)
    assert (made.n, made.prompt, made.cached, made.out, made.wall) == (3, 30, 10, 9, 1.0)
    assert row("one", answers[1:2]).itl is None


def test_a_measure_that_is_missing_is_named() -> None:
    """A row that is not there, and a number that a row does not have."""
    with pytest.raises(RowsRefused, match="there is no row 'mix long'"):
        figures.check(measured(1.0)[:-1], tells=True)
    with pytest.raises(RowsRefused, match="burst 8x2: there is no wall"):
        figures.check([*measured(1.0)[:4], one("burst 8x2", 1.0)], tells=True)


def test_warm_answers_must_be_warm_where_the_server_tells() -> None:
    """Too few cached tokens are an error of a server that tells them, and nothing of one that does not."""
    rows = [one("qa warm", 1.0, cached=49) if each.name == "qa warm" else each for each in measured(1.0)]
    figures.check(rows, tells=False)
    with pytest.raises(RowsRefused, match="qa warm: only 49 of 100 prompt tokens were cached"):
        figures.check(rows, tells=True)


def test_targets_hold_ours_against_the_best_peer() -> None:
    """Medians over rounds, ratio by ratio: five to the best peer, three to vLLM, one to ourselves."""
    rounds = {
        "keepwarm": [measured(0.5), measured(9.0), measured(0.7)],
        "vllm": [measured(1.0)] * 3,
        "llama.cpp": [measured(2.0)] * 3,
    }
    targets = figures.result(rounds, {}).targets
    assert [(one.name.partition(", by ")[0], round(one.value, 2), one.limit, one.met) for one in targets] == [
        ("cold first token", 0.7, 0.7, True),
        ("warm first token", 0.7, 0.65, False),
        ("first token of later turns", 0.7, 0.6, False),
        ("between two tokens of warm answers", 0.7, 1.2, True),
        ("burst, all answers", 0.7, 0.6, False),
        ("between two tokens of warm answers", 0.7, 0.85, True),
        ("mix: between two tokens of short answers", 0.7, 0.6, False),
        ("mix: first token of long prompts", 0.7, 1.0, True),
        ("burst, all answers", 1.25, 1.3, True),
    ]
    assert targets[0].name == "cold first token, by the best peer's"
    assert targets[4].ceiling == "vllm: 25.00 s, Keepwarm: 17.50 s"


def test_vllm_is_the_better_of_its_settings() -> None:
    """Held against vLLM, the faster of both ways to start it counts, even where another peer is the best."""
    rounds = {
        "keepwarm": [measured(1.0)],
        "vllm": [measured(4.0)],
        "vllm-all-cores": [measured(2.0)],
        "llama.cpp": [measured(0.5)],
    }
    ceilings = {target.name: target.ceiling for target in figures.targets(rounds)}
    assert ceilings["mix: first token of long prompts, by vLLM's"] == "vllm-all-cores: 60.00 s, Keepwarm: 30.00 s"
    assert ceilings["cold first token, by the best peer's"] == "llama.cpp: 5,000.0 ms, Keepwarm: 10,000.0 ms"


def test_what_was_not_measured_has_no_target() -> None:
    """Ours alone is held against itself; peers alone against nothing; every value of a round is kept."""
    alone = figures.result({"keepwarm": [measured(1.0)], "vllm": []}, {})
    assert [(target.name, target.value) for target in alone.targets] == [
        ("burst, all answers, by two own cold first tokens", 1.25)
    ]
    assert [series.name for series in alone.series if series.values == (1000.0,)] == ["keepwarm: warm first token"]
    assert figures.result({"vllm": [measured(1.0)]}, {}).targets == ()


def test_the_table_has_a_row_for_each_server() -> None:
    """Ours with ratios to the best peer in brackets, a peer without, one that was not measured not at all."""
    rounds = {"keepwarm": [measured(1.0)], "vllm": [measured(2.0)], "transformers": []}
    console = Console(width=140, record=True, quiet=False, file=None, force_terminal=False)
    with console.capture() as shown:
        console.print(table_of(rounds))
    lines = [line.split() for line in shown.get().splitlines()]
    assert next(line[1:5] for line in lines if line[:1] == ["keepwarm"]) == ["10,000.0", "(0.50)", "1,000.0", "(0.50)"]
    assert next(line[1:3] for line in lines if line[:1] == ["vllm"]) == ["20,000.0", "2,000.0"]
    assert not any(line[:1] == ["transformers"] for line in lines)


def test_a_sitting_is_gone_on_with(tmp_path: Path) -> None:
    """What was measured is there again, what is left is the rest, and that it was broken off is counted."""
    path = tmp_path / "deep" / "sitting.json"
    done = Run(server="vllm", round=0, start_s=1.0, load_s=2.0, rows=measured(1.0))
    sitting.keep(Sitting(plan=PLAN, card=take_card(), runs=(done,)), path)
    found = sitting.go_on(path, PLAN)
    assert (found.runs, found.goings_on) == ((done,), 1)
    assert found.left() == [(0, "keepwarm"), (1, "keepwarm"), (1, "vllm")]
    assert {name: len(rounds) for name, rounds in found.rounds().items()} == {"keepwarm": 0, "vllm": 1}
    assert [each.name for each in path.parent.iterdir()] == ["sitting.json"]


def test_another_sitting_is_not_gone_on_with(tmp_path: Path) -> None:
    """One of another plan, one that cannot be read, and none at all are refused by their path."""
    path = tmp_path / "sitting.json"
    with pytest.raises(SittingRefused, match="there is no sitting to go on with"):
        sitting.go_on(path, PLAN)
    path.write_text("{}")
    with pytest.raises(SittingRefused, match=r"sitting\.json: Object missing required field"):
        sitting.go_on(path, PLAN)
    sitting.keep(Sitting(plan=PLAN, card=take_card()), path)
    with pytest.raises(SittingRefused, match="another plan"):
        sitting.go_on(path, msgspec.structs.replace(PLAN, repeat=3))


def test_any_generator_is_called_alike(tmp_path: Path) -> None:
    """Ours is a module, another is a file; both get address, model, words, a seed of the round, and where to write."""
    rest = ["http://a", "m", "--prefix-words", "20", "--seed", "10007", "--json", str(tmp_path)]
    other = tmp_path / "other.py"
    other.write_text("")
    assert sitting.command_of(None, "http://a", "m", PLAN, 1, tmp_path)[1:] == ["-m", "benchmarks.peers.load", *rest]
    assert sitting.command_of(other, "http://a", "m", PLAN, 1, tmp_path)[1:] == [str(other), *rest]
    assert sitting.named(None) == "own"
    assert sitting.named(other) == "other.py (sha256 e3b0c44298fc1c14)"


def upstream(_: Server, place: Place) -> Started:
    """Start a server that answers at once."""
    command = [sys.executable, "-m", "benchmarks.gateway_peers.upstream", str(place.port)]
    return Started(command=command, ready="/health", environ=own_environ(place.home))


QUICK = Server(name="vllm", version="1", flags=(), start=upstream)


def generator(tmp_path: Path, ending: str) -> Path:
    """A program that writes the rows of `measured` and then does as told."""
    path = tmp_path / "generator.py"
    rows = json.dumps(msgspec.to_builtins(measured(1.0)))
    path.write_text(f"import sys\nopen(sys.argv[-1], 'w').write({rows!r})\nprint('qa done')\n{ending}\n")
    return path


async def sat(tmp_path: Path, ending: str) -> tuple[Sitting, list[str], list[str]]:
    """Sit with that program at one quick server; return what was found, what failed, what was told."""
    told: list[str] = []
    found, failures = await sitting.sit(
        Sitting(plan=msgspec.structs.replace(PLAN, servers=("vllm",)), card=take_card()),
        [QUICK],
        model=tmp_path,
        generator=generator(tmp_path, ending),
        path=tmp_path / "sitting.json",
        advance=told.append,
        now=told.append,
    )
    return found, failures, told


async def test_another_program_may_put_the_load_on(tmp_path: Path) -> None:
    """Its rows are each round's, its lines are told as they come, and the file has what was found."""
    found, failures, told = await sat(tmp_path, "")
    assert failures == []
    assert [(run.server, run.round, run.rows) for run in found.runs] == [
        ("vllm", number, measured(1.0)) for number in range(2)
    ]
    assert told[:3] == [f"vllm, round 1 of 2: {what}" for what in ("starting", "ready", "qa done")]
    assert msgspec.json.decode((tmp_path / "sitting.json").read_bytes(), type=Sitting) == found


async def test_a_load_that_fails_is_noted(tmp_path: Path) -> None:
    """Each round goes on to the next, and the failure has the program's own words."""
    found, failures, _ = await sat(tmp_path, "sys.exit('the answer was nonsense')")
    assert found.runs == ()
    assert [failure.partition(": ")[0] for failure in failures] == ["vllm, round 1 of 2", "vllm, round 2 of 2"]
    assert "the load ended with status 1: the answer was nonsense" in failures[0]


async def asked(app: web.Application) -> Answer:
    """Ask one question of a server in this process."""
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        url = str(server.make_url("")).rstrip("/")
        asking = load.Server(http=http, url=url, model="m", advance=lambda _: None)
        return await asking.ask("a question", [{"role": "user", "content": "hi"}], 16)


async def test_an_answer_is_read_whole() -> None:
    """Text, usage and cached tokens are the server's, and its first word comes no later than the rest."""
    answer = await asked(application())
    assert (answer.text, answer.prompt, answer.cached, answer.out) == ("tick " * 16, 1024, 960, 16)
    assert answer.first > 0 and answer.gap is not None and answer.gap >= 0


def saying(text: str, status: int = 200) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler that says one thing."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, status=status, content_type="text/event-stream")

    return handler


END = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
WORD = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("no such model", 404, "answered 404: no such model"),
        (END, 200, "sent an empty answer"),
        (WORD + "data: [DONE]\n\n", 200, "sent a broken answer"),
        (WORD + END + "data: [DONE]\n\n", 200, "the answer has no usage"),
    ],
)
async def test_a_wrong_answer_is_no_number(text: str, status: int, said: str) -> None:
    """A refusal, an empty answer, one that breaks off and one without usage are errors that name the question."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", saying(text, status))
    with pytest.raises((RuntimeError, TypeError), match=f"a question: .*{said}"):
        await asked(app)


async def test_an_answer_may_end_without_the_last_word() -> None:
    """A stream whose choice has finished and whose usage is there is whole, with [DONE] or without."""
    app = web.Application()
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
    app.router.add_post("/v1/chat/completions", saying(WORD + END + usage))
    answer = await asked(app)
    assert (answer.text, answer.prompt, answer.cached, answer.out, answer.gap) == ("a", 3, None, 1, None)


@pytest.mark.timeout(300)  # two processes that load torch, and forty answers, on a machine that may be busy
async def test_the_load_on_a_real_server(tmp_path: Path) -> None:
    """Keepwarm with a tiny model takes all four kinds of work: every row is there, and what should be warm is."""
    folder = save_tiny_model(tmp_path / "tiny", window=8192)
    tiny = dataclasses.replace(
        servers.KEEPWARM, flags=("--model", str(folder), "--kv-bytes", "64MiB"), called=lambda path: path.name
    )
    run = await sitting.run(tiny, 0, PLAN, model=folder, generator=None, say=lambda _: None)
    assert [(each.name, each.n) for each in run.rows] == [
        ("qa cold", 1),
        ("qa warm", 8),
        ("chat turn 1", 1),
        ("chat turns 2-6", 5),
        ("burst 8x2", 8),
        ("mix short", 4),
        ("mix long", 2),
    ]
    assert all(each.cached > each.prompt // 2 for each in run.rows if each.name in {"qa warm", "chat turns 2-6"})


def test_what_is_told_of_a_server_names_no_folder() -> None:
    """Version, environment and flags are kept with results; paths of this machine are not among them."""
    assert servers.VLLM.told.startswith("0.32.0 VLLM_CPU_KVCACHE_SPACE=4 --dtype float32")
    assert not any("/" in server.told for server in servers.ALL)
    assert len({server.name for server in servers.ALL}) == len(servers.ALL)
