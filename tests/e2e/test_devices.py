"""Two engines on one CPU behind one port: a prefix stays where it lies, and the death of one is survived."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest
from openai import OpenAI

from tests.e2e.answers import Answers, openai_sdk
from tests.e2e.conftest import Server, StartServer, until
from tests.e2e.metrics import metric
from tests.e2e.talk import cached, handbook, messages


@pytest.fixture(scope="module")
def pair(start_server: StartServer) -> Server:
    """A server with two engines."""
    return start_server("--kv-bytes", "4MiB", "--devices", "cpu,cpu")


def ask(client: OpenAI, model: str, name: str, question: str) -> Any:
    """Ask a question over a long beginning."""
    turns = messages(handbook(name, 6), question)
    return client.chat.completions.create(model=model, messages=turns, max_tokens=2, temperature=0)


def engines(server: Server) -> list[int]:
    """Process ids of the engines."""
    children = psutil.Process(server.process.pid).children()
    return [child.pid for child in children if "engine.worker" in " ".join(child.cmdline())]


def test_two_engines_serve_one_model(pair: Server, answers: Answers):
    """Four beginnings asked for in turn are each cold once and warm ever after, wherever they went."""
    until(lambda: metric(pair, "keepwarm_engine_up") == 1 and len(engines(pair)) == 2)
    with openai_sdk(pair.url, answers) as client:
        rounds = [[cached(ask(client, pair.model, name, f"Why {at}?")) for name in "abcd"] for at in range(3)]
    assert all(read < 40 for read in rounds[0])
    assert all(read > 380 for later in rounds[1:] for read in later)


def test_the_death_of_one_is_survived(pair: Server, answers: Answers):
    """With one engine killed the next requests are answered, and it is started again."""
    victim, _ = engines(pair)
    os.kill(victim, signal.SIGKILL)
    with openai_sdk(pair.url, answers) as client:
        until(lambda: metric(pair, "keepwarm_engine_restarts_total") == 1)
        for at in range(4):
            assert ask(client, pair.model, f"after {at}", "Who?").usage.completion_tokens > 0
    until(lambda: len(engines(pair)) == 2)
