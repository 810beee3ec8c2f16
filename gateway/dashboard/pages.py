"""The operators' page on aiohttp: `/` and `/static/…` of the admin listener.

Owns nothing that changes: the files are read and compressed once, before the first request. They hold no data, so they
are handed out without the admin key; everything they show comes from addresses that ask for it.
Rules: only files that were there at the start are served, by exact name; nothing on the page may run or load anything
from elsewhere.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Final

from aiohttp import web

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

INDEX: Final = "index.html"
TYPES: Final = MappingProxyType(
    {
        "css": "text/css; charset=utf-8",
        "html": "text/html; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "svg": "image/svg+xml",
        "LICENSE": "text/plain; charset=utf-8",
    }
)
HEADERS: Final = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Cache-Control": "no-cache",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
)
ZSTD_LEVEL: Final = 15
_NOTHING: Final = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*$")


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it goes out: by content coding, with a tag that changes when it does."""

    content_type: str
    tag: str
    bodies: Mapping[str, bytes]  # "", "gzip", "zstd"


ASSETS: web.AppKey[Mapping[str, Asset]] = web.AppKey("dashboard_assets", Mapping[str, Asset])


def add_routes(app: web.Application) -> None:
    """Put the page on the admin application."""
    app.on_startup.append(_read)
    app.router.add_get("/", page)
    app.router.add_get("/static/{path:.+}", static)


async def page(request: web.Request) -> web.Response:
    """GET /: the operators' page."""
    return _answer(request, request.app[ASSETS][INDEX])


async def static(request: web.Request) -> web.Response:
    """GET /static/{path}: a script, a style or the licence of the page."""
    found = request.app[ASSETS].get(request.match_info["path"])
    if found is None:
        raise web.HTTPNotFound
    return _answer(request, found)


@cache
def assets() -> Mapping[str, Asset]:
    """Read and compress every file of the page, by its path below `static`."""
    return MappingProxyType(
        {name: _asset(name, body) for name, body in _walk(files("gateway.dashboard") / "static", "")}
    )


async def _read(app: web.Application) -> None:
    app[ASSETS] = await asyncio.to_thread(assets)


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif _suffix(entry.name) in TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _suffix(name: str) -> str:
    """Return what tells a file's kind: its extension, or its name where it has none."""
    return name.rpartition("/")[2].rpartition(".")[2]


def _asset(name: str, body: bytes) -> Asset:
    bodies = {"": body, "gzip": gzip.compress(body, 9, mtime=0), "zstd": zstd.compress(body, ZSTD_LEVEL)}
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    return Asset(TYPES[_suffix(name)], tag, MappingProxyType(bodies))


def _answer(request: web.Request, asset: Asset) -> web.Response:
    coding = _coding(request.headers.get("Accept-Encoding", ""))
    tag = f'"{asset.tag}-{coding or "plain"}"'
    headers = {**HEADERS, "ETag": tag}
    if tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    if coding:
        headers["Content-Encoding"] = coding
    return web.Response(body=asset.bodies[coding], headers=headers | {"Content-Type": asset.content_type})


def _coding(accepted: str) -> str:
    """Choose a content coding that the browser reads; one with q=0 it does not."""
    read = {name.strip().lower() for name, _, weight in map(_parts, accepted.split(",")) if not _NOTHING.match(weight)}
    return next((coding for coding in ("zstd", "gzip") if coding in read), "")


def _parts(offer: str) -> tuple[str, str, str]:
    return offer.partition(";")
