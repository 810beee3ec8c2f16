"""The page's files: what is handed out, how, and what is not."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Callable

import pytest
import yarl

from gateway.dashboard.pages import HEADERS, assets
from tests.gateway.conftest import Gateway

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KILOBYTES = 250
URL = re.compile(rb"""\b(?:https?:)?//[\w.-]+\.\w+[^\s"'<)]*""")
NAMED = {  # a name that nothing fetches, and where the chart library says that it is from
    "ui.js": {b"http://www.w3.org/2000/svg"},
    "icon.svg": {b"http://www.w3.org/2000/svg"},
    "vendor/uPlot/uPlot.iife.min.js": {b"https://github.com/leeoniya/uPlot"},
}


async def test_the_page_is_at_the_root_of_the_admin_port(gateway: Gateway) -> None:
    """GET / answers HTML that may run only the page's own scripts and stand in no frame."""
    answer = await gateway.admin.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<title>Keepwarm</title>" in await answer.text()
    assert "default-src 'none'; script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


async def test_the_serving_port_has_no_page(gateway: Gateway) -> None:
    """Clients do not get the operators' page."""
    assert (await gateway.serving.get("/")).status == 404


@pytest.mark.parametrize("name", sorted(assets()))
async def test_every_file_is_served_with_its_type(gateway: Gateway, name: str) -> None:
    """Each file goes out whole, with its own content type and the same headers as the page."""
    answer = await gateway.admin.get(f"/static/{name}")
    assert answer.status == 200
    assert await answer.read() == assets()[name].bodies[""]
    assert answer.headers["Content-Type"] == assets()[name].content_type
    assert {key: answer.headers[key] for key in HEADERS} == dict(HEADERS)


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip", "gzip"),
        ("zstd;q=0, gzip;q=0.5", "gzip"),
        ("zstd;q=0.0,gzip;q=0", ""),
        ("br", ""),
    ],
)
async def test_files_go_out_compressed_as_the_browser_reads_them(gateway: Gateway, accepted: str, coding: str) -> None:
    """The best coding that the request accepts is used, and what comes out of it is the file."""
    headers = {"Accept-Encoding": accepted}
    async with gateway.admin.session.get(
        gateway.admin.make_url("/static/main.js"), headers=headers, auto_decompress=False
    ) as answer:
        body = await answer.read()
    undone: dict[str, Callable[[bytes], bytes]] = {"zstd": zstd.decompress, "gzip": gzip.decompress, "": bytes}
    assert answer.headers.get("Content-Encoding", "") == coding
    assert undone[coding](body) == assets()["main.js"].bodies[""]


async def test_a_file_that_has_not_changed_is_not_sent_again(gateway: Gateway) -> None:
    """A request that names the tag of what it has is answered 304 without a body."""
    tag = (await gateway.admin.get("/static/main.js")).headers["ETag"]
    again = await gateway.admin.get("/static/main.js", headers={"If-None-Match": tag})
    other = await gateway.admin.get("/static/main.js", headers={"If-None-Match": '"other"'})
    assert (again.status, await again.read()) == (304, b"")
    assert other.status == 200


@pytest.mark.parametrize(
    "path",
    ["..%2fpages.py", "%2e%2e/pages.py", "../pages.py", "views/..%2f..%2fpages.py", "/etc/passwd", "%2fetc%2fpasswd"]
    + ["main.js/", "views", "vendor/uPlot/", "main.js%00", "MAIN.JS", "none.js"],
)
async def test_nothing_else_can_be_reached(gateway: Gateway, path: str) -> None:
    """A path that is no file of the page is 404, however it is written."""
    address = yarl.URL(f"{gateway.admin.make_url('/static/')}{path}", encoded=True)
    answer = await gateway.admin.session.get(address)
    assert answer.status == 404


def test_the_whole_page_is_light() -> None:
    """All files together are below 250 kB as they go out."""
    assert sum(len(asset.bodies["gzip"]) for asset in assets().values()) < KILOBYTES * 1000


@pytest.mark.parametrize("name", sorted(assets()))
def test_no_file_names_another_place(name: str) -> None:
    """No file has the address of another host, but for names that are never fetched."""
    found = set(URL.findall(assets()[name].bodies[""]))
    assert found - NAMED.get(name, set()) == set()


def test_the_chart_library_comes_with_its_licence() -> None:
    """The licence of uPlot lies beside it."""
    assert assets()["vendor/uPlot/LICENSE"].bodies[""].startswith(b"The MIT License (MIT)")


def test_every_module_that_is_preloaded_exists() -> None:
    """What index.html points to are files of the page."""
    named = set(re.findall(rb'(?:href|src)="static/([^"]+)"', assets()["index.html"].bodies[""]))
    assert {name.decode() for name in named} - set(assets()) == set()
    assert len(named) > 10
