"""What each kind of setting may be, read from text. Pure.

Rule: what cannot be read raises ValueError, which says what would do; the caller names the setting.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal, cast, get_args
from urllib.parse import urlsplit

from engine.config import KV_DTYPES
from gateway.tools.choose import SETTINGS as TOOL_FORMATS
from prefix_store.classes import NAME_LENGTH, is_name
from prefix_store.redis_settings import RedisSettings
from prefix_store.retention import parse_duration
from prefix_store.store import StateRefused

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_SHARE: Final = re.compile(r"\d{0,3}\.?\d{1,17}")
_DEVICE: Final = re.compile(r"cpu|cuda(:\d{1,3})?")
_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")
_MAX_PORT: Final = 65535

Compat = Literal["auto", "on", "off"]


def parse_size(text: str) -> int:
    """Bytes in `4GiB`, `512 MiB`, `2GB` (decimal) or a bare number."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a size such as 4GiB or 512MiB, not {text!r}")
    number, letter, binary = match.groups()
    size = int(float(number) * (1024 if binary else 1000) ** " kmgt".index(letter.lower() or " "))
    if size <= 0:
        raise ValueError(f"expected a size above zero, not {text!r}")
    return size


def parse_count(text: str) -> int:
    """Read a whole number above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"expected a whole number above zero, not {text!r}")
    return int(text)


def parse_share(text: str) -> float:
    """Read a share: a number above 0 and at most 1."""
    if _SHARE.fullmatch(text.strip()) is None or not 0 < float(text) <= 1:
        raise ValueError(f"expected a share above 0 and at most 1, such as 0.92, not {text!r}")
    return float(text)


def parse_port(text: str) -> int:
    """Read a TCP port; 0 lets the system choose."""
    if not text.isdecimal() or int(text) > _MAX_PORT:
        raise ValueError(f"expected a port from 0 to {_MAX_PORT}, not {text!r}")
    return int(text)


def parse_word(text: str) -> str:
    """Take any text that is not blank."""
    if not text.strip():
        raise ValueError("expected a value, not nothing")
    return text.strip()


def parse_device(text: str) -> str:
    """Take `cpu`, `cuda` or `cuda:N`; whether there is one, the engine says."""
    if _DEVICE.fullmatch(text.strip()) is None:
        raise ValueError(f"expected cpu, cuda or a GPU's number such as cuda:1, not {text!r}")
    return text.strip()


def parse_devices(text: str) -> tuple[str, ...]:
    """Take devices, separated by commas, all of one kind. A GPU stands once; a CPU may be shared by several engines."""
    devices = tuple(parse_device(part) for part in text.split(",") if part.strip())
    devices = tuple("cuda:0" if device == "cuda" else device for device in devices)
    for place, device in enumerate(devices):
        if device.partition(":")[0] != devices[0].partition(":")[0]:
            raise ValueError(f"expected devices of one kind, not {devices[0]!r} and {device!r}")
        if device != "cpu" and device in devices[:place]:
            raise ValueError(f"{device!r} stands twice")
    return devices


def parse_kv_dtype(text: str) -> str:
    """Take the name of what keys and values can be stored in; whether the device can, the engine says."""
    if text.strip().lower() not in KV_DTYPES:
        raise ValueError(f"expected one of {', '.join(KV_DTYPES)}, not {text!r}")
    return text.strip().lower()


def parse_redis(text: str) -> str:
    """Take a URL that leads to a Redis: `redis://`, `rediss://` or `unix://`. What is refused is not repeated."""
    try:
        RedisSettings.from_url(text, secret="unused")  # noqa: S106 - only the form is read here
    except StateRefused as error:
        raise ValueError(str(error)) from error
    except ValueError as error:  # from the standard library, whose words may hold the password
        raise ValueError("expected a URL such as redis://host:6379/0") from error
    return text


def parse_interval(text: str) -> float:
    """Take a duration, or `off` as 0."""
    return 0.0 if text.strip().lower() == "off" else parse_duration(text)


def parse_switch(text: str) -> bool:
    """Take `on` or `off`."""
    switches = {"on": True, "true": True, "off": False, "false": False}
    if text.strip().lower() not in switches:
        raise ValueError(f"expected on or off, not {text!r}")
    return switches[text.strip().lower()]


def parse_origins(text: str) -> frozenset[str]:
    """Take origins such as https://app.example:8443, separated by commas."""
    origins = frozenset(filter(None, (part.strip() for part in text.split(","))))
    for origin in origins:
        if origin != "*" and _ORIGIN.fullmatch(origin) is None:
            raise ValueError(f"expected an origin such as https://app.example, not {origin!r}")
    return origins


def parse_tenants(text: str) -> tuple[str, ...]:
    """Take names of tenants, separated by commas, each once; `default` is everybody else's."""
    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    for place, name in enumerate(names):
        if not is_name(name):
            raise ValueError(f"{name!r} is not a name of 1 to {NAME_LENGTH} letters, digits, '.', '_', '-'")
        if name == "default":
            raise ValueError("'default' is the tenant of whoever names none")
        if name in names[:place]:
            raise ValueError(f"{name!r} stands twice")
    return names


def parse_template(text: str) -> str:
    """Read the file of that name."""
    try:
        template = Path(text).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"expected a text file to read, and {text!r} is none ({type(error).__name__})") from error
    if not template.strip():
        raise ValueError(f"expected a template, and {text!r} is empty")
    return template


def parse_tool_format(text: str) -> str:
    """Take the name of a tool format."""
    if text not in TOOL_FORMATS:
        raise ValueError(f"expected one of {', '.join(TOOL_FORMATS)}, not {text!r}")
    return text


def parse_compat(text: str) -> Compat:
    """Take `auto`, `on` or `off`."""
    for word in get_args(Compat):
        if text.strip().lower() == word:
            return cast(Compat, word)
    raise ValueError(f"expected auto, on or off, not {text!r}")


def parse_names(text: str) -> tuple[str, ...]:
    """Take names of tenants, separated by commas; in order, each once."""
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if not is_name(name):
            raise ValueError(f"{name!r} is not a name of 1 to {NAME_LENGTH} letters, digits, '.', '_', '-'")
    return names


def parse_url(text: str) -> str:
    """Take an address on the web, without a query."""
    parts = urlsplit(text.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"expected a URL such as http://localhost:4318, not {text!r}")
    return text.strip()
