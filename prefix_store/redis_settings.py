"""How to reach the shared Redis: from a URL, from parts, or from environment variables.

Owns: the reading of these three forms into one frozen value. Opens no connection.
Rule: every form takes every option, the timeout above all; an option that is not understood is refused, never
dropped. Passwords and the secret never show in a repr.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from prefix_store.classes import nearest
from prefix_store.retention import parse_duration
from prefix_store.store import StateRefused

TIMEOUT_S = 0.05
LONGEST_TIMEOUT_S = 10.0
PREFIX = "keepwarm:"
ENVIRONMENT = "KEEPWARM_REDIS"  # the URL; the parts are KEEPWARM_REDIS_HOST and so on
SECRET = "KEEPWARM_SECRET"  # noqa: S105 - the variable's name
_OPTIONS = ("timeout", "prefix", "ca", "cert", "key")
_PARTS = ("host", "port", "db", "username", "password", "socket", "tls", *_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """One server and how to speak to it. `socket` is a path and beats `host` and `port`; `ca`… are PEM files."""

    secret: str = field(repr=False)
    host: str = "localhost"
    port: int = 6379
    socket: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    prefix: str = PREFIX
    timeout_s: float = TIMEOUT_S  # of one call, connecting included

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not self.secret:
            raise StateRefused(f"a shared Redis needs a secret, the same on all gateways: set {SECRET}")
        if not 0 < self.timeout_s <= LONGEST_TIMEOUT_S:
            raise StateRefused(
                f"timeout: {self.timeout_s:g} s is not above 0 and up to {LONGEST_TIMEOUT_S:g} s; write 50ms or 0.05"
            )
        if not 0 < self.port < 1 << 16:
            raise StateRefused(f"port: {self.port} is not from 1 to 65535")

    @classmethod
    def from_url(cls, url: str, *, secret: str) -> RedisSettings:
        """Read `redis://user:password@host:port/db`, `rediss://…` (TLS) or `unix://user:password@/path?db=0`.

        The query may hold `timeout` (`50ms`, `0.05s` or seconds), `prefix`, and for TLS `ca`, `cert`, `key`.
        """
        return cls.from_parts(_url_parts(url), secret=secret)

    @classmethod
    def from_parts(cls, parts: Mapping[str, str], *, secret: str) -> RedisSettings:
        """Read options given one by one: host, port, db, username, password, socket, tls and those of a URL's query."""
        for name in parts:
            if name not in _PARTS:
                raise StateRefused(f"the Redis option {name!r} is not known; known are {', '.join(_PARTS)}")
        return cls(
            secret=secret,
            host=parts.get("host") or "localhost",
            port=_whole(parts, "port", 6379),
            socket=parts.get("socket") or None,
            db=_whole(parts, "db", 0),
            username=parts.get("username"),
            password=parts.get("password"),
            tls=parts.get("tls", "").lower() in {"1", "true", "yes", "on"},
            ca=parts.get("ca"),
            cert=parts.get("cert"),
            key=parts.get("key"),
            prefix=parts.get("prefix", PREFIX),
            timeout_s=_timeout_s(parts.get("timeout", "")),
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> RedisSettings | None:
        """Read KEEPWARM_REDIS (a URL) and KEEPWARM_REDIS_HOST, _PORT, _TIMEOUT …; None where none says which server.

        What the URL leaves open the other variables may say: KEEPWARM_REDIS_TIMEOUT holds for a URL without `timeout`.
        """
        parts = {part: environment.get(f"{ENVIRONMENT}_{part.upper()}", "") for part in _PARTS}
        parts = {part: text for part, text in parts.items() if text}
        if url := environment.get(ENVIRONMENT):
            parts |= _url_parts(url)
        if not {"host", "socket"} & parts.keys():
            return None
        return cls.from_parts(parts, secret=environment.get(SECRET, ""))

    @property
    def where(self) -> str:
        """The server in words, without credentials."""
        return self.socket or f"{self.host}:{self.port}/{self.db}"

    def key_of(self, kind: str, name: str = "", *within: str) -> str:
        """Return the key of one thing: the prefix and a digest under the secret, the same in every process.

        Each part is framed by its length, so that no two things share a key; whoever reads the keys learns nothing.
        """
        secret = hashlib.blake2b(self.secret.encode(), digest_size=64, person=b"keepwarm-keys").digest()
        parts = [part.encode() for part in (kind, name, *within)]
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return self.prefix + hashlib.blake2b(framed, key=secret, digest_size=20).hexdigest()


def _url_parts(url: str) -> dict[str, str]:
    """Return the options that a URL spells."""
    split = urlsplit(url)
    if split.scheme not in {"redis", "rediss", "unix"}:
        raise StateRefused(f"the Redis URL starts with {split.scheme!r}; it can be redis://, rediss:// or unix://")
    given = {"username": split.username, "password": split.password}
    if split.scheme == "unix":
        given["socket"] = split.path
    else:
        host, port = _address(split.netloc.rpartition("@")[2])
        given |= {"host": host or "localhost", "port": port, "db": split.path.strip("/")}
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    known = {*_OPTIONS, "db"}
    for name in query:
        if name not in known:
            guess = nearest(name, known)
            hint = f"did you mean {guess!r}?" if guess else f"known are {', '.join(sorted(known))}"
            raise StateRefused(f"the Redis URL's option {name!r} is not known; {hint}")
    tls = {"tls": "yes"} if split.scheme == "rediss" else {}
    return {name: unquote(text) for name, text in given.items() if text} | query | tls


def _address(netloc: str) -> tuple[str, str]:
    """Split `host:port`, `[::1]:port`, `host` or `:port`; a missing part is ""."""
    bracketed, closing, rest = netloc.rpartition("]")
    if closing:
        return bracketed.removeprefix("["), rest.removeprefix(":")
    host, _, port = netloc.partition(":")
    return host, port


def _whole(parts: Mapping[str, str], name: str, otherwise: int) -> int:
    text = parts.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdecimal()):
        raise StateRefused(f"{name}: {text!r} is not a whole number")
    return int(text)


def _timeout_s(text: str) -> float:
    """Read a duration such as `50ms`, or plain seconds; "" is the default."""
    if not text:
        return TIMEOUT_S
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_duration(text)
    except ValueError as error:
        raise StateRefused(f"timeout: {text!r} is not a time; write 50ms or 0.05") from error
