"""Settings of a gateway: one table that feeds command line, environment and documents.

Every value arrives as text (a flag, else the environment, else the configuration file, else the default) and is parsed
once, here.
Rule: a `Settings` value that exists can be served; whatever cannot work is refused as a `ConfigError` that names the
flag. Knows no aiohttp and starts nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gateway.config_values import (
    Compat,
    parse_compat,
    parse_count,
    parse_device,
    parse_devices,
    parse_interval,
    parse_kv_dtype,
    parse_names,
    parse_origins,
    parse_port,
    parse_redis,
    parse_share,
    parse_size,
    parse_switch,
    parse_template,
    parse_tenants,
    parse_tool_format,
    parse_url,
    parse_word,
)
from gateway.errors import ConfigError
from prefix_store.retention import parse_duration


def _setting(
    default: str | None, parse: Callable[[str], object], help_: str, *, flag: bool = True, secret: bool = False
) -> Any:
    value = None if default is None else parse(default)
    metadata = {"default": default, "parse": parse, "help": help_, "flag": flag, "secret": secret}
    return field(default=value, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one gateway is set up. Field order is the order of `--help` and of the documents."""

    host: str = _setting("127.0.0.1", parse_word, "Address that serves clients; 0.0.0.0 for every interface.")
    port: int = _setting("8000", parse_port, "Port that serves clients.")
    admin_host: str = _setting(
        "127.0.0.1", parse_word, "Address that serves operators; beyond loopback it needs KEEPWARM_ADMIN_KEY."
    )
    admin_port: int = _setting("8001", parse_port, "Port that serves operators (/metrics).")
    engine: bool = _setting(
        "on", parse_switch, "Whether a model is served here: on, or off for a gateway that only has upstreams."
    )
    workers: int = _setting("1", parse_count, "Gateway processes that serve the one port; above 1 with --engine off.")
    model: str = _setting("smollm2-135m", parse_word, "A known name, a local folder, a .gguf file or a hub id.")
    device: str = _setting(
        "cpu",
        parse_device,
        "What the model runs on: cpu, or a GPU such as cuda or cuda:1, whose blocks are 256 tokens.",
    )
    devices: tuple[str, ...] = _setting(
        "",
        parse_devices,
        "One engine on each of several devices, such as cuda:0,cuda:1, in place of --device.",
    )
    deterministic: bool = _setting(
        "off",
        parse_switch,
        "Whether greedy answers are the same to the bit alone, in any batch, cold and warm: on or off; on a CPU.",
    )
    ttl: float | None = _setting(
        None, parse_duration, "How long an unmarked prefix stays warm after its last use; sets the policy default."
    )
    kv_bytes: int | None = _setting(None, parse_size, "Memory for keys and values, e.g. 4GiB; measured when not given.")
    kv_cache_dtype: str = _setting(
        "auto",
        parse_kv_dtype,
        "What keys and values are stored in: auto (as the model computes), float32, bfloat16, float16, fp8 or int8.",
    )
    gpu_memory_utilization: float = _setting(
        "0.92",
        parse_share,
        "Share of a GPU's memory that weights, steps, keys and values take together; --kv-bytes wins.",
    )
    block_size: int | None = _setting(
        None, parse_count, "Tokens of a block of keys and values; 16 on a CPU and 256 on a GPU when not given."
    )
    max_model_len: int | None = _setting(
        None, parse_count, "Longest prompt and answer together, in tokens; the model's own window when not given."
    )
    max_num_seqs: int = _setting("16", parse_count, "Sequences that run at the same time.")
    max_waiting: int = _setting("1024", parse_count, "Requests that wait for room; one more is refused with 429.")
    queue_timeout: float = _setting(
        "2m", parse_duration, "How long a request waits for room before it is refused with 503."
    )
    step_tokens: int = _setting("1024", parse_count, "Prefill and decode tokens together in one forward pass.")
    inter_token: float = _setting(
        "200ms",
        parse_duration,
        "Time between two tokens of an answer to aim at; a step gets two decodes' time where that is more.",
    )
    cuda_graphs: bool = _setting(
        "on", parse_switch, "Whether decode steps on a GPU are recorded at start and replayed: on or off."
    )
    torch_compile: bool = _setting(
        "off", parse_switch, "Whether the model's layers are compiled at start; takes a C++ compiler and a minute."
    )
    max_body: int = _setting("32MiB", parse_size, "Largest request body; a larger one is refused with 413.")
    text_memory: int = _setting(
        "64MiB", parse_size, "Memory for texts whose token ids are remembered, so that they are not tokenised again."
    )
    stream_ping: float = _setting(
        "10s", parse_interval, "A stream that is quiet for so long gets a comment line to keep it open; off for none."
    )
    drain: float = _setting(
        "10s",
        parse_interval,
        "How long answers in flight get when the gateway is told to stop; off for no time.",
    )
    cors_origins: frozenset[str] = _setting(
        "", parse_origins, "Origins whose web pages may call the gateway, separated by commas; * for every one."
    )
    open_tenants: tuple[str, ...] = _setting(
        "", parse_tenants, "Tenants that a client may name in place of a key, for one developer's machine: a,b,c."
    )
    chat_template: str | None = _setting(
        None, parse_template, "A file whose Jinja template writes chats, in place of the model's own."
    )
    tool_format: str = _setting(
        "auto", parse_tool_format, "How the model writes tool calls: auto, hermes, llama3, mistral or json."
    )
    canonical_json: bool = _setting(
        "on", parse_switch, "Whether key order and number spelling in tools do not change a prompt: on or off."
    )
    normalise_telemetry: bool = _setting(
        "on", parse_switch, "Whether listed per-request telemetry is taken out of system texts: on or off."
    )
    recent_requests: int = _setting(
        "2000", parse_count, "Requests whose counts and times stay to be looked at, in 64 MiB at most; never text."
    )
    compat_metrics: Compat = _setting(  # noqa: RUF009 - a field like all others
        "auto", parse_compat, "Whether /metrics has vLLM's names too: on, off, or auto: for the bundled engine."
    )
    metrics_tenants: tuple[str, ...] = _setting(
        "", parse_names, "Tenants that /metrics tells apart, separated by commas; all others are one."
    )
    otlp_endpoint: str | None = _setting(
        None, parse_url, "Collector that traces are sent to over OTLP/HTTP, such as http://localhost:4318."
    )
    traffic_log: Path | None = _setting(  # noqa: RUF009 - a field like all others
        None, Path, "File that each prompt's keyed block hashes are appended to, for `keepwarm advise --trace`."
    )
    config: Path | None = _setting(None, Path, "Configuration file, such as keepwarm.toml.")  # noqa: RUF009
    redis: str | None = _setting(
        None, parse_redis, "Redis that several gateways share, such as redis://host:6379/0.", secret=True
    )
    ledger_retention: float = _setting(
        "400d", parse_duration, "How long usage is kept by the day; hours go after 90 days, minutes after two, or then."
    )
    cache: Path | None = _setting(  # noqa: RUF009 - a field like all others
        None, Path, "Folder for converted models; $XDG_CACHE_HOME/keepwarm when not given.", flag=False
    )
    admin_key: str | None = _setting(
        None, parse_word, "When set, the admin port asks for it as a bearer token.", flag=False, secret=True
    )

    def __post_init__(self) -> None:
        """Refuse combinations that cannot work or would expose the operators' side."""
        if self.admin_key is None and not is_loopback(self.admin_host):
            raise ConfigError(
                f"--admin-host {self.admin_host} is reachable from other machines: set KEEPWARM_ADMIN_KEY, "
                "or leave the admin port on 127.0.0.1"
            )
        if self.open_tenants and not is_loopback(self.host):
            raise ConfigError(
                f"--open-tenants lets whoever reaches --host {self.host} be any of these tenants: "
                "give out [[keys]] instead, or serve on 127.0.0.1"
            )
        if self.port and self.port == self.admin_port and self.host == self.admin_host:
            raise ConfigError(f"--port and --admin-port are both {self.port}: give each listener its own")
        if self.workers > 1 and self.engine:
            raise ConfigError(
                f"--workers {self.workers}: one engine process belongs to one gateway process; leave --workers at 1, "
                "or run gateways with --no-engine and several workers in front of several `keepwarm serve`"
            )
        used = next((one for one in (self.devices or (self.device,)) if one != "cpu"), None)
        if self.deterministic and used is not None:
            raise ConfigError(f"--deterministic computes on a CPU, not on {used}: leave one of them out")
        if self.deterministic and self.torch_compile:
            raise ConfigError("--deterministic and --torch-compile: compiled layers round as they like, leave one out")
        if self.step_tokens < self.max_num_seqs:
            raise ConfigError(f"--step-tokens {self.step_tokens} is below --max-num-seqs {self.max_num_seqs}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table. `flag` is empty for what belongs in the environment only; a `secret` is never shown."""

    name: str
    flag: str
    env: str
    default: str | None
    help: str
    parse: Callable[[str], object]
    secret: bool


def _rows() -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name=row.name,
            flag="--" + row.name.replace("_", "-") if row.metadata["flag"] else "",
            env="KEEPWARM_" + row.name.upper(),
            default=row.metadata["default"],
            help=row.metadata["help"],
            parse=row.metadata["parse"],
            secret=row.metadata["secret"],
        )
        for row in fields(Settings)
    )


SETTINGS: Final[Mapping[str, Setting]] = {row.name: row for row in _rows()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The text of one setting, and the name under which it was given: a flag, a variable, a field or `default`."""

    text: str | None
    source: str


NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def origins(
    flags: Mapping[str, str | None], environ: Mapping[str, str], file: Mapping[str, str] = NOTHING
) -> dict[str, Origin]:
    """Tell where each setting comes from: the flag, else the environment, else the file, else the default.

    Where `device` comes from before `devices`, those are not meant any more.
    """
    found: dict[str, Origin] = {}
    rank: dict[str, int] = {}
    for row in SETTINGS.values():
        given = (
            (flags.get(row.name), row.flag),
            (environ.get(row.env) or None, row.env),
            (file.get(row.name), f"[server] {row.name}"),
            (row.default, "default"),
        )
        rank[row.name] = next((place for place, (text, _) in enumerate(given) if text is not None), len(given))
        text, source = (None, "default") if rank[row.name] == len(given) else given[rank[row.name]]
        found[row.name] = Origin(text=text, source=source)
    if rank["device"] < rank["devices"]:
        found["devices"] = Origin(text=None, source="default")
    return found


def read_settings(
    flags: Mapping[str, str | None], environ: Mapping[str, str], file: Mapping[str, str] = NOTHING
) -> Settings:
    """Read every setting from where `origins` finds it. A wrong value is refused under the name it was given by."""
    values: dict[str, Any] = {}
    for name, origin in origins(flags, environ, file).items():
        if origin.text is None:
            continue
        try:
            values[name] = SETTINGS[name].parse(origin.text)
        except ValueError as error:
            raise ConfigError(f"{origin.source}: {error}") from error
    return Settings(**values)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def cache_dir(settings: Settings, environ: Mapping[str, str]) -> Path:
    """Folder for what can be made again: converted models."""
    return settings.cache or _xdg(environ, "XDG_CACHE_HOME", ".cache") / "keepwarm"


def state_dir(environ: Mapping[str, str]) -> Path:
    """Folder for what must survive a restart."""
    return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "keepwarm"


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    value = environ.get(variable, "")
    return Path(value) if Path(value).is_absolute() else Path.home() / fallback
