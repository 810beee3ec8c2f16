"""The operators' commands: `keepwarm policy …`, `purge`, `entries`, `stats`, `usage`, `mark`, `upstreams`, `reload`.

Owns words, options and printing; what a command does is done by the admin API of a running gateway.
Rule: with `--json` the API's answer is printed unchanged, so that `policy set --from` takes what `policy get --json`
gives; what cannot be done is one line on stderr with exit code 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, RenderableType

from gateway.admin import tables
from gateway.admin.client import AdminClient, CallFailed

operators = typer.Typer(no_args_is_help=True)
policy_app = typer.Typer(
    name="policy", help="Policies: how long prefixes are kept, and for whom.", no_args_is_help=True
)
operators.add_typer(policy_app)

NOT_FOUND = 404
PAGE_WIDTH = 160  # columns of a table that no terminal bounds
TEXT_FIELDS = frozenset({"name", "model", "tenant", "default_ttl", "max_ttl", "mode"})

Url = Annotated[str, typer.Option("--admin-url", help="The gateway's admin port; its key is KEEPWARM_ADMIN_KEY.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's answer as JSON.")]
Name = Annotated[str, typer.Argument(help="The policy's name.")]
Fields = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FIELD=VALUE",
        help="Such as tenant=acme default_ttl=1h allowed_ttls=5m,1h max_ttl=1h; null for none.",
    ),
]
From = Annotated[
    Path | None,
    typer.Option("--from", help="JSON file to begin with instead of the policy as it stands; - is stdin."),
]

HERE = "http://127.0.0.1:8001"


@policy_app.command("list")
def list_policies(*, json: AsJson = False, admin_url: Url = HERE) -> None:
    """List the policies; the most specific one governs a request."""
    with _gateway(admin_url) as gateway:
        _show(gateway.call("GET", "policies"), tables.policies, json=json)


@policy_app.command("get")
def get_policy(name: Name, *, json: AsJson = False, admin_url: Url = HERE) -> None:
    """Show one policy."""
    with _gateway(admin_url) as gateway:
        _show(gateway.call("GET", "policies", name), tables.policy, json=json)


@policy_app.command("set")
def set_policy(
    name: Name, fields: Fields = None, *, file: From = None, json: AsJson = False, admin_url: Url = HERE
) -> None:
    """Change a policy, or make one. What is not given stays; a change made by someone else meanwhile is not undone."""
    with _gateway(admin_url) as gateway:
        wanted = _wanted(gateway, name, fields or [], file)
        _show(gateway.call("PUT", "policies", name, body=wanted), tables.policy, json=json)


@policy_app.command("delete")
def delete_policy(
    name: Name,
    *,
    version: Annotated[int | None, typer.Option(help="Delete only this version; else the one that stands.")] = None,
    json: AsJson = False,
    admin_url: Url = HERE,
) -> None:
    """Delete a policy; requests it governed fall to the next most specific one."""
    with _gateway(admin_url) as gateway:
        stated = gateway.call("GET", "policies", name)["version"] if version is None else version
        answer = gateway.call("DELETE", "policies", name, query={"version": stated})
        _show(answer, lambda deleted: f"deleted {deleted['deleted']}", json=json)


@policy_app.command("preview")
def preview_policy(
    name: Name,
    fields: Fields = None,
    *,
    file: From = None,
    delete: Annotated[bool, typer.Option("--delete", help="Preview the policy's deletion.")] = False,
    json: AsJson = False,
    admin_url: Url = HERE,
) -> None:
    """Say what `policy set` or `policy delete` would expire and keep now. Changes nothing."""
    if delete and (fields or file):
        raise typer.BadParameter("goes with neither fields nor --from", param_hint="--delete")
    with _gateway(admin_url) as gateway:
        body = {"delete": name} if delete else _wanted(gateway, name, fields or [], file)
        answer = gateway.call("POST", "policies", "preview", body=body)
        _show(answer, lambda change: tables.changed(change, gone="expire", kept="keep"), json=json)


@operators.command()
def purge(
    *,
    tenant: Annotated[str | None, typer.Option(help="Entries of this tenant.")] = None,
    model: Annotated[str | None, typer.Option(help="Entries of this model.")] = None,
    klass: Annotated[str | None, typer.Option("--class", help="Entries of this retention class.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Entries not used for this long, such as 10m.")] = None,
    request: Annotated[
        Path | None,
        typer.Option(help="File with a chat completion's body: its prompt and all that continues it; - is stdin."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All entries of everyone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    json: AsJson = False,
    admin_url: Url = HERE,
) -> None:
    """Forget entries that match every given filter."""
    with _gateway(admin_url) as gateway:
        given: dict[str, object] = {
            "tenant": tenant,
            "model": model,
            "class": klass,
            "older_than": older_than,
            "request": None if request is None else _read(request),
        }
        flags = {"all": everything, "dry_run": dry_run}
        body = {key: value for key, value in given.items() if value is not None} | flags
        answer = gateway.call("POST", "purge", body=body)
        gone = "would be purged" if dry_run else "purged"
        _show(answer, lambda change: tables.changed(change, gone="purged", kept="kept", head=gone), json=json)
        if not dry_run and not answer["audited"]:
            typer.echo("keepwarm: purged, but the audit trail could not be written", err=True)


@operators.command()
def entries(
    *,
    tenant: Annotated[str | None, typer.Option(help="Entries of this tenant only.")] = None,
    offset: Annotated[int, typer.Option(help="How many to skip.")] = 0,
    limit: Annotated[int, typer.Option(help="How many to show, at most 1000.")] = 100,
    json: AsJson = False,
    admin_url: Url = HERE,
) -> None:
    """Show what is kept: never text."""
    with _gateway(admin_url) as gateway:
        answer = gateway.call("GET", "entries", query={"offset": offset, "limit": limit, "tenant": tenant})
        _show(answer, tables.entries, json=json)


@operators.command()
def stats(*, json: AsJson = False, admin_url: Url = HERE) -> None:
    """Show the engine's numbers and how the shared state fares."""
    with _gateway(admin_url) as gateway:
        _show(gateway.call("GET", "stats"), tables.stats, json=json)


@operators.command()
def upstreams(*, json: AsJson = False, admin_url: Url = HERE) -> None:
    """Show the upstreams: state, load, what they are believed to hold and what they delivered."""
    with _gateway(admin_url) as gateway:
        _show(gateway.call("GET", "upstreams"), tables.upstreams, json=json)


@operators.command()
def reload(*, json: AsJson = False, admin_url: Url = HERE) -> None:
    """Have the gateway read [[upstreams]] and [routing] from its configuration file again."""
    with _gateway(admin_url) as gateway:
        _show(gateway.call("POST", "reload"), tables.reloaded, json=json)


@operators.command()
def mark(
    title: Annotated[str, typer.Argument(help='What was changed, such as "deployed 1.4".')],
    *,
    json: AsJson = False,
    admin_url: Url = HERE,
) -> None:
    """Mark now on the time axis of every chart, so that a change of the numbers stands beside its cause."""
    with _gateway(admin_url) as gateway:
        _show(gateway.call("POST", "events", body={"title": title}), tables.happening, json=json)


@operators.command()
def usage(
    *,
    begin: Annotated[str, typer.Option("--from", help="Since when: a time, or a span back such as -7d.")] = "-1h",
    end: Annotated[str | None, typer.Option("--to", help="Until when; now when not given.")] = None,
    by: Annotated[str, typer.Option(help="Apart by tenant, key, model, api or upstream; several with commas.")] = "",
    bucket: Annotated[str, typer.Option(help="Apart by time: 1m, 5m, 15m, 1h, 6h, 1d or auto.")] = "none",
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    key: Annotated[str | None, typer.Option(help="Of the key with this id only.")] = None,
    model: Annotated[str | None, typer.Option(help="Of this model only.")] = None,
    api: Annotated[str | None, typer.Option(help="Of this API only: chat, completions, responses, messages.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Of this upstream only.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every number as CSV.")] = False,
    json: AsJson = False,
    admin_url: Url = HERE,
) -> None:
    """Show what was read, written and missed over time, by whom, and what it saved."""
    if as_csv and json:
        raise typer.BadParameter("goes with no --json", param_hint="--csv")
    query: dict[str, object] = {"from": begin, "to": end, "bucket": bucket, "group_by": by}
    query |= {"tenant": tenant, "key": key, "model": model, "api": api, "upstream": upstream}
    with _gateway(admin_url) as gateway:
        if as_csv:
            typer.echo(gateway.text("usage", query=query | {"format": "csv"}), nl=False)
            return
        _show(gateway.call("GET", "usage", query=query), tables.usage, json=json)


@contextmanager
def _gateway(url: str) -> Iterator[AdminClient]:
    """Give the gateway at that address; whatever fails inside ends the command with one line."""
    try:
        yield AdminClient(url, os.environ.get("KEEPWARM_ADMIN_KEY") or None)
    except CallFailed as error:
        typer.echo(f"keepwarm: {error}", err=True)
        raise typer.Exit(1) from error


def _wanted(gateway: AdminClient, name: str, fields: list[str], file: Path | None) -> dict[str, Any]:
    """Return the whole policy that is meant: the one in the file or as it stands, with these fields changed."""
    wanted = _standing(gateway, name) if file is None else _read(file)
    for given in fields:
        field, equals, text = given.partition("=")
        if not equals:
            raise CallFailed(f"{given!r} is not of the form FIELD=VALUE, such as default_ttl=1h")
        wanted[field] = _value(field, text)
    wanted.setdefault("name", name)
    return wanted


def _standing(gateway: AdminClient, name: str) -> dict[str, Any]:
    try:
        return gateway.call("GET", "policies", name)
    except CallFailed as error:
        if error.status != NOT_FOUND:
            raise
        return {}


def _value(field: str, text: str) -> object:
    """Read what was typed as JSON has it: text where the field is text, a list of lengths, a number; else as typed."""
    if text == "null":
        return None
    if field == "allowed_ttls":
        return [part.strip() for part in text.split(",") if part.strip()]
    if field in TEXT_FIELDS:
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def _read(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file or stdin."""
    try:
        read: object = msgspec.json.decode(sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CallFailed(f"{file}: {error}") from error
    if not isinstance(read, dict):
        raise CallFailed(f"{file}: not a JSON object")
    return read


def _show(answer: dict[str, Any], table: Callable[[dict[str, Any]], RenderableType], *, json: bool) -> None:
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=PAGE_WIDTH, highlight=False)
    console.print(table(answer))
