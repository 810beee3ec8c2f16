"""The ledger of a live server says what its answers said."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.answers import Answers, anthropic_sdk, openai_sdk
from tests.e2e.conftest import Server, StartServer

TEXT = "The keeper writes down every ship that passes, and the hour at which it did, and the wind. " * 4


def usage(server: Server, query: str) -> dict[str, Any]:
    """What the admin port answers."""
    with urllib.request.urlopen(f"{server.admin_url}/admin/v1/usage?{query}", timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def test_totals_are_the_sums_of_the_answers(start_server: StartServer, tmp_path: Path, answers: Answers) -> None:
    """Through two APIs, streamed and whole, tokens in the ledger are those of the answers' usage, and survive."""
    server = start_server("--kv-bytes", "8MiB", home=tmp_path)
    told: Counter[str] = Counter()
    with openai_sdk(server.url, answers) as client:
        for turn in range(3):
            messages: Any = [{"role": "system", "content": TEXT}, {"role": "user", "content": f"Turn {turn // 2}?"}]
            answer = client.chat.completions.create(model=server.model, messages=messages, max_tokens=4, seed=1)
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            told["chat.prompt"] += answer.usage.prompt_tokens
            told["chat.read"] += answer.usage.prompt_tokens_details.cached_tokens or 0
            told["chat.output"] += answer.usage.completion_tokens
    with anthropic_sdk(server.url, answers) as other:
        system: Any = [
            {"type": "text", "text": "Now something else. " + TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        ]
        for turn in range(2):
            with other.messages.stream(
                model=server.model, max_tokens=4, system=system, messages=[{"role": "user", "content": f"And {turn}?"}]
            ) as stream:
                cost = stream.get_final_message().usage
            told["messages.read"] += cost.cache_read_input_tokens or 0
            told["messages.write"] += cost.cache_creation.ephemeral_1h_input_tokens if cost.cache_creation else 0
            told["messages.uncached"] += cost.input_tokens
            told["messages.output"] += cost.output_tokens
    shown = usage(server, "group_by=api&bucket=none")
    by = {group["by"]["api"]: group["total"] for group in shown["groups"]}
    chat, messages = by["chat"], by["messages"]
    assert told["chat.read"] > 0 and told["messages.read"] > 0 and told["messages.write"] > 0
    assert (chat["prompt_tokens"], chat["read_tokens"], chat["output_tokens"]) == (
        told["chat.prompt"],
        told["chat.read"],
        told["chat.output"],
    )
    assert (messages["read_tokens"], messages["write_tokens"], messages["uncached_tokens"]) == (
        told["messages.read"],
        {"1h": told["messages.write"]},
        told["messages.uncached"],
    )
    total = shown["total"]
    assert (total["requests"], total["outcomes"]["finished"], messages["output_tokens"]) == (
        5,
        5,
        told["messages.output"],
    )
    for counts in (total, chat, messages):
        parts = counts["read_tokens"] + sum(counts["write_tokens"].values()) + counts["uncached_tokens"]
        assert parts == counts["prompt_tokens"]
        assert sum(counts["missed_tokens"].values()) == counts["prompt_tokens"] - counts["read_tokens"]
    server.process.terminate()
    server.process.wait(timeout=20)
    again = usage(start_server("--kv-bytes", "8MiB", home=tmp_path), "bucket=none")["total"]
    assert {name: again[name] for name in ("requests", "prompt_tokens", "read_tokens", "write_tokens")} == {
        name: total[name] for name in ("requests", "prompt_tokens", "read_tokens", "write_tokens")
    }


@pytest.mark.parametrize("query", ["from=-2d&to=-1d", "tenant=nobody"])
def test_a_range_without_data_says_so(server: Server, query: str) -> None:
    """Where nothing was counted there is no rate."""
    answer = usage(server, query)
    assert (answer["data"], answer["total"]["read_ratio"]) == (False, {"by_tokens": None, "by_requests": None})
