"""The configuration file `keepwarm.toml`: read once at start, checked as a whole.

Tables: `[server]` (settings that have a flag), `[[keys]]`, `[classes]`, `[[policies]]`, `[[rates]]`, `[redis]`,
`[[upstreams]]`, `[routing]`. Knows no HTTP and opens no connection.
Rule: a `FileConfig` that exists can be used; whatever is wrong is a `ConfigError` of one line with file, table and
field. A file holds no secrets: those that are found are refused, naming the variable for them, and never repeated.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar, cast, get_args
from urllib.parse import urlsplit

import msgspec

from gateway.config import NOTHING, SETTINGS, Settings, origins, read_settings
from gateway.config_values import parse_redis
from gateway.errors import ConfigError
from gateway.keyring import Key, Keyring
from gateway.money import Prices, Rates
from gateway.relay.upstream import Upstream
from gateway.routing.router import Policy as Routing
from prefix_store.classes import CLASSES, RetentionClasses, nearest
from prefix_store.policy import Policy, PolicyRefused, PolicySet, parse_policy
from prefix_store.redis_settings import ENVIRONMENT, RedisSettings
from prefix_store.store import StateRefused

Row = dict[str, object]
_T = TypeVar("_T")

SERVER: Final = tuple(row.name for row in SETTINGS.values() if row.flag and row.name != "config")
SECRETS: Final[Mapping[str, str]] = {
    "admin_key": "set KEEPWARM_ADMIN_KEY instead",
    "secret": "set KEEPWARM_SECRET instead",
    "password": "set KEEPWARM_REDIS_PASSWORD instead",
    "key": "give its sha256 instead",
}
_PROBLEM: Final = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<field>[\w-]*).*`)?", re.DOTALL)

_Server = msgspec.defstruct(
    "_Server", [(name, str | int | bool | None, None) for name in SERVER], forbid_unknown_fields=True, frozen=True
)


class _Redis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str | None = None
    prefix: str | None = None
    timeout: str | int | float | None = None


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    server: Row = msgspec.field(default_factory=dict)
    keys: list[Row] = msgspec.field(default_factory=list)
    classes: Row = msgspec.field(default_factory=dict)
    policies: list[Row] = msgspec.field(default_factory=list)
    rates: list[Row] = msgspec.field(default_factory=list)
    redis: Row = msgspec.field(default_factory=dict)
    upstreams: list[Row] = msgspec.field(default_factory=list)
    routing: dict[str, str] = msgspec.field(default_factory=dict)


KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "": _Tables.__struct_fields__,
    "[server]": SERVER,
    "[[keys]]": Key.__struct_fields__,
    "[[policies]]": Policy.__struct_fields__,
    "[[rates]]": Rates.__struct_fields__,
    "[redis]": _Redis.__struct_fields__,
    "[[upstreams]]": Upstream.__struct_fields__,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """What a file says. Values of `server` and `redis` are text as a flag would give it; absent ones are absent.

    `[redis] url` stands in `server` as `redis` too, so that flag and environment beat it.
    """

    server: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    keys: tuple[Key, ...] = ()
    classes: RetentionClasses = CLASSES
    policies: tuple[Policy, ...] = ()
    rates: tuple[Rates, ...] = ()
    redis: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    upstreams: tuple[Upstream, ...] = ()
    routing: Mapping[str, Routing] = field(default_factory=lambda: MappingProxyType({}))  # by model


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All that a gateway is told at its start."""

    settings: Settings
    file: FileConfig


def read_configuration(
    flags: Mapping[str, str | None], environ: Mapping[str, str], *, text: str | None = None
) -> Configuration:
    """Read the file that flag or environment names, if one does, and every setting over it.

    `text` is what the file holds, where that was read before.
    """
    given = origins(flags, environ)["config"].text
    path = None if given is None else Path(given)
    file = FileConfig() if path is None else parse_file(read_text(path) if text is None else text, path)
    settings = read_settings(flags, environ, file.server)
    if settings.open_tenants and file.keys:
        raise ConfigError(f"--open-tenants: {path} has [[keys]], which say who is who; leave one of the two out")
    return Configuration(settings=settings, file=file)


def redis_settings(configuration: Configuration, environ: Mapping[str, str]) -> RedisSettings | None:
    """Return the Redis to share state in, or None. Options come from the URL, else the environment, else the file."""
    file = {f"{ENVIRONMENT}_{part.upper()}": text for part, text in configuration.file.redis.items() if part != "url"}
    url = {ENVIRONMENT: configuration.settings.redis} if configuration.settings.redis else {}
    given = {name: text for name, text in environ.items() if text}
    try:
        return RedisSettings.from_environment(file | given | url)
    except StateRefused as error:
        raise ConfigError(str(error)) from error


def read_file(path: Path) -> FileConfig:
    """Read and check a configuration file. Raises ConfigError."""
    return parse_file(read_text(path), path)


def read_text(path: Path) -> str:
    """Read what a configuration file holds. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8") from error


def parse_file(text: str, path: Path) -> FileConfig:
    """Check what the file at `path` holds. Raises ConfigError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    try:
        return _checked(document)
    except _Wrong as wrong:
        raise ConfigError(f"{path}: {wrong}") from wrong


class _Wrong(ValueError):
    """A field that cannot stand as written."""

    def __init__(self, table: str, field_: str, problem: str) -> None:
        place = " ".join(part for part in (table, field_) if part)
        super().__init__(f"{place}: {problem}" if place else problem)


def _checked(document: Row) -> FileConfig:
    _refuse_secrets(document, "")
    tables = _convert(document, _Tables, "")
    classes = _classes(tables.classes)
    redis = _redis(tables.redis)
    server = _server(tables.server)
    if "url" in redis:
        if "redis" in server:
            raise _Wrong("[server]", "redis", "is said by [redis] url already; keep one of the two")
        server["redis"] = redis["url"]
    return FileConfig(
        server=MappingProxyType(server),
        keys=_keys(tables.keys),
        classes=classes,
        policies=_policies(tables.policies, classes),
        rates=_rates(tables.rates, classes),
        redis=MappingProxyType(redis),
        upstreams=_upstreams(tables.upstreams),
        routing=_routing(tables.routing),
    )


def _refuse_secrets(table: Row, name: str) -> None:
    """Refuse fields that are named like secrets, before anything could repeat their values."""
    for key, value in table.items():
        if key in SECRETS and not isinstance(value, dict | list):
            raise _Wrong(name, key, f"does not belong in a file; {SECRETS[key]}")
        if name == "" and isinstance(value, dict) and key != "classes":
            _refuse_secrets(value, f"[{key}]")
        if name == "" and isinstance(value, list):
            for place, entry in _entries(key, [entry for entry in value if isinstance(entry, dict)]):
                _refuse_secrets(entry, place)


def _entries(name: str, rows: list[Row]) -> Iterator[tuple[str, Row]]:
    """Go over an array of tables, each with its place in words; a line number is not to be had."""
    for number, row in enumerate(rows, 1):
        yield f"[[{name}]] entry {number}", row


def _server(table: Row) -> dict[str, str]:
    given = {name: str(value) for name, value in _given(_convert(table, _Server, "[server]"))}
    for name, text in given.items():
        _refuse_password("[server]", name, text)
        try:
            SETTINGS[name].parse(text)
        except ValueError as error:
            raise _Wrong("[server]", name, str(error)) from error
    return given


def _keys(rows: list[Row]) -> tuple[Key, ...]:
    keys = tuple(_convert(row, Key, place) for place, row in _entries("keys", rows))
    try:
        return Keyring(keys).keys
    except ValueError as error:
        raise _in_own_words("[[keys]]", error) from error


def _classes(table: Row) -> RetentionClasses:
    durations: dict[str, str] = {}
    for name, duration in table.items():
        if not isinstance(duration, str):
            raise _Wrong("[classes]", name, 'expected a duration such as "10m"')
        durations[name] = duration
        try:
            RetentionClasses.named({name: duration})
        except ValueError as error:
            raise _Wrong("[classes]", name, str(error).removeprefix(f"class {name!r}: ")) from error
    return RetentionClasses.named(durations)


def _policies(rows: list[Row], classes: RetentionClasses) -> tuple[Policy, ...]:
    policies: dict[str, Policy] = {}
    for place, row in _entries("policies", rows):
        _refuse_unknown(row, Policy.__struct_fields__, place)
        try:
            policy = parse_policy({"allowed_ttls": classes.durations()} | row, classes=classes)
            PolicySet(policies | {policy.name: policy})
        except PolicyRefused as error:
            allowed = f"; allowed: {error.allowed}" if error.allowed else ""
            raise _Wrong(place, error.field, error.problem + allowed) from error
        if policies.setdefault(policy.name, policy) is not policy:
            raise _Wrong(place, "name", f"{policy.name!r} is the name of an entry before")
    return tuple(policies.values())


def _rates(rows: list[Row], classes: RetentionClasses) -> tuple[Rates, ...]:
    rates: list[Rates] = []
    for place, row in _entries("rates", rows):
        one = _convert(row, Rates, place)
        try:
            named = {classes.label(classes.seconds(name)): by for name, by in one.write_multipliers.items()}
        except ValueError as error:
            raise _Wrong(place, "write_multipliers", f"a class is meant: {error}") from error
        rates.append(msgspec.structs.replace(one, write_multipliers=named))
        try:
            Prices(rates)
        except ValueError as error:
            raise _in_own_words(place, error) from error
    return tuple(rates)


def _redis(table: Row) -> dict[str, str]:
    given = {name: str(value) for name, value in _given(_convert(table, _Redis, "[redis]"))}
    if "url" in given:
        _refuse_password("[redis]", "url", given["url"])
        try:
            parse_redis(given["url"])
        except ValueError as error:
            raise _Wrong("[redis]", "url", str(error)) from error
    try:
        RedisSettings.from_parts({"timeout": given.get("timeout", "")}, secret="unused")  # noqa: S106 - not opened
    except StateRefused as error:
        raise _Wrong("[redis]", "timeout", str(error).removeprefix("timeout: ")) from error
    return given


def _upstreams(rows: list[Row]) -> tuple[Upstream, ...]:
    upstreams: dict[str, Upstream] = {}
    for place, row in _entries("upstreams", rows):
        one = _convert(row, Upstream, place)
        if upstreams.setdefault(one.name, one) is not one:
            raise _Wrong(place, "name", f"{one.name!r} is the name of an entry before")
    return tuple(upstreams.values())


def _routing(table: dict[str, str]) -> Mapping[str, Routing]:
    for model, policy in table.items():
        if policy not in get_args(Routing):
            raise _Wrong("[routing]", model, f"{policy!r} is none of {', '.join(get_args(Routing))}")
    return MappingProxyType({model: cast("Routing", policy) for model, policy in table.items()})


def _refuse_password(table: str, name: str, url: str) -> None:
    try:
        password = urlsplit(url).password if "://" in url else None
    except ValueError:  # no URL at all, which the setting's own reading says better
        return
    if password:
        advice = "set KEEPWARM_REDIS_PASSWORD, or give the whole URL in KEEPWARM_REDIS"
        raise _Wrong(table, name, f"the password does not belong in a file; {advice}")


def _given(values: Any) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in msgspec.structs.asdict(values).items() if value is not None)


def _convert(value: Row, kind: type[_T], table: str) -> _T:
    """Return the table as this type, or say what is wrong in the operator's words."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        _refuse_unknown(value, getattr(kind, "__struct_fields__", ()), table)
        if isinstance(error.__cause__, ValueError):
            raise _in_own_words(table, error.__cause__) from error
        _refuse(table, error)


def _in_own_words(table: str, error: ValueError) -> _Wrong:
    """Return what a key or a ring of keys said, which is `field: problem`."""
    name, _, problem = str(error).partition(": ")
    return _Wrong(table, name, problem)


def _refuse(table: str, error: msgspec.ValidationError) -> NoReturn:
    match = _PROBLEM.fullmatch(str(error))
    assert match is not None, "the pattern takes any text"
    raise _Wrong(table, match["field"] or "", match["problem"]) from error


def _refuse_unknown(row: Row, known: tuple[str, ...], table: str) -> None:
    """Refuse a field that this table does not have, with the one that was most likely meant."""
    for name in row:
        if name in known:
            continue
        here = nearest(name, known)
        elsewhere = ((other, nearest(name, fields)) for other, fields in KNOWN.items() if other)
        other, guess = next((pair for pair in elsewhere if pair[1]), ("", None))
        head = table.partition(" ")[0]
        if here:
            hint = f"did you mean {here!r}{f' in {head}' if head else ''}?"
        elif guess:
            hint = f"did you mean {guess!r} in {other}?"
        else:
            hint = f"known are {', '.join(known)}"
        raise _Wrong(table, name, f"is not known; {hint}")
