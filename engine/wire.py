"""The common shape of what crosses the border between gateway and engine process."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Tagged by class name, so that one decoder reads the union."""
