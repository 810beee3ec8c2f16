"""`keepwarm config check`: what a configuration file comes to, for people and for programs.

Reads through `gateway.config_file` alone, so that what passes here is what `keepwarm serve` takes.
Rule: keys are shown by id and tenant, of an upstream's key whether its variable is set; digests, passwords and the
admin key are not shown at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.config import SETTINGS, Origin, origins
from gateway.config_file import Configuration, read_configuration
from gateway.errors import ConfigError
from gateway.money import Rates
from gateway.relay.upstream import Upstream
from prefix_store.policy import Policy
from prefix_store.redis_settings import RedisSettings
from prefix_store.retention import format_duration

UPSTREAM_COLUMNS: Final = ("name", "kind", "base_url", "models", "apis", "weight", "key_env", "key")


def check(file: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read a configuration and return it as JSON has it. Raises ConfigError."""
    flags = {"config": None if file is None else str(file)}
    named = origins(flags, environ)["config"].text
    if named is None:
        raise ConfigError("name a file to check, or set KEEPWARM_CONFIG")
    configuration = read_configuration(flags, environ)
    return _described(named, configuration, environ, origins(flags, environ, configuration.file.server))


def _described(
    name: str, configuration: Configuration, environ: Mapping[str, str], found: Mapping[str, Origin]
) -> dict[str, Any]:
    file = configuration.file
    return {
        "file": name,
        "server": {
            setting: {"value": _shown(setting, origin), "source": origin.source}
            for setting, origin in found.items()
            if setting != "config"
        },
        "keys": [{"id": key.id, "tenant": key.tenant} for key in file.keys],
        "classes": {klass: format_duration(length_s) for klass, length_s in file.classes.lengths_s.items()},
        "policies": [msgspec.to_builtins(policy) for policy in file.policies],
        "rates": [msgspec.to_builtins(rates) for rates in file.rates],
        "redis": {part: text for part, text in file.redis.items() if part != "url"},
        "upstreams": [_upstream(one, environ) for one in file.upstreams],
        "routing": dict(file.routing),
    }


def _upstream(upstream: Upstream, environ: Mapping[str, str]) -> dict[str, Any]:
    """Describe an upstream; of its key, whether the variable is set."""
    told: dict[str, Any] = msgspec.to_builtins(upstream)
    key = None if upstream.key_env is None else "set" if environ.get(upstream.key_env) else "not set"
    return told | {"apis": list(upstream.endpoints), "salt": upstream.salted, "key": key}


def _shown(setting: str, origin: Origin) -> str | None:
    """Return a setting's text, or of a secret only what may be seen."""
    if origin.text is None or not SETTINGS[setting].secret:
        return origin.text
    return RedisSettings.from_url(origin.text, secret="unused").where if setting == "redis" else "set"  # noqa: S106


def show(checked: Mapping[str, Any], console: Console) -> None:
    """Print what `check` returned as tables."""
    console.print(f"{checked['file']} can be used.", markup=False, highlight=False)
    server = [(name, given["value"] or "-", given["source"]) for name, given in checked["server"].items()]
    server += [(f"redis {part}", text, f"[redis] {part}") for part, text in checked["redis"].items()]
    console.print(_table("Server", ("setting", "value", "from"), server))
    keys = [(key["id"], key["tenant"]) for key in checked["keys"]]
    console.print(_table("Keys", ("id", "tenant"), keys or [("none: no key is asked for", "default")]))
    console.print(_table("Classes", ("name", "duration"), list(checked["classes"].items())))
    if checked["policies"]:
        columns = tuple(column for column in Policy.__struct_fields__ if column != "version")
        policies = [tuple(_cell(policy[column]) for column in columns) for policy in checked["policies"]]
        console.print(_table("Policies", columns, policies))
    if checked["rates"]:
        rates = [tuple(_cell(one[column]) for column in Rates.__struct_fields__) for one in checked["rates"]]
        console.print(_table("Rates, a million tokens", Rates.__struct_fields__, rates))
    if checked["upstreams"]:
        upstreams = [tuple(_cell(one[column]) for column in UPSTREAM_COLUMNS) for one in checked["upstreams"]]
        console.print(_table("Upstreams", UPSTREAM_COLUMNS, upstreams))
    if checked["routing"]:
        console.print(_table("Routing", ("model", "policy"), list(checked["routing"].items())))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name}={part}" for name, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
