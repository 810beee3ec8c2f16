"""A gateway without an engine: what it serves, and what it says of itself."""

from __future__ import annotations

import pytest

from tests.gateway.wire import EVERY, body, is_anthropic, refusal
from tests.relay.conftest import StartFake, StartFront

VERSION = {"anthropic-version": "2023-06-01"}


async def test_an_upstream_answers(front: StartFront, fake: StartFake) -> None:
    """A request for an upstream's model gets its answer, and the name of who gave it."""
    gateway = await front([(await fake("a")).upstream()])
    response = await gateway.chat()
    answer = await response.json()
    assert (response.status, response.headers["x-keepwarm-upstream"]) == (200, "a")
    assert answer["choices"][0]["message"]["content"] == "a"


@pytest.mark.parametrize("path", EVERY)
async def test_an_unknown_model_is_404_and_names_the_served(front: StartFront, fake: StartFake, path: str) -> None:
    """In each API's own envelope the refusal says which models there are."""
    gateway = await front([(await fake("a")).upstream("m", "n")])
    status, message = await refusal(await gateway.serving.post(path, json=body(path, model="other")), path)
    assert (status, message.removeprefix("model: ")) == (
        404,
        "The model 'other' does not exist here. Served are: m, n.",
    )


@pytest.mark.parametrize("path", EVERY)
async def test_a_missing_model_is_named(front: StartFront, fake: StartFake, path: str) -> None:
    """A body without a model is a 400 that names the field."""
    gateway = await front([(await fake("a")).upstream()])
    nameless = body(path)
    del nameless["model"]
    status, message = await refusal(await gateway.serving.post(path, json=nameless), path)
    said = "Field required" if is_anthropic(path) else "Missing required field 'model'."
    assert (status, message) == (400, f"model: {said}")


async def test_both_apis_list_the_upstreams_models(front: StartFront, fake: StartFake) -> None:
    """`/v1/models` has every upstream's models once, in the caller's shape, and each has an address."""
    gateway = await front([(await fake("a")).upstream("n", "m"), (await fake("b")).upstream("m")])
    openai = await (await gateway.serving.get("/v1/models")).json()
    anthropic = await (await gateway.serving.get("/v1/models", headers=VERSION)).json()
    assert openai["data"] == [
        {"id": name, "object": "model", "created": 0, "owned_by": "keepwarm"} for name in ("m", "n")
    ]
    assert [(one["id"], one["max_input_tokens"]) for one in anthropic["data"]] == [("m", None), ("n", None)]
    assert (await (await gateway.serving.get("/v1/models/n")).json())["id"] == "n"
    assert (await gateway.serving.get("/v1/models/none")).status == 404


async def test_the_engines_model_is_listed_beside_them(front: StartFront, fake: StartFake) -> None:
    """With an engine its own model comes first, with its window, and none is listed twice."""
    gateway = await front([(await fake("a")).upstream("tiny", "m")], engine=True)
    listed = (await (await gateway.serving.get("/v1/models")).json())["data"]
    assert [(one["id"], one.get("max_model_len")) for one in listed] == [("tiny", 2048), ("m", None)]


async def test_it_is_ready_while_an_upstream_may_be_asked(front: StartFront, fake: StartFake) -> None:
    """`/ready` follows the upstreams: 503 once the only one is drained, 200 when it is back."""
    gateway = await front([(await fake("a")).upstream()])
    for steered, status in (("drain", 503), ("undrain", 200)):
        await gateway.asked("POST", f"upstreams/a/{steered}")
        response = await gateway.serving.get("/ready")
        told = await response.json()
        assert (response.status, told["ready"], told["model"]) == (status, status == 200, None)


async def test_metrics_have_no_engine_numbers(front: StartFront, fake: StartFake) -> None:
    """What is not there is absent from the page, not zero; the gateway's own series are there."""
    gateway = await front([(await fake("a")).upstream()])
    await gateway.chat()
    page = await (await gateway.admin.get("/metrics")).text()
    assert "keepwarm_engine_" not in page
    assert "vllm:" not in page
    assert 'keepwarm_http_responses_total{method="POST",route="/v1/chat/completions",status="200"} 1.0' in page


async def test_the_admin_api_works(front: StartFront, fake: StartFake) -> None:
    """Policies, usage and requests are told; what only an engine knows is 503 with a reason."""
    gateway = await front([(await fake("a")).upstream()])
    await gateway.chat()
    for path in ("policies", "usage", "requests", "about", "audit", "advice"):
        assert (await gateway.asked("GET", path))[0] == 200, path
    _, about = await gateway.asked("GET", "about")
    assert (about["model"], about["models"], about["upstreams"], about["card"]) == (None, ["m"], ["a"], None)
    for path in ("stats", "entries", "tree", "retention"):
        status, answer = await gateway.asked("GET", path)
        assert (status, answer["error"]["message"]) == (503, "This gateway has no engine; its upstreams answer."), path
