"""The operators' endpoints on aiohttp: policies, previews, purges, entries, retention, tree, stats, audit, usage.

Shapes are `shapes`' and `views`', decisions are the store's and the engine's.
Rule: an answer is given when what it says is so: a policy is in the store and obeyed by the engine that runs, a purge
is done. Whatever an operator can put right is said with its field; nothing here repeats a prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec
import structlog
from aiohttp import web

from engine.errors import EngineUnavailable
from gateway import patience
from gateway.admin import fleet, shapes, usage, views
from gateway.admin.advice import advice
from gateway.admin.answers import operator_of
from gateway.admin.answers import told as _told
from gateway.admin.shapes import AdminRefused, AuditQuery, DeleteQuery, PageQuery, PurgeBody
from gateway.admin.views import RetentionQuery, TreeQuery
from gateway.api import openai_chat
from gateway.errors import BadRequest, UnknownModel
from gateway.keyring import EVERYBODY
from gateway.keys import BACKEND, KEYRING, POLICIES, RECALL, RENDERER, TALLY, TIMELINE
from gateway.patience import ASK_AGAIN, NoAnswer, in_time
from prefix_store.policy import Policy, PolicySet, parse_policy
from prefix_store.store import Entry, Json, StoreUnavailable, UnknownPolicy

DEFAULT_TENANT = "default"
MAY_BE_DONE = "It may still be purged."

log = structlog.get_logger("gateway.admin")


def add_routes(app: web.Application) -> None:
    """Put the operators' endpoints on the admin application."""
    policies = "/admin/v1/policies"
    app.router.add_get(policies, _told(list_policies))
    app.router.add_post(f"{policies}/preview", _told(preview_policy))
    app.router.add_get(f"{policies}/{{name}}", _told(get_policy))
    app.router.add_put(f"{policies}/{{name}}", _told(put_policy))
    app.router.add_delete(f"{policies}/{{name}}", _told(delete_policy))
    app.router.add_post("/admin/v1/purge", _told(purge))
    app.router.add_get("/admin/v1/entries", _told(entries))
    app.router.add_get("/admin/v1/retention", _told(retention))
    app.router.add_get("/admin/v1/tree", _told(tree))
    app.router.add_get("/admin/v1/stats", _told(stats))
    app.router.add_get("/admin/v1/audit", _told(audit))
    app.router.add_get("/admin/v1/usage", _told(usage.usage))
    app.router.add_get("/admin/v1/fleet", _told(fleet.fleet))
    app.router.add_get("/admin/v1/advice", _told(advice))


async def list_policies(request: web.Request) -> web.Response:
    """GET /admin/v1/policies: all of them, `default` first."""
    newest = await request.app[POLICIES].state.read()
    return web.json_response({"policies": [shapes.policy(policy) for policy in newest.policies]})


async def get_policy(request: web.Request) -> web.Response:
    """GET /admin/v1/policies/{name}: what a PUT takes."""
    newest = await request.app[POLICIES].state.read()
    return web.json_response(shapes.policy(_named(newest.policies, request.match_info["name"])))


async def put_policy(request: web.Request) -> web.Response:
    """PUT /admin/v1/policies/{name}: the whole policy over the version it states, 0 for a new one."""
    policies, by = request.app[POLICIES], operator_of(request)
    fields = shapes.fields_of(await request.read())
    wanted = parse_policy(fields, name=request.match_info["name"], classes=policies.classes)
    stored = await policies.put(wanted, by=by)
    await request.app[TIMELINE].look()
    return web.json_response(shapes.policy(stored))


async def delete_policy(request: web.Request) -> web.Response:
    """DELETE /admin/v1/policies/{name}?version=N."""
    policies, name = request.app[POLICIES], request.match_info["name"]
    version = shapes.query(request.query, DeleteQuery).version
    await policies.delete(name, version=version, by=operator_of(request))
    await request.app[TIMELINE].look()
    return web.json_response({"deleted": name, "version": version})


async def preview_policy(request: web.Request) -> web.Response:
    """POST /admin/v1/policies/preview: a policy, or {"delete": name}; says what would expire and what stays now."""
    policies = request.app[POLICIES]
    fields = shapes.fields_of(await request.read())
    known = (await policies.state.read()).policies
    if fields.keys() == {"delete"} and isinstance(fields["delete"], str):
        wanted = known.removing(_named(known, fields["delete"]).name)
    else:
        wanted = known.adding(parse_policy(fields, classes=policies.classes))
    foreseen = await in_time(policies.preview(wanted), patience.LOOK_S)
    return web.json_response(shapes.changed(foreseen, gone="expire", kept="keep"))


async def purge(request: web.Request) -> web.Response:
    """POST /admin/v1/purge: forget entries and say how many there were, or with dry_run how many there are.

    A purge of all that a tenant has, or of everything, forgets the fingerprints too. What is forgotten is forgotten:
    should the audit trail fail after it, the answer still has the counts and says `"audited": false`. A purge that the
    engine did not confirm in time may still be done, so it is audited as that.
    """
    policies, by = request.app[POLICIES], operator_of(request)
    wanted = shapes.purge_body(await request.read(), policies.classes)
    asked = request.app[BACKEND].purge(**await _filter(request, wanted))
    limit_s, otherwise = (patience.LOOK_S, ASK_AGAIN) if wanted.dry_run else (patience.CHANGE_S, MAY_BE_DONE)
    try:
        change = await in_time(asked, limit_s, otherwise=otherwise)
    except NoAnswer:
        if not wanted.dry_run:
            await _audited(request, wanted, {"confirmed": False}, by)
        raise
    shaped = shapes.changed(change, gone="purged", kept="kept")
    if not wanted.dry_run:
        await _forget(request, wanted)
    audited = not wanted.dry_run and await _audited(request, wanted, {"tenants": shaped["tenants"]}, by)
    return web.json_response(shaped | {"dry_run": wanted.dry_run, "audited": audited})


async def _forget(request: web.Request, wanted: PurgeBody) -> None:
    """Forget what is remembered of requests whose every entry is purged."""
    tenants: Iterable[str] = ()
    if wanted.all:
        known = {*request.app[KEYRING].tenants, EVERYBODY}
        tenants = sorted(known | set(request.app[RECALL].tenants))
    elif wanted.tenant is not None and shapes.filter_of(wanted).keys() == {"tenant"}:
        tenants = (wanted.tenant,)
    for tenant in tenants:
        if not await request.app[RECALL].forget(tenant):
            log.warning("fingerprints_forgotten_here_only", tenant=tenant)


async def _filter(request: web.Request, wanted: PurgeBody) -> dict[str, object]:
    """Say to the engine what is meant. A request's prompt is one tenant's: `default`'s where none is named."""
    classes = request.app[POLICIES].classes
    fields: dict[str, object] = {"tenant": wanted.tenant, "model": wanted.model, "preview": wanted.dry_run}
    if wanted.klass is not None:
        fields["klass"] = classes.label(classes.seconds(wanted.klass))
    if wanted.older_than is not None:
        fields["older_than_s"] = classes.seconds(wanted.older_than)
    if wanted.request is not None:
        fields |= {"tenant": wanted.tenant or DEFAULT_TENANT} | await _prefix(request, wanted.request)
    return fields


async def _prefix(request: web.Request, body: dict[str, object]) -> dict[str, object]:
    """Render a chat body as it would be sent; its tokens are the prefix that is meant."""
    if RENDERER not in request.app:
        raise EngineUnavailable(request.app[BACKEND].detail)
    try:
        ask = openai_chat.ask_of(openai_chat.parse(msgspec.json.encode(body)), "purge")
        if ask.model != request.app[BACKEND].model:
            raise UnknownModel(ask.model)
        prompt = await request.app[RENDERER].prompt(ask)
    except BadRequest as error:
        field = f"request.{error.param}" if error.param else "request"
        raise AdminRefused(str(error), field=field, allowed="a body of POST /v1/chat/completions") from error
    return {"prefix": prompt.tokens, "partition": ask.partition, "rendering": request.app[RENDERER].identity}


async def _audited(request: web.Request, wanted: PurgeBody, after: Json, by: str) -> bool:
    """Write a purge into the audit trail; say whether that went well."""
    before = shapes.filter_of(wanted)
    line = Entry(by=by, at=time.time(), what="purge", subject=wanted.tenant or "", before=before, after=after)
    try:
        await request.app[POLICIES].state.record(line)
    except StoreUnavailable as error:
        log.warning("purge_not_audited", reason=str(error), filter=before)
        return False
    await request.app[TIMELINE].look()
    return True


async def entries(request: web.Request) -> web.Response:
    """GET /admin/v1/entries?offset&limit&tenant."""
    wanted = shapes.query(request.query, PageQuery)
    asked = request.app[BACKEND].entries(offset=wanted.offset, limit=wanted.limit, tenant=wanted.tenant)
    return web.json_response(shapes.page(await in_time(asked, patience.LOOK_S), wanted))


async def retention(request: web.Request) -> web.Response:
    """GET /admin/v1/retention: what is kept by class, age and deadline, and what became of the rest."""
    shapes.query(request.query, RetentionQuery)
    backend = request.app[BACKEND]
    if (card := backend.card) is None:
        raise EngineUnavailable(backend.detail)
    view, stats = await in_time(asyncio.gather(backend.retention(), backend.stats()), patience.LOOK_S)
    return web.json_response(views.retention(view, stats, card, request.app[POLICIES].classes))


async def tree(request: web.Request) -> web.Response:
    """GET /admin/v1/tree?limit&tenant: the largest nodes of the tree."""
    wanted = shapes.query(request.query, TreeQuery)
    asked = request.app[BACKEND].tree(limit=wanted.limit, tenant=wanted.tenant)
    return web.json_response(views.tree(await in_time(asked, patience.LOOK_S)))


async def stats(request: web.Request) -> web.Response:
    """GET /admin/v1/stats: this engine's snapshot, how the store fares, and the sums of all gateways by tenant."""
    policies = request.app[POLICIES]
    engine = await in_time(request.app[BACKEND].stats(), patience.LOOK_S)
    state = {"degraded": policies.state.degraded, "policies": len(policies.known)}
    sums = await request.app[TALLY].sums()
    return web.json_response({"engine": shapes.stats(engine), "state": state, "tenants": sums})


async def audit(request: web.Request) -> web.Response:
    """GET /admin/v1/audit?offset&limit: newest first."""
    wanted = shapes.query(request.query, AuditQuery)
    lines = await request.app[POLICIES].state.audit(limit=wanted.limit, skip=wanted.offset)
    return web.json_response({"lines": [shapes.audit_line(line) for line in lines]})


def _named(known: PolicySet, name: str) -> Policy:
    if (policy := known.get(name)) is None:
        raise UnknownPolicy(name)
    return policy
