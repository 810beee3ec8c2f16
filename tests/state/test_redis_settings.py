"""Every form of naming a server takes every option, and drops none."""

from __future__ import annotations

import pytest

from prefix_store.redis_settings import RedisSettings
from prefix_store.store import StateRefused


def of(url: str) -> RedisSettings:
    """Read a URL."""
    return RedisSettings.from_url(url, secret="s")


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        (
            "redis://",
            {"host": "localhost", "port": 6379, "db": 0, "tls": False, "prefix": "keepwarm:", "timeout_s": 0.05},
        ),
        ("redis://cache.example:7000/3", {"host": "cache.example", "port": 7000, "db": 3}),
        ("redis://:7000?db=4", {"host": "localhost", "port": 7000, "db": 4}),
        ("redis://[::1]:7000", {"host": "::1", "port": 7000}),
        ("redis://[::1]", {"host": "::1", "port": 6379}),
        ("redis://kw:p%40s%3As@h", {"username": "kw", "password": "p@s:s", "host": "h"}),
        ("redis://:only@h", {"username": None, "password": "only"}),
        ("rediss://h?ca=/a%20b&cert=/c&key=/k", {"tls": True, "ca": "/a b", "cert": "/c", "key": "/k"}),
        ("unix:///run/redis%20x.sock?db=2&prefix=kw%3A", {"socket": "/run/redis x.sock", "db": 2, "prefix": "kw:"}),
        ("unix://kw:pw@/run/redis.sock", {"socket": "/run/redis.sock", "username": "kw", "password": "pw"}),
        ("redis://h?timeout=250ms", {"timeout_s": 0.25}),
        ("redis://h?timeout=0.25", {"timeout_s": 0.25}),
        ("redis://h?timeout=1s", {"timeout_s": 1.0}),
    ],
)
def test_a_url_says_it_all(url, fields):
    """Each part of a URL reaches its setting."""
    settings = of(url)
    assert {name: getattr(settings, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://h", "can be redis://, rediss:// or unix://"),
        ("redis://h?timeot=1s", "did you mean 'timeout'"),
        ("redis://h?colour=red", "known are ca, cert, db, key, prefix, timeout"),
        ("redis://h?timeout=soon", "'soon' is not a time; write 50ms or 0.05"),
        ("redis://h?timeout=50", "50 s is not above 0 and up to 10 s; write 50ms"),
        ("redis://h?timeout=0", "timeout: 0 s is not above 0"),
        ("redis://h?timeout=nan", "timeout: nan s is not above 0"),
        ("redis://h/first", "db: 'first' is not a whole number"),
        ("redis://h:0", "port: 0 is not from 1 to 65535"),
        ("redis://h:66666", "port: 66666 is not from 1 to 65535"),
    ],
)
def test_a_url_that_is_not_understood_is_refused(url, problem):
    """Nothing in a URL is dropped in silence."""
    with pytest.raises(StateRefused) as refused:
        of(url)
    assert problem in str(refused.value)


def test_a_shared_server_needs_the_secret():
    """Without the secret the keys would tell what they stand for."""
    with pytest.raises(StateRefused, match="KEEPWARM_SECRET"):
        RedisSettings.from_url("redis://h", secret="")


def test_unknown_parts_are_refused():
    """Options given one by one are checked like a URL's."""
    with pytest.raises(StateRefused, match="'hots' is not known"):
        RedisSettings.from_parts({"hots": "h"}, secret="s")


def test_the_environment_without_a_server_names_none():
    """A secret alone does not mean Redis."""
    assert RedisSettings.from_environment({"KEEPWARM_SECRET": "s", "KEEPWARM_REDIS_TIMEOUT": "1s"}) is None


def test_the_environment_fills_what_the_url_leaves_open():
    """The URL's own word comes first."""
    environment = {
        "KEEPWARM_SECRET": "s",
        "KEEPWARM_REDIS": "rediss://h?timeout=1s",
        "KEEPWARM_REDIS_TIMEOUT": "2s",
        "KEEPWARM_REDIS_PASSWORD": "pw",
        "KEEPWARM_REDIS_PREFIX": "x:",
    }
    settings = RedisSettings.from_environment(environment)
    assert settings == RedisSettings(secret="s", host="h", tls=True, timeout_s=1.0, password="pw", prefix="x:")


def test_the_environment_names_a_server_in_parts():
    """Every part has its variable."""
    parts = {"SOCKET": "/run/r", "DB": "1", "USERNAME": "u", "PASSWORD": "p", "TLS": "yes", "CA": "/ca"}
    environment = {f"KEEPWARM_REDIS_{part}": text for part, text in parts.items()} | {"KEEPWARM_SECRET": "s"}
    assert RedisSettings.from_environment(environment) == RedisSettings(
        secret="s", socket="/run/r", db=1, username="u", password="p", tls=True, ca="/ca"
    )


def test_nothing_secret_shows():
    """Neither the repr nor the name of the server holds the password or the secret."""
    settings = RedisSettings.from_url("redis://user:hunter2@h:1/2", secret="swordfish")
    assert "hunter2" not in repr(settings) and "swordfish" not in repr(settings)
    assert settings.where == "h:1/2"
    assert of("unix:///run/r").where == "/run/r"
