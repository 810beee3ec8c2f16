"""What a worker is told when it is started, over its standard input. Pure.

Rule: everything that workers must agree on is decided once, by the parent, and stands here: the file as it was read at
the start, upstreams as they were read last, which of them are drained, the secret that keyed hashes and salts hang on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from gateway.config_file import Configuration, parse_file, read_configuration


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's. `serving` and `private` are descriptors of sockets that listen already."""

    number: int
    flags: dict[str, str | None]
    file: str | None
    reloaded: str | None
    drained: tuple[str, ...]
    secret: str
    serving: int
    private: int

    def configuration(self, environ: Mapping[str, str]) -> Configuration:
        """Return what the worker runs with. The parent stands at its door, so that it asks for no admin key itself."""
        read = read_configuration(self.flags, environ, text=self.file)
        settings = replace(read.settings, admin_key=None, admin_host="127.0.0.1", admin_port=0)
        file = read.file
        if self.reloaded is not None and settings.config is not None:
            newest = parse_file(self.reloaded, Path(settings.config))
            file = replace(file, upstreams=newest.upstreams, routing=newest.routing)
        return Configuration(settings=settings, file=file)
