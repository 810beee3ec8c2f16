"""Hit rates of a real engine under pressure: a request that waits is looked up once, whatever scheduling does."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

from tests.e2e.conftest import Server, StartServer, until
from tests.e2e.metrics import metric, page
from tests.e2e.talk import whole_blocks
from tests.promql import Vector, read

BLOCKS = 24  # of the tiny model: 4 KiB each
HOG = 8 * BLOCKS  # tokens of a prompt that leaves no room for another like it
HALF = "The keeper trims the lamp at dusk, and again at dawn. "  # about three blocks
ASKED = ("vllm:prefix_cache_queries_total", "vllm:prompt_tokens_total")
FOUND = ("vllm:prefix_cache_hits_total", "vllm:prompt_tokens_cached_total")


def ask(server: Server, text: str, **fields: Any) -> Any:
    """Ask with a raw prompt and return the usage."""
    body = {"model": server.model, "prompt": text, "max_tokens": 1, "temperature": 0} | fields
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"{server.url}/v1/completions", data=data, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["usage"]


def total(series: Vector, name: str, **labels: str) -> float:
    """Sum of the series of this name that have these labels."""
    wanted = {"__name__": name, **labels}.items()
    return sum(value for one, value in series.items() if wanted <= set(one))


def counted(server: Server) -> tuple[float, ...]:
    """Tokens looked up and found by vLLM's names, ours and the engine's; requests looked up."""
    series = read(page(server))
    asked, found = ({total(series, name) for name in names} for names in (ASKED, FOUND))
    assert len(asked) == len(found) == 1
    ours = total(series, "keepwarm_input_tokens_total"), total(series, "keepwarm_input_tokens_total", cache="read")
    assert ours == (*asked, *found)
    assert 0 <= ours[1] <= ours[0]
    engines = tuple(total(series, f"keepwarm_engine_{name}_tokens_total") for name in ("prompt", "read"))
    return (*ours, *engines, total(series, "keepwarm_cache_lookups_total"))


def test_a_request_that_waits_is_looked_up_once(start_server: StartServer):
    """Looked-up tokens grow by the prompt's length, hits by what the answer says, after 20 steps of waiting (P25)."""
    server = start_server("--kv-bytes", f"{4 * BLOCKS}KiB", "--max-model-len", "384")
    assert counted(server) == (0, 0, 0, 0, 0)
    assert "NaN" not in page(server)
    warm = ask(server, HALF)
    before = counted(server)
    assert before[:2] == (warm["prompt_tokens"], 0)
    endless = {"max_tokens": HOG - 1, "stream": True, "logit_bias": {"0": -100, "2": -100}}
    usage: list[Any] = []
    data = json.dumps({"model": server.model, "prompt": "x" * HOG, **endless}).encode()
    hog = urllib.request.Request(f"{server.url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(hog, timeout=60) as stream:
        stream.read(1)
        waiter = threading.Thread(target=lambda: usage.append(ask(server, HALF + "y" * HOG)))
        waiter.start()
        until(lambda: metric(server, "keepwarm_engine_waiting") == 1)
        steps, then = metric(server, "keepwarm_engine_steps_total"), counted(server)
        assert then == (*before[:2], before[2] + HOG, *before[3:])
        until(lambda: metric(server, "keepwarm_engine_steps_total") >= steps + 20)
        assert metric(server, "keepwarm_engine_waiting") == 1
        assert counted(server) == then
    waiter.join()
    (answer,) = usage
    prompt, cached = answer["prompt_tokens"], answer["prompt_tokens_details"]["cached_tokens"]
    assert cached >= whole_blocks(warm["prompt_tokens"])
    asked, found = before[0] + HOG + prompt, before[1] + cached
    until(lambda: metric(server, "keepwarm_engine_running") == 0)
    assert counted(server) == (asked, found, asked, found, before[4] + 2)
