"""What can go wrong in the demo. Each message is one line that a user can act on."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the message says why."""
