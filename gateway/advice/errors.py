"""What the adviser cannot look at."""

from __future__ import annotations

from gateway.errors import GatewayError


class Unreadable(GatewayError):
    """A file that is no trace; the message names it, and the line that is wrong."""
