"""The operators' API in JSON: bodies in, answers out. Pure: no HTTP, no clock, no store.

Rule: what cannot be understood is refused naming the field and what fits it, and a misspelt field is never passed over:
a filter that went unread would forget too much. Answers name tenants and never hold text or token ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from engine.operator_messages import Changed, EngineStats, Entries, EntryView, Histo, Tally
from gateway.api.json_body import decode
from gateway.errors import BadRequest, GatewayError
from prefix_store.classes import RetentionClasses, nearest
from prefix_store.policy import Policy
from prefix_store.store import Entry, Json

NOTHING = Tally()
FILTERS = ("tenant", "model", "class", "older_than", "request")
NUMBER_MAX = 2**63 - 1

Q = TypeVar("Q", bound=msgspec.Struct)

_PLACE: Final = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.?(?P<field>[^`]*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"missing required field `(?P<field>[^`]*)`")
_OBJECT: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class AdminRefused(GatewayError):
    """The request cannot be done as written; `field` names what is wrong, `allowed` what fits it."""

    def __init__(self, message: str, *, field: str = "", allowed: str = "") -> None:
        super().__init__(message)
        self.field, self.allowed = field, allowed


class PurgeBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"klass": "class"}):
    """What to forget: entries that every given filter matches. `all` stands for no filter.

    `request` is a chat body: what its prompt alone uses and everything that continues it, of one tenant.
    """

    tenant: str | None = None
    model: str | None = None
    klass: str | None = None
    older_than: str | None = None
    request: dict[str, Any] | None = None
    all: bool = False
    dry_run: bool = False


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries to show."""

    offset: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    tenant: str | None = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of the audit trail to show, newest first."""

    offset: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DeleteQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which version of a policy is to go."""

    version: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


def fields_of(body: bytes) -> dict[str, Any]:
    """Read a JSON object. Raises AdminRefused."""
    try:
        fields: dict[str, Any] = decode(_OBJECT, body)
    except BadRequest as error:
        raise AdminRefused(str(error), field=error.param or "") from error
    return fields


def purge_body(body: bytes, classes: RetentionClasses) -> PurgeBody:
    """Read what to forget. Raises AdminRefused naming the field; an empty filter is refused."""
    given = fields_of(body)
    _known(given, PurgeBody.__struct_encode_fields__)
    purge = _convert(given, PurgeBody, strict=True)
    filters = [name for name in FILTERS if given.get(name) is not None]
    if purge.all and filters:
        raise AdminRefused("all: means everything, so no filter goes with it", field="all", allowed="no other filter")
    if not purge.all and not filters:
        fits = f"one or more of {', '.join(FILTERS)}; or all: true"
        raise AdminRefused("nothing says what to purge", allowed=fits)
    for field, text in (("class", purge.klass), ("older_than", purge.older_than)):
        if text is not None:
            try:
                classes.seconds(text)
            except ValueError as error:
                fits = f"a duration such as 5m, or one of {', '.join(classes.lengths_s)}"
                raise AdminRefused(f"{field}: {error}", field=field, allowed=fits) from error
    return purge


def query(given: Mapping[str, str], kind: type[Q]) -> Q:
    """Read a query string. Raises AdminRefused naming the field."""
    _known(given, kind.__struct_encode_fields__)
    return _convert(dict(given), kind, strict=False)


def body(given: bytes, kind: type[Q]) -> Q:
    """Read a body. Raises AdminRefused naming the field."""
    fields = fields_of(given)
    _known(fields, kind.__struct_encode_fields__)
    return _convert(fields, kind, strict=True)


def changed(change: Changed, *, gone: str, kept: str) -> dict[str, Any]:
    """Shape what was or would be done, by tenant."""
    tenants = sorted({*change.gone, *change.kept})
    return {
        "tenants": {
            tenant: {
                gone: msgspec.to_builtins(change.gone.get(tenant, NOTHING)),
                kept: msgspec.to_builtins(change.kept.get(tenant, NOTHING)),
            }
            for tenant in tenants
        },
        "leased_tokens": change.leased_tokens,
    }


def policy(shown: Policy) -> dict[str, Any]:
    """Shape a policy: exactly what a PUT takes."""
    plain: dict[str, Any] = msgspec.to_builtins(shown)
    return plain | {"allowed_ttls": list(shown.allowed_ttls)}


def page(entries: Entries, wanted: PageQuery) -> dict[str, Any]:
    """Shape one page of entries."""
    return {
        "total": entries.total,
        "offset": wanted.offset,
        "entries": [_entry(entry) for entry in entries.entries],
    }


def _entry(entry: EntryView) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(entry)
    plain["class"] = plain.pop("klass")
    for field in ("left_s", "age_s", "idle_s"):
        plain[field] = round(plain[field], 3)
    return plain


def stats(engine: EngineStats) -> dict[str, Any]:
    """Shape the engine's snapshot, zeros and all."""
    return {
        name: msgspec.structs.asdict(value) if isinstance(value, Histo) else value
        for name, value in msgspec.structs.asdict(engine).items()
    }


def audit_line(entry: Entry) -> dict[str, Any]:
    """Shape one line of the audit trail."""
    plain: dict[str, Any] = msgspec.to_builtins(entry)
    return plain


def filter_of(purge: PurgeBody) -> Json:
    """Say for the audit trail what was purged; of a request only that there was one."""
    plain: Json = msgspec.to_builtins(purge)
    return {**plain, "request": True} if "request" in plain else plain


def _known(given: Mapping[str, object], fields: tuple[str, ...]) -> None:
    for name in given:
        if name not in fields:
            guess = nearest(name, fields)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise AdminRefused(f"{name} is not a field{hint}", field=name, allowed=", ".join(fields) or "no field")


def _convert(given: Mapping[str, Any], kind: type[Q], *, strict: bool) -> Q:
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        match = _PLACE.match(str(error))
        assert match is not None, "the pattern takes any text"
        missing = _MISSING.search(match["problem"])
        field = missing["field"] if missing else match["field"] or ""
        problem = "is missing" if missing else match["problem"]
        raise AdminRefused(f"{field}: {problem}" if field else problem, field=field) from error
