"""What an operator says of an upstream: where it is, what it serves, how it is treated. Pure.

Rule: upstreams come from the configuration file alone, never from a request; a key is named by the variable that holds
it and is never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from gateway.errors import ConfigError
from prefix_store.classes import NAME_LENGTH, is_name

Kind = Literal["vllm", "sglang", "llamacpp", "openai", "anthropic", "generic"]
Endpoint = Literal["chat", "completions", "responses", "input_tokens", "messages", "count_tokens"]

PATHS: Final[Mapping[Endpoint, str]] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
    "input_tokens": "/responses/input_tokens",
    "messages": "/messages",
    "count_tokens": "/messages/count_tokens",
}
SPEAKS: Final[Mapping[Kind, tuple[Endpoint, ...]]] = {
    "vllm": ("chat", "completions", "responses", "messages", "count_tokens"),
    "sglang": ("chat", "completions", "responses", "messages", "count_tokens"),
    "llamacpp": ("chat", "completions", "responses", "messages", "count_tokens"),
    "openai": ("chat", "completions", "responses", "input_tokens"),
    "anthropic": ("messages", "count_tokens"),
    "generic": ("chat", "completions"),
}
SALTED: Final = frozenset({"vllm", "sglang"})  # take `cache_salt`, which keeps tenants apart in their caches
HEALTH: Final[Mapping[Kind, str | None]] = {  # below the host, not the base URL; None: `GET models`
    "vllm": "/health",
    "sglang": "/health",
    "llamacpp": "/health",
    "openai": None,
    "anthropic": None,
    "generic": None,
}
BUNDLED: Final = "bundled"  # the name of the engine that comes with the gateway

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
_ZEROMQ: Final = re.compile(r"tcp://[^\s/]+:(?P<port>[0-9]{1,5})|ipc://.+")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _is_zeromq(place: str) -> bool:
    found = _ZEROMQ.fullmatch(place)
    return found is not None and int(found["port"] or 1) <= 65_535  # noqa: PLR2004 - the last port


class Upstream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[upstreams]]` entry. Raises ValueError, its message led by the field, for what cannot be one."""

    name: str
    kind: Kind = "generic"
    base_url: str
    models: tuple[str, ...]  # as clients name them
    apis: tuple[Endpoint, ...] = ()  # empty: what its kind speaks
    key_env: str | None = None  # the environment variable that holds its key
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    tokenizer: str | None = None  # a local folder with a chat template; without one, prefixes are told apart by bytes
    capacity_tokens: Annotated[int, Meta(ge=1)] | None = None  # that its cache holds
    max_requests: Annotated[int, Meta(ge=1)] = 256  # at one time
    connect_timeout: Seconds = 2.0
    first_byte_timeout: Seconds = 120.0
    idle_timeout: Seconds = 60.0  # between two bytes of an answer
    health_interval: Seconds = 5.0  # between two questions whether it is well
    kv_events: str | None = None  # where vLLM publishes what its cache holds, such as tcp://127.0.0.1:5557
    kv_events_replay: str | None = None  # where it plays those again that were missed, such as tcp://127.0.0.1:5558
    salt: bool | None = None  # whether `cache_salt` is sent; None: where its kind takes it

    def __post_init__(self) -> None:
        """Refuse what cannot be reached or told apart."""
        if not is_name(self.name) or self.name == BUNDLED:
            raise ValueError(f"name: {self.name!r} is not a name of 1 to {NAME_LENGTH} letters, digits, '.', '_', '-'")
        url = urlsplit(self.base_url)
        if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
            raise ValueError(f"base_url: {self.base_url!r} is not an address such as http://10.0.0.7:8000/v1")
        if url.username or url.password:
            raise ValueError("base_url: a key does not belong into an address; name its variable in key_env")
        if not self.models or not all(self.models):
            raise ValueError("models: name at least one")
        if self.key_env is not None and _VARIABLE.fullmatch(self.key_env) is None:
            raise ValueError("key_env: is not the name of an environment variable")
        for field, place in (("kv_events", self.kv_events), ("kv_events_replay", self.kv_events_replay)):
            if place is not None and not _is_zeromq(place):
                raise ValueError(f"{field}: is not a ZeroMQ address such as tcp://10.0.0.7:5557")
        if self.kv_events_replay is not None and self.kv_events is None:
            raise ValueError("kv_events_replay: has no kv_events beside it")

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints that it has."""
        return self.apis or SPEAKS[self.kind]

    @property
    def salted(self) -> bool:
        """Whether it is told whose prompt it is, as a salt of its cache."""
        return self.kind in SALTED if self.salt is None else self.salt

    def url(self, endpoint: Endpoint) -> str:
        """Return the address of an endpoint."""
        return self.base_url.rstrip("/") + PATHS[endpoint]

    @property
    def health_url(self) -> str:
        """Return the address that says whether it is well."""
        path = HEALTH[self.kind]
        if path is None:
            return self.base_url.rstrip("/") + "/models"
        url = urlsplit(self.base_url)
        return f"{url.scheme}://{url.netloc}{path}"

    def credentials(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that carry its key, none where it has none."""
        key = environ.get(self.key_env, "") if self.key_env else ""
        if not key:
            return {}
        return {"x-api-key": key} if self.kind == "anthropic" else {"authorization": f"Bearer {key}"}


def require_keys(upstreams: Iterable[Upstream], environ: Mapping[str, str]) -> None:
    """Refuse upstreams whose key is nowhere. Raises ConfigError naming upstream and variable."""
    for one in upstreams:
        if one.key_env is not None and not environ.get(one.key_env):
            raise ConfigError(f"[[upstreams]] {one.name}: key_env: {one.key_env} is not set in the environment")
