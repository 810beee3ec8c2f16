"""A body goes on as it came, but for the fields that must change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.relay.call import call_of, salt
from gateway.relay.splice import fields_of, spliced
from tests.relay.faults.conftest import CHAT, MODEL, StartFake, StartFront, facing

ODD = (
    '{ "model":"m",\n\t"messages" : [{"role":"user","content":"a\\u0041 \u2028é"}] , "x": 1.50e+2,"stream":true }\r\n'
).encode()
ASKED = b'"stream_options":{"include_usage":true}'


@pytest.mark.parametrize(
    ("body", "changes", "after"),
    [
        (b'{"a":1}', {}, b'{"a":1}'),
        (b' { "a" : 1 } ', {"a": 1}, b' { "a" : 1 } '),
        (b' { "a" : 1 } ', {"b": None}, b' { "a" : 1 } '),
        (b' { "a" : 1 } ', {"b": 2}, b' { "a" : 1 ,"b":2} '),
        (b"{ }\n", {"b": 2}, b'{ "b":2}\n'),
        (b'{"a": {"x": 1e3}, "b":[ ]}', {"b": 3}, b'{"a":{"x": 1e3},"b":3}'),
        (b'{"a": 1e3, "b":[ ]}', {"b": None}, b'{"a":1e3}'),
        (b'{"b": 1}', {"b": None, "c": 2}, b'{"c":2}'),
        (b'{"b": 1}', {"b": 2, "c": 2}, b'{"b":2,"c":2}'),
        (b'{"a":"}"}', {"b": 2}, b'{"a":"}","b":2}'),
    ],
)
def test_splice(body: bytes, changes: dict[str, object], after: bytes) -> None:
    """Where nothing changes the same bytes go on, and what changes leaves every other value's bytes alone."""
    assert spliced(body, fields_of(body), changes) == after


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(st.text(max_size=3), VALUES, max_size=4),
    changes=st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.integers(), st.text()), max_size=3),
    indent=st.one_of(st.none(), st.integers(0, 2)),
    ascii_only=st.booleans(),
)
def test_splice_changes_only_its_fields(
    fields: dict[str, Any], changes: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    """Of any object in any spelling: named fields are set or gone, others keep value and order."""
    body = json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        known = fields_of(body)
    except BadRequest:
        return
    after = json.loads(spliced(body, known, changes))
    kept = fields | changes
    assert after == {name: value for name, value in kept.items() if not (name in changes and value is None)}
    assert [name for name in after if name in fields] == [name for name in fields if name in after]
    raw = fields_of(spliced(body, known, changes))
    assert all(bytes(raw[name]) == bytes(known[name]) for name in fields if name not in changes)


@pytest.mark.parametrize("path", [CHAT])
async def test_the_client_s_bytes_reach_the_upstream(path: str, start_fake: StartFake, start_front: StartFront) -> None:
    """A body is the very one that was sent, with nothing but the question for usage added at its end."""
    front = await start_front(facing(fake := await start_fake()))
    whole = ODD.replace(b"true", b"null")
    for body in (ODD, whole):
        await (await front.client.post(path, data=body)).read()
    assert fake.received[0].body == ODD.replace(b"true }", b"true ," + ASKED + b"}")
    assert fake.received[1].body == whole


async def test_the_salt_is_the_gateway_s_own(start_fake: StartFake, start_front: StartFront) -> None:
    """A cache is salted with whose prompt it is where the upstream takes that; elsewhere a client's salt is dropped."""
    vllm, plain = await start_fake("vllm"), await start_fake("plain")
    for fake, salted in ((vllm, True), (plain, False)):
        front = await start_front(facing(fake, salt=salted))
        owns: list[dict[str, Any]] = [{}, {"cache_salt": "mine"}, {"cache_salt": "other"}]
        for own in owns:
            await (await front.ask(**own)).read()
    sent = [one.json["cache_salt"] for one in vllm.received]
    assert len(set(sent)) == 3 and all(len(one) == 32 and "mine" not in one for one in sent)
    assert all("cache_salt" not in one.json for one in plain.received)


def test_salts_keep_tenants_apart() -> None:
    """Two tenants never share a salt, whatever they send, and nobody without the secret makes one."""
    given = [("a", b""), ("b", b""), ("a", b'"b"'), ('a"b"', b""), ("", b"a"), ("a", b'"'), ("ab", b"")]
    salts = {salt(secret, tenant, words) for secret in (b"1", b"2") for tenant, words in given}
    assert len(salts) == 2 * len(given)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a":1}}',
        b"\xff",
        b'{"model":"\xff"}',
        b'{"model":7}',
        b'{"model":"m","prompt_cache_key":"\xff"}',
        b'{"model":"m","stream_options":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"model":"m","stream":true,"stream_options":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}}",
        b'{"model":"m","prompt_cache_key":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    """Broken bodies are the client's fault, never a bug."""
    with pytest.raises(BadRequest):
        call_of("chat", body, call_id="1", tenant="t", key=None, headers={})


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read(body: bytes) -> None:
    """Random bytes are a request or a BadRequest."""
    try:
        call = call_of("chat", body, call_id="1", tenant="t", key=None, headers={})
    except BadRequest:
        return
    assert isinstance(json.loads(call.body), dict)


def test_a_model_is_read_without_the_prompt() -> None:
    """What routing needs is read; an odd key is no session."""
    body = json.dumps({"model": MODEL, "stream": True, "prompt_cache_key": 7}).encode()
    call = call_of("chat", body, call_id="1", tenant="t", key=None, headers={})
    assert (call.model, call.streamed, call.session) == (MODEL, True, "")
